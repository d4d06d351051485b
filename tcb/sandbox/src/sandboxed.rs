//! A running domain and its agent.

use crate::agent::Agent;
use crate::notify::Listener;
use crate::process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use std::os::fd::{AsFd, OwnedFd};

/// How long one [`Sandboxed::kill`] waits for the end.
const KILL_SECONDS: i64 = 2;

/// A domain that was started. Dropping it kills it, but does not wait longer than
/// [`Sandboxed::kill`].
#[derive(Debug)]
pub struct Sandboxed {
    /// The domain's process.
    pub pid: i32,
    /// Its agent's process.
    pub agent_pid: i32,
    /// The domain's process, readable when it has ended. Its agent then still lives and so do its
    /// mappings: kill it.
    pub pidfd: OwnedFd,
    /// Maps and unmaps.
    pub agent: Agent,
    /// Where it asks for descriptors.
    pub attach: Listener,
    /// What this system could not provide, in words.
    pub missing: Vec<&'static str>,
    pub(crate) agent_pidfd: Option<OwnedFd>,
}

impl Sandboxed {
    /// Ends domain and agent, and everything that is mapped in their address space. Whether they
    /// are gone: what the kernel has not let go of after 2 s may still touch what it had mapped,
    /// and is to be asked for again.
    #[must_use]
    pub fn kill(&mut self) -> bool {
        let Some(agent) = &self.agent_pidfd else {
            return true;
        };
        // The agent's end would take the domain along; this spares it the way there.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let gone = end(agent) && wait_until_over(&self.pidfd);
        if gone {
            self.agent_pidfd = None;
        }
        gone
    }

    /// CPU time of domain and agent so far, nanoseconds; none after their end, when their numbers
    /// may be other processes'.
    #[must_use]
    pub fn cpu_ns(&self) -> Option<[u64; 2]> {
        self.agent_pidfd.as_ref()?;
        Some([self.pid, self.agent_pid].map(|pid| process::cpu_ns(pid).unwrap_or(0)))
    }

    /// How the domain's process ended, in words; none while it lives or after [`Sandboxed::kill`].
    /// Only "ended" if that was with code 0, or if we have no rights over the process.
    #[must_use]
    pub fn how_it_ended(&self) -> Option<String> {
        self.agent_pidfd.as_ref()?;
        // While the agent, its parent, lives, the process stays in the table with its status.
        let status = process::exit_status(self.pid)?;
        Some(match libc::WTERMSIG(status) {
            // Also what the kernel says to whom it does not want to tell.
            0 if status == 0 => "ended".into(),
            0 => format!("exited with code {}", libc::WEXITSTATUS(status)),
            libc::SIGSYS => "killed: forbidden system call".into(),
            signal => format!("killed by signal {signal}"),
        })
    }
}

impl Drop for Sandboxed {
    fn drop(&mut self) {
        // Where it matters whether it is gone, `kill` was called before.
        let _ = self.kill();
    }
}

/// Kills a child of ours and takes its exit status, so that it leaves nothing behind; whether it is
/// gone.
pub(crate) fn end(pidfd: &OwnedFd) -> bool {
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
    let gone = wait_until_over(pidfd);
    if gone {
        // Of one that was waited for before there is no status left.
        let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
    }
    gone
}

/// Whether the process has ended, within [`KILL_SECONDS`].
fn wait_until_over(pidfd: &OwnedFd) -> bool {
    let timeout = Timespec {
        tv_sec: KILL_SECONDS,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let over = retry_on_intr(|| poll(&mut fds, Some(&timeout)));
    over.is_ok_and(|ready| ready > 0)
}
