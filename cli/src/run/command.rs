//! Runs the command from its start to its exit.

use super::exit;
use super::machine::CommandMachine;
use super::namespaces::Namespaces;
use super::pid1::Pid1Spec;
use super::signals::{self, Signals};
use crate::output;
use abi::journal::Level;
use anyhow::Context;
use netdev::netns::Namespace;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::UnshareFlags;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;
use tool::Failure;

/// Interval between checks that the machine still runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// An event of the command or the machine.
enum RunEvent {
    /// The first process runs.
    Started(Pid1),
    /// The first process has exited.
    Ended(anyhow::Result<ExitStatus>),
    /// A signal for the command.
    Signal(Signal),
}

/// The first process of the command's namespaces.
struct Pid1 {
    pid: u32,
    pidfd: OwnedFd,
}

impl Pid1 {
    fn forward_signal(&self, signal: Signal) {
        signals::wait_until_caught(self.pid, signal);
        // The process may have exited already.
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }
}

/// Runs the command in `netns` until it exits. Returns its exit status.
pub(super) fn run(
    netns: &Namespace,
    pid1: &Pid1Spec,
    command: &[OsString],
    mut signals: Signals,
    machine: &mut CommandMachine,
    namespaces: &Namespaces,
) -> anyhow::Result<u8> {
    let mut pid1 = pid1.command(command)?;
    for hidden in namespaces.hidden() {
        pid1.env_remove(hidden);
    }
    let (events, happened) = channel();
    let handle = signals.handle();
    thread::scope(|scope| {
        let of_command = events.clone();
        scope.spawn(move || {
            let ended = netns.enter(|| run_to_exit(&mut pid1, &of_command));
            let ended = ended.map_err(anyhow::Error::from).and_then(|ended| ended);
            // The receiver exists, because it waits for this event.
            let _ = of_command.send(RunEvent::Ended(ended));
        });
        scope.spawn(move || {
            for signal in signals::signals_to_forward(&mut signals) {
                let _ = events.send(RunEvent::Signal(signal));
            }
        });
        let status = watch(&happened, machine);
        handle.close();
        status
    })
}

/// Starts the first process in new namespaces and waits for it. The first process exits when this
/// thread, its parent, exits.
fn run_to_exit(pid1: &mut Command, events: &Sender<RunEvent>) -> anyhow::Result<ExitStatus> {
    unshare().map_err(|e| {
        Failure::CannotRun(format!(
            "cannot create namespaces for the command's processes and mounts ({e})"
        ))
    })?;
    let mut child = pid1.spawn().context("start the command")?;
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    // The receiver exists until this function returns.
    let _ = events.send(RunEvent::Started(Pid1 {
        pid: child.id(),
        pidfd: pidfd.context("watch the command")?,
    }));
    child.wait().context("wait for the command")
}

/// Moves the future children of this thread to a new PID namespace and a new mount namespace.
#[expect(
    deprecated,
    reason = "only the flag FILES, not passed here, makes the call unsafe"
)]
fn unshare() -> rustix::io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWNS | UnshareFlags::NEWPID)
}

fn watch(happened: &Receiver<RunEvent>, machine: &mut CommandMachine) -> anyhow::Result<u8> {
    let mut pid1: Option<Pid1> = None;
    let mut early = Vec::new();
    loop {
        match happened.recv_timeout(CHECK_INTERVAL) {
            Ok(RunEvent::Started(started)) => {
                early
                    .drain(..)
                    .for_each(|signal| started.forward_signal(signal));
                pid1 = Some(started);
            }
            Ok(RunEvent::Signal(signal)) => match &pid1 {
                Some(pid1) => pid1.forward_signal(signal),
                None => early.push(signal),
            },
            Ok(RunEvent::Ended(ended)) => return Ok(exit::status(ended?)),
            Err(RecvTimeoutError::Timeout) => {
                // The signal is sent once, and only if the first process exists.
                if let Some(pid1) = &pid1
                    && let Some(why) = machine.ended()
                {
                    output::report(Level::Warning, "grantway", &why);
                    // A closed terminal causes the same signal.
                    pid1.forward_signal(Signal::HUP);
                }
            }
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("the command's thread has ended"),
        }
    }
}
