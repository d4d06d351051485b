//! The namespaces of a cluster and of its nodes, and the programs in them.

use super::waiting::wait;
use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// Namespaces for mounts, network links, processes and a host name. The first process is a script,
/// which exits when its standard input closes. The kernel then kills every other process inside.
pub(super) struct Space {
    /// The program that created the namespaces.
    outer: Child,
    /// The first process, by its id on this system.
    pid: u32,
    /// The first process's standard input. It also closes if this program is killed.
    stdin: Option<ChildStdin>,
    /// Programs that run inside until they are killed.
    daemons: Vec<Child>,
}

impl Space {
    /// Creates namespaces inside `within`, or inside this system's. `script` must print `ready` and
    /// then read its standard input. Its error output is written to `log`.
    pub(super) fn new(
        within: Option<&Space>,
        script: &Path,
        args: &[&str],
        log: File,
    ) -> Result<Self> {
        let mut command = within.map_or_else(
            || {
                // In a separate session, Ctrl-C stops only this program, and the script cleans up.
                let mut command = Command::new("setsid");
                command.arg("--wait").arg("unshare");
                command
            },
            |space| space.command("unshare"),
        );
        command
            .args(["--mount", "--net", "--pid", "--uts", "--fork"])
            .args(["--kill-child", "--mount-proc", "--propagation", "private"])
            .arg("sh")
            .arg(script)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut outer = command.spawn().context("cannot run unshare")?;
        let stdin = outer.stdin.take();
        let mut first_line = String::new();
        let stdout = outer.stdout.take().context("no output")?;
        BufReader::new(stdout).read_line(&mut first_line)?;
        ensure!(
            first_line.trim() == "ready",
            "{} failed: see the log",
            script.display()
        );
        let pid = first_process(outer.id()).context("the namespaces have no process")?;
        Ok(Self {
            outer,
            pid,
            stdin,
            daemons: Vec::new(),
        })
    }

    /// Starts a program that runs until it is killed or the namespaces are removed.
    pub(super) fn daemon(&mut self, mut command: Command, log: File) -> Result<()> {
        command.stdout(log.try_clone()?).stderr(log);
        let child = command.spawn();
        self.daemons
            .push(child.with_context(|| format!("cannot run {command:?}"))?);
        Ok(())
    }

    /// Returns a command that runs a program inside the namespaces.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.pid.to_string()])
            .args(["--mount", "--net", "--pid", "--uts", "--"])
            .arg(program.as_ref())
            .stdin(Stdio::null());
        command
    }

    /// Returns the id of the first process in this system's PID namespace.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Opens the network namespace.
    pub(super) fn netns(&self) -> Result<Netns> {
        Netns::of_process(self.pid)
    }

    /// Returns this system's path of a file inside the namespaces.
    pub(super) fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.pid))
    }

    /// Returns the processes inside that run the named program.
    pub(super) fn processes(&self, program: &str) -> Vec<u32> {
        // The parents of daemons are outside the namespaces, because this program waits for
        // daemons.
        let daemons = self.daemons.iter().map(Child::id);
        std::iter::once(self.pid)
            .chain(daemons)
            .flat_map(descendants)
            .filter(|pid| runs(*pid, program))
            .collect()
    }

    /// Kills the processes of a program, and returns their number.
    pub(super) fn kill(&self, program: &str) -> Result<usize> {
        let found = self.processes(program);
        for pid in &found {
            kill(*pid)?;
        }
        Ok(found.len())
    }

    /// Kills everything inside immediately, like a power failure.
    pub(super) fn power_off(&mut self) -> Result<()> {
        kill(self.pid)?;
        self.outer.wait()?;
        Ok(())
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.outer.wait();
        for daemon in &mut self.daemons {
            let _ = daemon.wait();
        }
    }
}

/// A network namespace.
pub(super) struct Netns(File);

impl Netns {
    /// Opens the network namespace of a process.
    pub(super) fn of_process(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/ns/net");
        Ok(Self(File::open(&path).context(path)?))
    }

    /// Moves the calling thread, and threads that it creates later, into the namespace.
    pub(super) fn enter(&self) -> Result<()> {
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(self.0.as_fd(), kind).context("cannot enter a network namespace")
    }

    /// Runs `work` on another thread in the namespace.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter()?;
                work()
            });
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Kills a process by its id.
pub(super) fn kill(pid: u32) -> Result<()> {
    let id = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    let id = id.context("no process id")?;
    rustix::process::kill_process(id, rustix::process::Signal::KILL)
        .with_context(|| format!("cannot kill process {pid}"))
}

/// Returns whether a process is a zombie or does not exist, and has thus closed all its files.
pub(super) fn has_ended(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    // The state follows the name, which may contain any character.
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_none_or(|state| state.starts_with(['Z', 'X']))
}

/// Returns the id of a process in a container's control group.
pub(super) fn container_process(container: &str) -> Option<u32> {
    let is_inside = |pid: &u32| {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"));
        groups.is_ok_and(|groups| groups.contains(container))
    };
    processes().into_iter().find(is_inside)
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}

/// Returns the name of a process's program.
fn name(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Returns whether a process runs the program or the component with this name.
fn runs(pid: u32, program: &str) -> bool {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    // The kernel truncates names to 15 bytes.
    let kept = program.get(..15).unwrap_or(program);
    name(pid).as_deref() == Some(kept) || line.split('\0').nth(1) == Some(program)
}

fn children(pid: u32) -> Vec<u32> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let mut text = String::new();
        let file = File::open(task.path().join("children"));
        if file
            .and_then(|mut file| file.read_to_string(&mut text))
            .is_ok()
        {
            all.extend(
                text.split_whitespace()
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
    }
    all
}

fn descendants(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        all.extend(children(*pid));
        next += 1;
    }
    all
}

/// Returns the process below `pid` that runs the script. `setsid` and `nsenter` wait for `unshare`,
/// which waits for the script.
fn first_process(pid: u32) -> Option<u32> {
    let mut found = None;
    let _ = wait("", Duration::from_secs(5), || {
        let below = descendants(pid).into_iter();
        found = below.skip(1).find(|pid| {
            let own = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let ids = own.lines().find_map(|line| line.strip_prefix("NSpid:"));
            let is_first = ids.is_some_and(|ids| ids.split_whitespace().last() == Some("1"));
            is_first && name(*pid).is_some_and(|name| name == "sh" || name == "cat")
        });
        Ok(found.is_some())
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_run_only_as_first_processes() {
        for script in ["cluster.sh", "node.sh"] {
            let script = crate::workspace::root()
                .join("xtask/kubernetes")
                .join(script);
            // Without arguments the scripts have no effect.
            let run = Command::new("sh").arg(&script).output().unwrap();
            let errors = String::from_utf8_lossy(&run.stderr);
            let why = "only as the first process of a PID namespace";
            assert!(!run.status.success() && errors.contains(why), "{errors}");
        }
    }
}
