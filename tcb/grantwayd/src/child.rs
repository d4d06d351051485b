//! A helper program: started, watched by its pidfd, and started again when it has ended.

use abi::core::JOURNAL_VAR;
use link::Link;
use rustix::event::PollFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Display, Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The pause before a second start in a row …
const PAUSE_MIN_NS: u64 = 10_000_000;
/// … and the longest one.
const PAUSE_MAX_NS: u64 = 1_000_000_000;
/// A helper that ran for so long has started well.
const STEADY_NS: u64 = 10_000_000_000;

/// One of the two helpers.
#[derive(Debug)]
pub(crate) struct Helper {
    program: PathBuf,
    /// Whether it prints the first line.
    prints: bool,
    running: Option<Running>,
    /// Starts in a row that ended soon.
    in_a_row: u32,
    /// When to start it again.
    start_ns: u64,
}

#[derive(Debug)]
struct Running {
    child: Child,
    pidfd: OwnedFd,
    since_ns: u64,
}

impl Helper {
    /// The program `name`, beside our own.
    pub(crate) fn new(beside: &Path, name: &str, prints: bool) -> Self {
        Self {
            program: beside.join(name),
            prints,
            running: None,
            in_a_row: 0,
            start_ns: 0,
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> Display<'_> {
        self.program.display()
    }

    /// Starts it; our end of the link to it, whose other end is its standard input.
    pub(crate) fn start(&mut self, now_ns: u64) -> Result<Link, String> {
        let failed = |error: io::Error| format!("{}: {error}", self.program.display());
        let (ours, theirs) = Link::pair().map_err(failed)?;
        let child = Command::new(&self.program)
            .env_clear()
            // Theirs is our standard error, and what it is.
            .envs(std::env::vars_os().filter(|(name, _)| name == JOURNAL_VAR))
            .stdin(OwnedFd::from(theirs))
            .stdout(if self.prints {
                Stdio::inherit()
            } else {
                Stdio::null()
            })
            .spawn()
            .map_err(failed)?;
        // Without it its link closes: it ends.
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        self.running = Some(Running {
            child,
            pidfd: pidfd.map_err(|error| failed(error.into()))?,
            since_ns: now_ns,
        });
        Ok(ours)
    }

    /// Readable when it has ended; none while it is not there.
    pub(crate) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|running| running.pidfd.as_fd())
    }

    /// When it is to be started; none while it runs.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.running.is_none().then_some(self.start_ns)
    }

    /// It has ended, or could not be started: when it is started again follows from how often that
    /// was so.
    pub(crate) fn ended(&mut self, now_ns: u64) {
        if let Some(mut running) = self.running.take() {
            if now_ns.saturating_sub(running.since_ns) >= STEADY_NS {
                self.in_a_row = 0;
            }
            // A helper whose link is closed ends soon by itself; it is ended at once.
            let _ = pidfd_send_signal(&running.pidfd, Signal::KILL);
            let _ = running.child.wait();
        }
        self.start_ns = now_ns.saturating_add(pause_ns(self.in_a_row));
        self.in_a_row = self.in_a_row.saturating_add(1);
    }

    /// Ends it, whatever it does: it is seen by its pidfd.
    pub(crate) fn kill(&self) {
        if let Some(running) = &self.running {
            let _ = pidfd_send_signal(&running.pidfd, Signal::KILL);
        }
    }

    /// Waits until it has ended by itself, then no longer than `limit`.
    pub(crate) fn end(&mut self, limit: Duration) {
        let Some(mut running) = self.running.take() else {
            return;
        };
        let end = ((), running.pidfd.as_fd(), PollFlags::IN);
        let _ended = link::wait_for(&[end], Some(limit.as_nanos() as u64));
        let _ = pidfd_send_signal(&running.pidfd, Signal::KILL);
        let _ = running.child.wait();
    }

    /// CPU time of its threads, nanoseconds.
    pub(crate) fn cpu_ns(&self) -> u64 {
        let running = self.running.as_ref();
        let cpu_ns = running.and_then(|running| sandbox::cpu_ns(running.child.id() as i32));
        cpu_ns.unwrap_or(0)
    }
}

/// The pause before a start, after so many in a row that ended soon.
fn pause_ns(in_a_row: u32) -> u64 {
    (PAUSE_MIN_NS << in_a_row.min(20)).min(PAUSE_MAX_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second() {
        let ms: Vec<u64> = (0..9).map(|n| pause_ns(n) / 1_000_000).collect();
        assert_eq!(ms, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(pause_ns(u32::MAX), PAUSE_MAX_NS);
    }

    #[test]
    fn a_helper_that_ends_is_due_after_a_pause() {
        let mut helper = Helper::new(Path::new("/bin"), "true", false);
        let link = helper.start(0).unwrap();
        assert_eq!(helper.due_ns(), None);
        drop(link);
        helper.ended(1);
        assert_eq!(helper.due_ns(), Some(1 + PAUSE_MIN_NS));
        let mut missing = Helper::new(Path::new("/nowhere"), "x", false);
        let error = missing.start(0).unwrap_err();
        assert!(error.starts_with("/nowhere/x: "), "{error}");
    }
}
