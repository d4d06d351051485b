//! Processes that exit with the test program, even if it is killed.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// The keeper's script: reads `+ PID` and `- PID`, and kills the remaining processes when its input
/// ends.
const KEEPER: &str = "trap '' HUP INT QUIT TERM
pids=' '
while read -r sign pid; do
    case $sign in
    +) pids=\"$pids$pid \" ;;
    -) pids=\"${pids%% $pid *} ${pids#* $pid }\" ;;
    esac
done
for pid in $pids; do kill -9 \"$pid\"; done";

/// The keeper's input; the kernel closes it when this process exits.
static KEEPS: Mutex<Option<ChildStdin>> = Mutex::new(None);

/// A process that is killed when this process exits for any reason, unless this value has been
/// dropped before.
#[derive(Debug)]
pub struct ChildGuard(u32);

impl ChildGuard {
    /// Ties a child to this process. Any thread may have started the child, but no thread must have
    /// waited for it yet.
    ///
    /// # Panics
    ///
    /// Panics if `sh` cannot be started.
    #[must_use]
    pub fn new(pid: u32) -> Self {
        write_guard('+', pid);
        Self(pid)
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        write_guard('-', self.0);
    }
}

fn write_guard(sign: char, pid: u32) {
    let mut keeps = KEEPS.lock().unwrap_or_else(PoisonError::into_inner);
    let stdin = keeps.get_or_insert_with(keeper);
    writeln!(stdin, "{sign} {pid}").expect("the keeper reads");
}

fn keeper() -> ChildStdin {
    let child = Command::new("sh")
        .args(["-c", KEEPER])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Signals to the process group of the tests must not reach the keeper.
        .process_group(0)
        .spawn();
    child.expect("sh starts").stdin.expect("a pipe")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait_until;
    use std::io::{BufRead, BufReader};
    use std::path::Path;

    /// The environment variable that is set in the process that runs
    /// [`the_program_that_is_killed`].
    const ROLE: &str = "GRANTWAY_TEST_TIED";

    /// This is not a test itself. The test below kills its process.
    #[test]
    fn the_program_that_is_killed() {
        if std::env::var_os(ROLE).is_none() {
            return;
        }
        let sleep = |_| Command::new("sleep").arg("1000").spawn().unwrap();
        let [kept, mut ended, loose] = [0, 1, 2].map(sleep);
        let ties = [&kept, &ended].map(|child| ChildGuard::new(child.id()));
        let [kept_tie, ended_tie] = ties;
        ended.kill().unwrap();
        drop(ended_tie);
        let loose_tie = ChildGuard::new(loose.id());
        drop(loose_tie);
        eprintln!("tied {} {}", kept.id(), loose.id());
        std::thread::sleep(crate::TIMEOUT);
        drop(kept_tie);
    }

    #[test]
    fn tied_processes_end_with_a_killed_test() {
        let mut program = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_guard::tests::the_program_that_is_killed"])
            .arg("--nocapture")
            .env(ROLE, "1")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(program.stderr.take().unwrap()).lines();
        let pids = lines.map(Result::unwrap).find_map(|line| {
            let pids = line.strip_prefix("tied ")?;
            Some(pids.split(' ').map(str::to_owned).collect::<Vec<_>>())
        });
        let pids = pids.unwrap();
        program.kill().unwrap();
        program.wait().unwrap();
        let sleeps = |pid: &str| {
            let words = std::fs::read(Path::new("/proc").join(pid).join("cmdline"));
            words.unwrap_or_default().starts_with(b"sleep\x001000")
        };
        wait_until("the tied process continues", || !sleeps(&pids[0]));
        assert!(sleeps(&pids[1]), "an untied process was killed");
        let killed = Command::new("kill").args(["-9", &pids[1]]).status();
        assert!(killed.unwrap().success());
    }
}
