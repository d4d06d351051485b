//! From the command's start to its end.

use super::exit;
use super::first::Spec;
use super::home::Home;
use super::machine::Behind;
use super::signals::{self, Signals};
use crate::output;
use abi::journal::Level;
use anyhow::Context;
use figures::Failure;
use netdev::netns::Namespace;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::UnshareFlags;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// How often it is looked whether the machine is still there.
const LOOK: Duration = Duration::from_millis(250);

/// What happens.
enum Event {
    /// The first process runs.
    Started(First),
    /// It has ended.
    Ended(anyhow::Result<ExitStatus>),
    /// A signal for the command.
    Signal(Signal),
}

/// The first process.
struct First {
    pid: u32,
    pidfd: OwnedFd,
}

impl First {
    fn hand_on(&self, signal: Signal) {
        signals::wait_until_caught(self.pid, signal);
        // It may have ended just now.
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }
}

/// Runs the command in `netns` to its end; its exit status.
pub(super) fn run(
    netns: &Namespace,
    first: &Spec,
    command: &[OsString],
    mut signals: Signals,
    machine: &mut Behind,
    home: &Home,
) -> anyhow::Result<u8> {
    let mut first = first.command(command)?;
    for hidden in home.hidden() {
        first.env_remove(hidden);
    }
    let (events, happened) = channel();
    let handle = signals.handle();
    thread::scope(|scope| {
        let of_command = events.clone();
        scope.spawn(move || {
            let ended = netns.enter(|| to_its_end(&mut first, &of_command));
            let ended = ended.map_err(anyhow::Error::from).and_then(|ended| ended);
            // Who waits for it is there until it comes.
            let _ = of_command.send(Event::Ended(ended));
        });
        scope.spawn(move || {
            for signal in signals::to_hand_on(&mut signals) {
                let _ = events.send(Event::Signal(signal));
            }
        });
        let status = watch(&happened, machine);
        handle.close();
        status
    })
}

/// Starts the first process in new namespaces, and waits for it. This thread is the parent whose
/// end that one does not outlive.
fn to_its_end(first: &mut Command, events: &Sender<Event>) -> anyhow::Result<ExitStatus> {
    unshare().map_err(|e| {
        Failure::CannotRun(format!(
            "namespaces for the command's processes and mounts cannot be made here ({e})"
        ))
    })?;
    let mut child = first.spawn().context("start the command")?;
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    // Who reads it is there until this returns.
    let _ = events.send(Event::Started(First {
        pid: child.id(),
        pidfd: pidfd.context("watch the command")?,
    }));
    child.wait().context("wait for the command")
}

/// The thread's children are in a process namespace and a mount namespace of their own.
#[expect(
    deprecated,
    reason = "only the flag FILES, not passed here, makes the call unsafe"
)]
fn unshare() -> rustix::io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWNS | UnshareFlags::NEWPID)
}

fn watch(happened: &Receiver<Event>, machine: &mut Behind) -> anyhow::Result<u8> {
    let mut first: Option<First> = None;
    let mut early = Vec::new();
    loop {
        match happened.recv_timeout(LOOK) {
            Ok(Event::Started(started)) => {
                early.drain(..).for_each(|signal| started.hand_on(signal));
                first = Some(started);
            }
            Ok(Event::Signal(signal)) => match &first {
                Some(first) => first.hand_on(signal),
                None => early.push(signal),
            },
            Ok(Event::Ended(ended)) => return Ok(exit::status(ended?)),
            Err(RecvTimeoutError::Timeout) => {
                // It is told once: not before there is somebody to hang up.
                if let Some(first) = &first
                    && let Some(why) = machine.ended()
                {
                    output::report(Level::Warning, "grantway", &why);
                    // As a terminal that is gone.
                    first.hand_on(Signal::HUP);
                }
            }
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("nobody waits for the command"),
        }
    }
}
