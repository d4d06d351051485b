//! A running domain and its agent.

use crate::agent::Agent;
use crate::notify::NotifyListener;
use crate::process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use std::os::fd::{AsFd, OwnedFd};

/// The time for which [`Sandboxed::kill`] waits for the exit.
const KILL_SECONDS: i64 = 2;

/// A started domain. Dropping it kills the domain, and waits no longer than [`Sandboxed::kill`].
#[derive(Debug)]
pub struct Sandboxed {
    /// The domain's process.
    pub pid: i32,
    /// Its agent's process.
    pub agent_pid: i32,
    /// The pidfd of the domain's process, readable once the process has exited. The agent, and so
    /// the mappings, exist until [`Sandboxed::kill`].
    pub pidfd: OwnedFd,
    /// The agent, which maps and unmaps pages.
    pub agent: Agent,
    /// The listener of its attach calls.
    pub attach: NotifyListener,
    /// Features that this system lacks.
    pub missing: Vec<&'static str>,
    pub(crate) agent_pidfd: Option<OwnedFd>,
}

impl Sandboxed {
    /// Kills domain and agent, which removes all mappings of their address space. Returns false if
    /// one of them has not exited after 2 s. It may then still access its mappings, so call this
    /// again.
    #[must_use]
    pub fn kill(&mut self) -> bool {
        let Some(agent) = &self.agent_pidfd else {
            return true;
        };
        // The agent's exit would also kill the domain, but more slowly.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let has_exited = kill_and_reap(agent) && wait_for_exit(&self.pidfd);
        if has_exited {
            self.agent_pidfd = None;
        }
        has_exited
    }

    /// Returns the CPU time of domain and agent in nanoseconds, or `None` after their exit, when
    /// their ids may be reused.
    #[must_use]
    pub fn cpu_ns(&self) -> Option<[u64; 2]> {
        self.agent_pidfd.as_ref()?;
        Some([self.pid, self.agent_pid].map(|pid| process::cpu_ns(pid).unwrap_or(0)))
    }

    /// Returns how the domain's process exited, or `None` while it is alive and after
    /// [`Sandboxed::kill`]. Returns "ended" without a reason if the exit code was 0, or if this
    /// process has no rights over the domain's process.
    #[must_use]
    pub fn exit_description(&self) -> Option<String> {
        self.agent_pidfd.as_ref()?;
        // While its parent, the agent, is alive, the exited process remains in the process table
        // with its status.
        let status = process::exit_status(self.pid)?;
        Some(match libc::WTERMSIG(status) {
            // The kernel also reports 0 to a caller without rights.
            0 if status == 0 => "ended".into(),
            0 => format!("exited with code {}", libc::WEXITSTATUS(status)),
            libc::SIGSYS => "killed: forbidden system call".into(),
            signal => format!("killed by signal {signal}"),
        })
    }
}

impl Drop for Sandboxed {
    fn drop(&mut self) {
        // An owner that needs the result has already called `kill`.
        let _ = self.kill();
    }
}

/// Kills a child and reaps it. Returns whether it has exited.
pub(crate) fn kill_and_reap(pidfd: &OwnedFd) -> bool {
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
    let has_exited = wait_for_exit(pidfd);
    if has_exited {
        // A child that was already reaped has no status.
        let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
    }
    has_exited
}

/// Waits for up to [`KILL_SECONDS`] until the process exits. Returns whether it has exited.
fn wait_for_exit(pidfd: &OwnedFd) -> bool {
    let timeout = Timespec {
        tv_sec: KILL_SECONDS,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let polled = retry_on_intr(|| poll(&mut fds, Some(&timeout)));
    polled.is_ok_and(|ready| ready > 0)
}
