//! The machine that the command is behind: one of the command's own, which comes with the command
//! and goes with it, or one that runs already, to which it is attached. Only this module knows
//! which.

use super::RunArgs;
use super::anchor::Anchor;
use super::network::{GUEST, IFNAME, Network};
use super::report::{Findings, Passed};
use crate::live::Newcomer;
use crate::{output, restore};
use abi::journal::Level;
use abi::machine::Program;
use abi::mailbox::Request;
use anyhow::Context;
use client::{Instance, Options, Reach};
use figures::Failure;
use netdev::netns::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What the command is behind.
pub(super) struct Behind {
    /// None: it has ended.
    instance: Option<Instance>,
    whose: Whose,
}

/// Whose machine it is.
enum Whose {
    /// The command's; its log, without a name already, so that nothing stays behind.
    Commands(Option<File>),
    /// Somebody else's.
    Others {
        /// The core: what it stands for ends with the machine.
        core: OwnedFd,
        /// The guest that the command is there.
        guest: String,
        /// Where that finds its namespace.
        _anchor: Anchor,
        /// How long it took to come, milliseconds.
        took_ms: f64,
    },
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
        restore::take_back();
        let config = network.config(&name, netns);
        restore::warn_of_rules(&config);
        let options = Options {
            host: restore::note(&config)?,
            ..Options::default()
        };
        let machine = config.machine().context("the machine for the command")?;
        let started = Instance::start(&machine, &options);
        if started.is_err() {
            restore::take_back();
        }
        let instance = started?;
        let path = instance.log().to_owned();
        let log = File::open(&path).ok();
        // All who write to them have opened them.
        for file in [path.clone(), rotated(path)] {
            let _ = fs::remove_file(file);
        }
        Ok(Self {
            instance: Some(instance),
            whose: Whose::Commands(log),
        })
    }

    /// The same with a machine that runs already.
    pub(super) fn attach(
        instance: Instance,
        args: &RunArgs,
        netns: &Namespace,
    ) -> anyhow::Result<Self> {
        let core = instance.core_seen()?.ok_or_else(|| {
            let text = format!(
                "the machine {} runs in a PID namespace that is not to be seen from here: run the \
                 command there",
                instance.name()
            );
            Failure::CannotRun(text)
        })?;
        let core = i32::try_from(core).ok().and_then(Pid::from_raw);
        let core = core.context("the core's number")?;
        let core = pidfd_open(core, PidfdFlags::empty()).context("watch the machine")?;
        let guest = match &args.guest {
            Some(name) => name.clone(),
            None => format!("run-{}", std::process::id()),
        };
        let network = match args.ip {
            Some(_) => None,
            None => Some(args.network.clone().unwrap_or_default()),
        };
        let anchor = Anchor::new(netns).context("a thread for the network namespace")?;
        let newcomer = Newcomer {
            guest: guest.clone(),
            netns: Some(anchor.path()),
            addresses: args.ip.into_iter().collect(),
            network,
            gateway: args.gateway,
            mtu: Some(args.mtu),
            ifname: Some(IFNAME.to_owned()),
            ..Newcomer::default()
        };
        let attached = instance.attach(newcomer.section()?);
        let attached = attached.map_err(output::refused)?;
        for warning in attached.warnings.iter().filter(|_| !args.quiet) {
            output::warn(warning);
        }
        Ok(Self {
            instance: Some(instance),
            whose: Whose::Others {
                core,
                guest,
                _anchor: anchor,
                took_ms: attached.took_ns as f64 / 1e6,
            },
        })
    }

    /// The folder of its control socket.
    pub(super) fn folder(&self) -> Option<PathBuf> {
        let folder = self.instance.as_ref()?.socket().parent();
        folder.map(Path::to_owned)
    }

    /// How it has ended before the command, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        let instance = self.instance.as_mut()?;
        let how = match &self.whose {
            Whose::Commands(log) => {
                let status = instance.ended()?;
                let last = log.as_ref().map(client::last_words);
                match status.success() {
                    true => "the machine was ended".to_owned(),
                    false => format!(
                        "the machine has ended ({status}){}",
                        last.unwrap_or_default()
                    ),
                }
            }
            Whose::Others { core, .. } if has_ended(core) => "the machine has ended".to_owned(),
            Whose::Others { .. } => return None,
        };
        if matches!(self.whose, Whose::Commands(_)) {
            restore::take_back();
        }
        self.instance = None;
        Some(how)
    }

    /// Who could touch what, and what passed.
    pub(super) fn findings(&self) -> anyhow::Result<Findings> {
        let instance = self.instance.as_ref().context("the machine has ended")?;
        let status = instance.status()?;
        let drivers = status.domains.iter();
        let drivers = drivers.filter(|d| d.program == Program::Driver);
        let stat = |domain: &str| instance.relay(domain, &Request::Stat);
        let drivers: Result<Vec<_>, _> = drivers.map(|driver| stat(&driver.name)).collect();
        let (guest, is_attached, up_ms) = match &self.whose {
            Whose::Commands(_) => (GUEST, false, instance.up_ms().unwrap_or(0.0)),
            Whose::Others { guest, took_ms, .. } => (guest.as_str(), true, *took_ms),
        };
        Ok(Findings {
            reach: Reach::of(&status, &instance.grants()?),
            passed: Passed::of(&drivers?, (guest, &stat(guest)?), is_attached),
            up_ms,
        })
    }

    /// Ends it, with everything that was set up for it; or the command leaves it.
    pub(super) fn end(self) {
        let Some(instance) = self.instance else {
            return;
        };
        let (what, ended) = match &self.whose {
            Whose::Commands(_) => ("going down", instance.down()),
            Whose::Others { guest, .. } => ("leaving", instance.detach(guest).map(drop)),
        };
        if let Err(error) = ended {
            // The command's status counts, not this.
            output::report(Level::Warning, "grantway", &format!("{what}: {error}"));
        }
        if matches!(self.whose, Whose::Commands(_)) {
            restore::take_back();
        }
    }
}

/// Whether a process has ended.
fn has_ended(process: &OwnedFd) -> bool {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    poll(&mut ended, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
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
fn is_alive(pid: u32) -> bool {
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
