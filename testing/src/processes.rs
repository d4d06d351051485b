//! Processes that other programs have started.

use std::fs;
use std::path::Path;
use std::process::Child;

/// A child that is killed when this value is dropped.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the running child of a process with this name.
#[must_use]
pub fn child_of(parent: u64, name: &str) -> Option<u64> {
    // The kernel keeps 15 bytes of a name, and lists children by thread.
    let kept = name.get(..15).unwrap_or(name);
    // `PID (NAME) STATE …`; the state of a process that has not been waited for is Z.
    let is_named = |pid: &u64| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let named = stat.rsplit_once(')').and_then(|(start, state)| {
            let (_, comm) = start.split_once('(')?;
            Some(comm == kept && !state.starts_with(" Z"))
        });
        named == Some(true)
    };
    let of_thread = |thread: &Path| {
        let children = fs::read_to_string(thread.join("children")).unwrap_or_default();
        let mut pids = children
            .split_whitespace()
            .filter_map(|pid| pid.parse::<u64>().ok());
        pids.find(is_named)
    };
    let threads = fs::read_dir(format!("/proc/{parent}/task")).ok()?;
    let mut threads = threads.flatten();
    threads.find_map(|thread| of_thread(&thread.path()))
}

/// Returns the CPU time of a process, in hundredths of a second.
///
/// # Panics
///
/// Panics if the process does not exist.
#[must_use]
pub fn cpu_ticks(pid: u64) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("its /proc/PID/stat");
    // The name may contain anything, so fields count from its end. User and system time are the
    // 14th and the 15th field.
    let fields = stat.rsplit_once(") ").into_iter();
    let fields = fields.flat_map(|(_, rest)| rest.split(' ').skip(11).take(2));
    fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_is_found_by_its_name() {
        let this = u64::from(std::process::id());
        let mut cat = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // A new process may still have the name of its parent. Once it answers, it has its own
        // name.
        let mut input = cat.stdin.take().unwrap();
        input.write_all(b"x").unwrap();
        let mut answer = [0];
        let mut output = cat.stdout.take().unwrap();
        output.read_exact(&mut answer).unwrap();
        assert_eq!(child_of(this, "cat"), Some(cat.id().into()));
        assert_eq!(child_of(this, "ca"), None);
        assert_eq!(child_of(cat.id().into(), "cat"), None);
        drop(input);
        cat.wait().unwrap();
        assert_eq!(child_of(this, "cat"), None);
    }
}
