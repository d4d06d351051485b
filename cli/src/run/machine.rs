//! The machine that connects the command: either a machine that starts and stops with the command,
//! or a running machine, to which the command is attached. Only this module distinguishes the two.

use super::RunArgs;
use super::netns_holder::NetnsHolder;
use super::network::{GUEST, IFNAME, RunNetwork};
use super::report::{StartFindings, TrafficTotals};
use crate::live::AttachArgs;
use crate::{output, restore};
use abi::journal::Level;
use abi::machine::Program;
use anyhow::Context;
use client::{DriverAccess, Instance, StartOptions};
use netdev::netns::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use tool::Failure;

/// The machine that connects the command.
pub(super) struct CommandMachine {
    /// The running instance; `None` after it has stopped.
    instance: Option<Instance>,
    ownership: Ownership,
}

/// The owner of the machine.
enum Ownership {
    /// The command's machine, with its log, which is already unlinked and therefore cannot remain
    /// on disk.
    Own(Option<File>),
    /// A machine that was already running.
    Shared {
        /// The core's process, which exits when the machine stops.
        core: OwnedFd,
        /// The command's name as a guest.
        guest: String,
        /// Keeps the command's namespace visible to the machine.
        _netns_holder: NetnsHolder,
        /// Duration of the attachment, milliseconds.
        took_ms: f64,
    },
}

impl CommandMachine {
    /// Starts a machine for the command. Returns when the command's interface exists and carries
    /// packets.
    pub(super) fn start(
        name: Option<&str>,
        network: &RunNetwork,
        netns: &Namespace,
    ) -> anyhow::Result<Self> {
        let name = match name {
            Some(name) => name.to_owned(),
            None => free_name()?,
        };
        client::check_name(&name)?;
        clear_stale(&client::runtime_dir()?, is_alive);
        restore::restore_dead_machines();
        let config = network.config(&name, netns);
        restore::warn_of_rules(&config);
        let options = StartOptions {
            host: restore::note(&config)?,
            ..StartOptions::default()
        };
        let machine = config.machine().context("the machine for the command")?;
        let started = Instance::start(&machine, &options);
        if let Err(error) = &started {
            restore::restore_dead_machines();
            // This error contains the reason. Other errors refer to the log, so the log is kept for
            // them.
            if matches!(error, client::Error::Start { .. }) {
                remove_log(client::runtime_dir()?.join(format!("{name}.log")));
            }
        }
        let instance = started?;
        let log = File::open(instance.log()).ok();
        // The log's writers have opened it, so it can be unlinked.
        remove_log(instance.log().to_owned());
        Ok(Self {
            instance: Some(instance),
            ownership: Ownership::Own(log),
        })
    }

    /// Attaches the command to a running machine. Returns when its interface carries packets.
    pub(super) fn attach(
        instance: Instance,
        args: &RunArgs,
        netns: &Namespace,
    ) -> anyhow::Result<Self> {
        let core = instance.visible_core_pid()?.ok_or_else(|| {
            let text = format!(
                "the machine {} runs in a PID namespace that this process cannot see: run the \
                 command there",
                instance.name()
            );
            Failure::CannotRun(text)
        })?;
        let core = i32::try_from(core).ok().and_then(Pid::from_raw);
        let core = core.context("the process id of the core is invalid")?;
        let core = pidfd_open(core, PidfdFlags::empty()).context("watch the machine")?;
        let guest = match &args.guest {
            Some(name) => name.clone(),
            None => format!("run-{}", std::process::id()),
        };
        let network = match args.ip {
            Some(_) => None,
            None => Some(args.network.clone().unwrap_or_default()),
        };
        let netns_holder = NetnsHolder::new(netns).context("a thread for the network namespace")?;
        let attach = AttachArgs {
            guest: guest.clone(),
            netns: Some(netns_holder.path()),
            addresses: args.ip.into_iter().collect(),
            network,
            gateway: args.gateway,
            mtu: Some(args.mtu),
            ifname: Some(IFNAME.to_owned()),
            ..AttachArgs::default()
        };
        let attached = instance.attach(attach.section()?);
        let attached = attached.map_err(output::refused)?;
        for warning in attached.warnings.iter().filter(|_| !args.quiet) {
            output::warn(warning);
        }
        Ok(Self {
            instance: Some(instance),
            ownership: Ownership::Shared {
                core,
                guest,
                _netns_holder: netns_holder,
                took_ms: attached.took_ns as f64 / 1e6,
            },
        })
    }

    /// Returns the folder of the machine's control socket.
    pub(super) fn folder(&self) -> Option<PathBuf> {
        let folder = self.instance.as_ref()?.socket().parent();
        folder.map(Path::to_owned)
    }

    /// Returns the reason of the machine's stop if the machine stopped before the command exited.
    pub(super) fn ended(&mut self) -> Option<String> {
        let instance = self.instance.as_mut()?;
        let how = match &self.ownership {
            Ownership::Own(log) => {
                let status = instance.ended()?;
                let last = log.as_ref().map(client::last_log_line);
                match status.success() {
                    true => "the machine was ended".to_owned(),
                    false => format!(
                        "the machine has ended ({status}){}",
                        last.unwrap_or_default()
                    ),
                }
            }
            Ownership::Shared { core, .. } if has_ended(core) => "the machine has ended".to_owned(),
            Ownership::Shared { .. } => return None,
        };
        if matches!(self.ownership, Ownership::Own(_)) {
            restore::restore_dead_machines();
        }
        self.instance = None;
        Some(how)
    }

    /// Returns the driver domain's access and the traffic.
    pub(super) fn findings(&self) -> anyhow::Result<StartFindings> {
        let instance = self.instance.as_ref().context("the machine has ended")?;
        let status = instance.status()?;
        let drivers = status.domains.iter();
        let drivers = drivers.filter(|d| d.program == Program::Driver);
        let stat = |domain: &str| instance.stat(domain);
        let drivers: Result<Vec<_>, _> = drivers.map(|driver| stat(&driver.name)).collect();
        let (guest, is_attached, up_ms) = match &self.ownership {
            Ownership::Own(_) => (GUEST, false, instance.up_ms().unwrap_or(0.0)),
            Ownership::Shared { guest, took_ms, .. } => (guest.as_str(), true, *took_ms),
        };
        Ok(StartFindings {
            access: DriverAccess::of(&status, &instance.grants()?),
            totals: TrafficTotals::of(&drivers?, (guest, &stat(guest)?), is_attached),
            up_ms,
        })
    }

    /// Ends the command's machine and removes everything set up for it, or detaches the command.
    pub(super) fn end(self) {
        let Some(instance) = self.instance else {
            return;
        };
        let (what, ended) = match &self.ownership {
            Ownership::Own(_) => ("going down", instance.down()),
            Ownership::Shared { guest, .. } => ("leaving", instance.detach(guest).map(drop)),
        };
        if let Err(error) = ended {
            // The error is only reported, because the command's exit status takes precedence.
            output::report(Level::Warning, "grantway", &format!("{what}: {error}"));
        }
        if matches!(self.ownership, Ownership::Own(_)) {
            restore::restore_dead_machines();
        }
    }
}

/// Returns whether a process has exited.
fn has_ended(process: &OwnedFd) -> bool {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    poll(&mut ended, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Removes the logs and metrics sockets of machines whose `grantway run` was killed during the
/// start.
fn clear_stale(runtime: &Path, is_alive: impl Fn(u32) -> bool) {
    let entries = fs::read_dir(runtime).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix("run-"));
        let ends = [".log", ".log.1", ".metrics"];
        let of = owner.and_then(|name| ends.iter().find_map(|end| name.strip_suffix(end)));
        let pid = of.and_then(|of| of.split('-').next()?.parse().ok());
        if pid.is_some_and(|pid| !is_alive(pid)) {
            // Another process may have removed it first.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns whether a process with this id exists in the namespace that `/proc` shows.
fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Removes a log and its rotated file.
fn remove_log(log: PathBuf) {
    for file in [log.clone(), rotated(log)] {
        let _ = fs::remove_file(file);
    }
}

/// Returns the path to which a log is rotated.
fn rotated(log: PathBuf) -> PathBuf {
    let mut name = log.into_os_string();
    name.push(".1");
    name.into()
}

/// Returns `run-PID`, with a number appended if a process of another namespace uses that name.
fn free_name() -> anyhow::Result<String> {
    let name = format!("run-{}", std::process::id());
    let taken = client::listed_instances()?;
    let mut names = std::iter::once(name.clone()).chain((2..).map(|n| format!("{name}-{n}")));
    names
        .find(|name| !taken.contains(name))
        .context("no name is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_logs_of_dead_machines_are_removed() {
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
