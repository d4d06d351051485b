//! The machine that the command is behind. It is one of the command's own: it comes with the
//! command, and goes with it. Only this module knows that; a machine that runs already would be
//! attached to here.

use super::network::{GUEST, Network};
use super::report::{Findings, Passed};
use crate::output;
use abi::journal::Level;
use abi::machine::Program;
use abi::mailbox::Request;
use anyhow::Context;
use client::{Instance, Options, Reach};
use netdev::netns::Namespace;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// What the command is behind.
pub(super) struct Behind {
    /// None: it has ended.
    instance: Option<Instance>,
    /// Without a name already, so that nothing stays behind.
    log: Option<File>,
}

impl Behind {
    /// Returns when the command's interface is there and carries packets.
    pub(super) fn start(
        name: Option<&str>,
        network: &Network,
        netns: &Namespace,
    ) -> anyhow::Result<Self> {
        let name = match name {
            Some(name) => name.to_owned(),
            None => free_name()?,
        };
        client::check_name(&name)?;
        clear_stale(&client::runtime_dir()?, is_alive);
        let machine = network.machine(&name, netns)?;
        let instance = Instance::start(&machine, &Options::default())?;
        let path = instance.log().to_owned();
        let log = File::open(&path).ok();
        // All who write to them have opened them.
        for file in [path.clone(), rotated(path)] {
            let _ = fs::remove_file(file);
        }
        Ok(Self {
            instance: Some(instance),
            log,
        })
    }

    /// How it has ended before the command, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.instance.as_mut()?.ended()?;
        self.instance = None;
        let last = self.log.as_ref().map(client::last_words);
        Some(match status.success() {
            true => "the machine was ended".to_owned(),
            false => format!(
                "the machine has ended ({status}){}",
                last.unwrap_or_default()
            ),
        })
    }

    /// Who could touch what, and what passed.
    pub(super) fn findings(&self) -> anyhow::Result<Findings> {
        let instance = self.instance.as_ref().context("the machine has ended")?;
        let status = instance.status()?;
        let driver = status.domains.iter().find(|d| d.program == Program::Driver);
        let driver = driver.context("there is no driver domain")?;
        let of_driver = instance.relay(&driver.name, &Request::Stat)?;
        let of_guest = instance.relay(GUEST, &Request::Stat)?;
        Ok(Findings {
            reach: Reach::of(&status, &instance.grants()?),
            passed: Passed::of(&of_driver, &of_guest),
            up_ms: instance.up_ms().unwrap_or(0.0),
        })
    }

    /// Ends it, with everything that was set up for it.
    pub(super) fn end(self) {
        let Some(instance) = self.instance else {
            return;
        };
        if let Err(error) = instance.down() {
            // The command's status counts, not this.
            output::report(Level::Warning, "grantway", &format!("going down: {error}"));
        }
    }
}

/// Removes logs and sockets for metrics of machines whose `grantway run` was killed while it
/// started them.
fn clear_stale(runtime: &Path, is_alive: impl Fn(u32) -> bool) {
    let entries = fs::read_dir(runtime).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let whose = name.to_str().and_then(|name| name.strip_prefix("run-"));
        let ends = [".log", ".log.1", ".metrics"];
        let of = whose.and_then(|name| ends.iter().find_map(|end| name.strip_suffix(end)));
        let pid = of.and_then(|of| of.split('-').next()?.parse().ok());
        if pid.is_some_and(|pid| !is_alive(pid)) {
            // Somebody else may have been faster.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether there is such a process in the namespace that `/proc` shows.
pub(super) fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// The file that a log is rotated to.
fn rotated(log: PathBuf) -> PathBuf {
    let mut name = log.into_os_string();
    name.push(".1");
    name.into()
}

/// `run-PID`, with a number behind it where another namespace's process of the same number has it.
fn free_name() -> anyhow::Result<String> {
    let name = format!("run-{}", std::process::id());
    let taken = client::listed()?;
    let mut names = std::iter::once(name.clone()).chain((2..).map(|n| format!("{name}-{n}")));
    names
        .find(|name| !taken.contains(name))
        .context("no name is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_the_dead_are_cleared_away_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            "run-1.log",
            "run-2.log",
            "run-2.log.1",
            "run-2.metrics",
            "run-2-2.log",
            "run-2.sock",
            "run-x.log",
            "office.log",
        ];
        for name in names {
            fs::write(folder.path().join(name), "").unwrap();
        }
        clear_stale(folder.path(), |pid| pid == 1);
        let left = fs::read_dir(folder.path()).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["office.log", "run-1.log", "run-2.sock", "run-x.log"]);
    }
}
