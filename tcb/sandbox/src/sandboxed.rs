//! A running domain and its agent.

use crate::agent::Agent;
use crate::notify::NotifyListener;
use crate::process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use std::os::fd::{AsFd, OwnedFd};

/// How long one [`Sandboxed::kill`] waits for the end.
const KILL_SECONDS: i64 = 2;

/// A started domain. Dropping it kills it, and waits no longer than [`Sandboxed::kill`].
#[derive(Debug)]
pub struct Sandboxed {
    /// The domain's process.
    pub pid: i32,
    /// Its agent's process.
    pub agent_pid: i32,
    /// The pidfd of the domain's process, readable once that has ended. The agent, and with it the
    /// mappings, live on until [`Sandboxed::kill`].
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
    /// Kills domain and agent, which removes everything mapped in their address space. Returns
    /// whether they have ended: a process that the kernel has not ended after 2 s may still access
    /// its mappings; call this again.
    #[must_use]
    pub fn kill(&mut self) -> bool {
        let Some(agent) = &self.agent_pidfd else {
            return true;
        };
        // The agent's end would also end the domain, but more slowly.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let gone = end(agent) && wait_until_over(&self.pidfd);
        if gone {
            self.agent_pidfd = None;
        }
        gone
    }

    /// CPU time of domain and agent in nanoseconds; `None` after their end, when their ids may be
    /// reused.
    #[must_use]
    pub fn cpu_ns(&self) -> Option<[u64; 2]> {
        self.agent_pidfd.as_ref()?;
        Some([self.pid, self.agent_pid].map(|pid| process::cpu_ns(pid).unwrap_or(0)))
    }

    /// Describes how the domain's process ended; `None` while it lives and after
    /// [`Sandboxed::kill`]. Returns "ended" without a reason if the exit code was 0, or if this
    /// process has no rights over the domain's.
    #[must_use]
    pub fn how_it_ended(&self) -> Option<String> {
        self.agent_pidfd.as_ref()?;
        // While its parent, the agent, lives, the process stays in the table with its status.
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
        // An owner that needs the result has called `kill` before.
        let _ = self.kill();
    }
}

/// Kills a child and reaps it. Returns whether it has ended.
pub(crate) fn end(pidfd: &OwnedFd) -> bool {
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
    let gone = wait_until_over(pidfd);
    if gone {
        // A child that was reaped before has no status.
        let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
    }
    gone
}

/// Returns whether the process ends within [`KILL_SECONDS`].
fn wait_until_over(pidfd: &OwnedFd) -> bool {
    let timeout = Timespec {
        tv_sec: KILL_SECONDS,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let over = retry_on_intr(|| poll(&mut fds, Some(&timeout)));
    over.is_ok_and(|ready| ready > 0)
}
