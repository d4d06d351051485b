//! Runs one emulated machine from its start to its power-off, and reads its console.
//!
//! Lines of the console that begin with `XTEST` control this module:
//!
//! | line | meaning |
//! |---|---|
//! | `XTEST run NAME` | a test begins |
//! | `XTEST ok NAME …` | it has passed |
//! | `XTEST fail NAME …` | it has failed, with the reason |
//! | `XTEST window JSON` | results of a window of `xen exp` |
//! | `XTEST done` | the machine is about to power off |

use super::images::library_path;
use super::kernels::Kernels;
use super::packages::{Packages, find};
use crate::workspace;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Without eager-fpu, processes in an emulated machine die at random.
const XEN_ARGUMENTS: &str = "console=com1 com1=115200,8n1 loglvl=warning guest_loglvl=warning \
     dom0_mem=1024M,max:1024M dom0_max_vcpus=1 spec-ctrl=eager-fpu";
/// The arguments for a NIC that cannot reach this system.
const NIC: &[&str] = &[
    "-netdev",
    "user,id=wire,restrict=on",
    "-device",
    "e1000,netdev=wire,romfile=",
];
const NO_NIC: &[&str] = &["-nic", "none"];
/// Number of console lines that are shown after a failure.
const LINES_SHOWN: usize = 60;

/// A machine to run.
pub(crate) struct XenMachine<'a> {
    pub(crate) kernels: &'a Kernels,
    pub(crate) image: &'a Path,
    pub(crate) packages: &'a Packages,
    /// The file to which the console's output is written.
    pub(crate) log: PathBuf,
    /// The machine's memory, MiB. dom0 has a gigabyte of it.
    pub(crate) memory_mib: u32,
    /// Whether the machine has a NIC, whose network contains the emulator's station 10.0.2.2.
    pub(crate) has_nic: bool,
    /// Factor of the deadlines inside the machine.
    pub(crate) slow: u32,
    pub(crate) deadline: Duration,
    /// Whether an instruction takes one nanosecond of the machine's clock and idle time takes no
    /// real time. The clock then counts work, independent of other load on this system.
    pub(crate) counts_instructions: bool,
}

/// The task of a run.
pub(crate) struct Task<'a> {
    /// An argument for dom0's kernel.
    pub(crate) argument: &'a str,
    /// Tests that must pass.
    pub(crate) wanted: &'a [&'a str],
    /// Receives the results of each window.
    pub(crate) on_window: &'a mut dyn FnMut(&str) -> Result<()>,
}

/// Results of the tests of a run.
#[derive(Debug, Default, PartialEq, Eq)]
struct TestOutcome {
    passed: Vec<String>,
    failed: Vec<String>,
    done: bool,
}

impl TestOutcome {
    /// Processes a line of the console. Returns the text to show, if any.
    fn take(&mut self, line: &str) -> Option<String> {
        let at = line.find("XTEST ")?;
        let mut words = line.get(at..)?.split_whitespace().skip(1);
        let (kind, name) = (words.next()?, words.next().unwrap_or_default());
        let rest = words.collect::<Vec<_>>().join(" ");
        match kind {
            "ok" => self.passed.push(name.to_owned()),
            "fail" => self.failed.push(name.to_owned()),
            "done" => {
                self.done = true;
                return None;
            }
            _ => return None,
        }
        Some(format!("{kind:4} {name:10} {rest}").trim_end().to_owned())
    }
}

impl XenMachine<'_> {
    /// Runs a task to its end, and prints the result of each test.
    ///
    /// # Errors
    ///
    /// Returns an error if a test or the machine has failed.
    pub(crate) fn run(&self, task: Task<'_>) -> Result<()> {
        let command = self.command(task.argument)?;
        let console = EmulatorConsole {
            log: &self.log,
            deadline: self.deadline,
        };
        console.run(command, task.wanted, task.on_window)
    }

    /// Returns a description of everything on which a run depends in addition to the images: the
    /// emulator and its arguments.
    pub(crate) fn describe(&self) -> Result<String> {
        let version = workspace::output(self.emulator()?.arg("--version"))?;
        Ok(format!("{version}{:?}", self.command("")?))
    }

    fn command(&self, argument: &str) -> Result<Command> {
        let mut command = self.emulator()?;
        let initrd = format!(
            "{} console=hvc0 earlyprintk=xen panic=5 xslow={} {argument},{}",
            self.kernels.linux.display(),
            self.slow,
            self.image.display()
        );
        if self.counts_instructions {
            command.args(["-icount", "shift=0,sleep=off"]);
        }
        command
            .args(["-accel", "tcg,thread=single", "-cpu", "max,-smap,-rdtscp"])
            .args(["-smp", "1", "-m", &self.memory_mib.to_string()])
            .args(["-display", "none", "-serial", "stdio"])
            .args(["-monitor", "none", "-no-reboot"])
            .args(if self.has_nic { NIC } else { NO_NIC })
            .arg("-kernel")
            .arg(&self.kernels.xen)
            .args(["-append", XEN_ARGUMENTS, "-initrd", &initrd]);
        Ok(command)
    }

    /// Returns a command for this system's emulator, or for the unpacked one.
    fn emulator(&self) -> Result<Command> {
        if !self.packages.emulator {
            let program =
                find("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?;
            return Ok(Command::new(program));
        }
        let of = |path: &str| self.packages.root.join(path);
        let mut command = Command::new(of("usr/bin/qemu-system-x86_64"));
        command
            .env("LD_LIBRARY_PATH", library_path(self.packages))
            .env("QEMU_MODULE_DIR", of("usr/lib/x86_64-linux-gnu/qemu"));
        for folder in ["usr/share/seabios", "usr/share/qemu", "usr/lib/ipxe/qemu"] {
            command.arg("-L").arg(of(folder));
        }
        Ok(command)
    }
}

/// The console of an emulator.
pub(crate) struct EmulatorConsole<'a> {
    /// The file to which its output is written.
    pub(crate) log: &'a Path,
    pub(crate) deadline: Duration,
}

impl EmulatorConsole<'_> {
    /// Runs an emulator until it exits, and prints the result of each test.
    ///
    /// # Errors
    ///
    /// Returns an error if a test of `tests` or the machine has failed.
    pub(crate) fn run(
        &self,
        mut command: Command,
        tests: &[&str],
        on_window: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context("the emulator cannot be started")?;
        let console = child.stdout.take().context("the emulator has no output")?;
        let (lines, read) = channel();
        std::thread::spawn(move || {
            let mut console = BufReader::new(console);
            let mut line = Vec::new();
            // The output is read as bytes, because a console may print arbitrary bytes.
            while console
                .read_until(b'\n', &mut line)
                .is_ok_and(|bytes| bytes > 0)
            {
                if lines
                    .send(String::from_utf8_lossy(&line).trim_end().to_owned())
                    .is_err()
                {
                    return;
                }
                line.clear();
            }
        });
        let told = self.follow(&read, on_window);
        let _ = child.kill();
        child.wait()?;
        let (outcome, tail, late) = told?;
        let missing: Vec<_> = tests
            .iter()
            .filter(|test| !outcome.passed.iter().any(|passed| passed == *test))
            .copied()
            .collect();
        if missing.is_empty() && outcome.done {
            return Ok(());
        }
        for line in tail {
            println!("| {line}");
        }
        println!("the whole console: {}", self.log.display());
        if late {
            bail!(
                "not finished within {} s: {}",
                self.deadline.as_secs(),
                missing.join(", ")
            );
        }
        bail!("not passed: {}", missing.join(", "))
    }

    /// Reads the console until it closes or the deadline passes.
    fn follow(
        &self,
        read: &Receiver<String>,
        on_window: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<(TestOutcome, Vec<String>, bool)> {
        let mut log = File::create(self.log)
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        let start = Instant::now();
        let mut outcome = TestOutcome::default();
        let mut tail = Vec::new();
        loop {
            let left = self.deadline.saturating_sub(start.elapsed());
            match read.recv_timeout(left) {
                Ok(line) => {
                    writeln!(log, "{:8.2} {line}", start.elapsed().as_secs_f64())?;
                    if let Some((_, window)) = line.split_once("XTEST window ") {
                        on_window(window)?;
                    }
                    if let Some(shown) = outcome.take(&line) {
                        println!("{shown}");
                    }
                    tail.push(line);
                    if tail.len() > LINES_SHOWN {
                        tail.remove(0);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Ok((outcome, tail, false)),
                Err(RecvTimeoutError::Timeout) => return Ok((outcome, tail, true)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_reports_test_results() {
        let mut outcome = TestOutcome::default();
        assert_eq!(outcome.take("[    1.0] Linux version"), None);
        assert_eq!(outcome.take("XTEST run boot"), None);
        assert_eq!(
            outcome.take("XTEST ok boot 3 s").as_deref(),
            Some("ok   boot       3 s")
        );
        let failed = outcome.take("\rXTEST fail pv no answer");
        assert_eq!(failed.as_deref(), Some("fail pv         no answer"));
        assert!(!outcome.done);
        assert_eq!(outcome.take("XTEST done"), None);
        assert!(outcome.done);
        assert_eq!(outcome.passed, ["boot"]);
        assert_eq!(outcome.failed, ["pv"]);
    }
}
