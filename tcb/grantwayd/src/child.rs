//! Helper programs: start, link, pidfd, and restarts.

use abi::core::{BYTES, JOURNAL_VAR, Message, Record};
use link::{Link, LinkError, Received};
use rustix::event::PollFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use shmem::time::monotonic_ns;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Pause before the second of several consecutive starts. It doubles up to [`PAUSE_MAX_NS`].
const PAUSE_MIN_NS: u64 = 10_000_000;
/// Maximum pause between consecutive starts.
const PAUSE_MAX_NS: u64 = 1_000_000_000;
/// Time after which a running helper counts as steady, so that its next restart has the minimum
/// pause.
const STEADY_NS: u64 = 10_000_000_000;
/// Maximum number of unread records. The core kills a helper that leaves more unread.
const OUTBOX_MAX: usize = 4096;

/// One of the two helpers.
#[derive(Debug)]
pub(crate) struct Helper {
    program: PathBuf,
    /// The arguments of the manager, which also inherits standard output; `None` for netd.
    args: Option<Vec<String>>,
    running: Option<RunningChild>,
    /// Number of consecutive short-lived processes.
    in_a_row: u32,
    /// Time of the next start.
    start_ns: u64,
}

#[derive(Debug)]
struct RunningChild {
    child: Child,
    pidfd: OwnedFd,
    since_ns: u64,
    /// The link; `None` after a protocol error.
    link: Option<Link>,
    /// The link on which a protocol error occurred. It may hold further messages, which the core
    /// does not read.
    failed_link: Option<Link>,
    /// Messages that wait until the helper has read earlier ones.
    outbox: VecDeque<([u8; BYTES], Vec<OwnedFd>)>,
}

impl RunningChild {
    fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Sends the queued messages. Returns false if the other end is closed.
    fn flush(&mut self) -> bool {
        while let (Some(link), Some((bytes, fds))) = (&self.link, self.outbox.front()) {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match link.send_bytes(bytes, &fds) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    fn receive<M: Message>(&mut self) -> Result<Option<Received<M>>, LinkError> {
        match self.flush() {
            true => self.link.as_ref().map_or(Ok(None), Link::receive),
            false => Err(LinkError::Closed),
        }
    }
}

impl Helper {
    /// Returns the helper `name` in the folder of the core's program.
    pub(crate) fn new(beside: &Path, name: &str, args: Option<&[String]>) -> Self {
        Self {
            program: beside.join(name),
            args: args.map(<[String]>::to_vec),
            running: None,
            in_a_row: 0,
            start_ns: 0,
        }
    }

    /// Starts the helper. Its standard input is the other end of its link.
    pub(crate) fn start(&mut self, now_ns: u64) -> Result<(), String> {
        let failed = |error: io::Error| format!("{}: {error}", self.program.display());
        let (ours, theirs) = Link::pair().map_err(failed)?;
        let child = Command::new(&self.program)
            .args(self.args.iter().flatten())
            .env_clear()
            // The helper inherits the core's standard error, which may be the journal.
            .envs(std::env::vars_os().filter(|(name, _)| name == JOURNAL_VAR))
            .stdin(OwnedFd::from(theirs))
            .stdout(match self.args {
                Some(_) => Stdio::inherit(),
                None => Stdio::null(),
            })
            .spawn()
            .map_err(failed)?;
        // On failure, the link is closed, and the helper exits.
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        self.running = Some(RunningChild {
            child,
            pidfd: pidfd.map_err(|error| failed(error.into()))?,
            since_ns: now_ns,
            link: Some(ours),
            failed_link: None,
            outbox: VecDeque::new(),
        });
        Ok(())
    }

    /// Restarts the helper if it is due. Returns whether it was started.
    pub(crate) fn restart_if_due(&mut self, now_ns: u64) -> bool {
        let is_due = self.due_ns().is_some_and(|due| now_ns >= due);
        let started = is_due && self.start(now_ns).is_ok();
        if is_due && !started {
            self.ended(now_ns);
        }
        started
    }

    /// Returns the descriptors to poll: the link, with the token `inbox`, and the pidfd, with the
    /// token `ended`.
    pub(crate) fn sources<T>(&self, inbox: T, ended: T) -> Vec<(T, BorrowedFd<'_>, PollFlags)> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, !running.outbox.is_empty());
        let link = running.link.as_ref();
        let link = link.map(|link| (inbox, link.as_fd(), flags));
        let pidfd = (ended, running.pidfd.as_fd(), PollFlags::IN);
        link.into_iter().chain([pidfd]).collect()
    }

    /// Returns whether the helper runs and its link is open.
    pub(crate) fn is_linked(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.link.is_some())
    }

    /// Sends a record, or queues it until the helper reads. Kills a helper that leaves too many
    /// records unread.
    pub(crate) fn send<M: Message>(&mut self, record: &Record<M>, fds: Vec<OwnedFd>) {
        if let Some(running) = &mut self.running {
            running.outbox.push_back((record.encode(), fds));
            if !running.flush() || running.outbox.len() > OUTBOX_MAX {
                running.kill();
            }
        }
    }

    /// Receives the next record, if any. Kills a helper that violates the protocol.
    pub(crate) fn receive<M: Message>(&mut self) -> Option<Received<M>> {
        let running = self.running.as_mut()?;
        running.receive().unwrap_or_else(|error| {
            if !matches!(error, LinkError::Closed) {
                let name = self.program.display();
                eprintln!("grantwayd: {name} was killed: {error}");
            }
            running.failed_link = running.link.take();
            running.kill();
            None
        })
    }

    /// Closes the link, so that the helper exits.
    pub(crate) fn close_link(&mut self) {
        if let Some(running) = &mut self.running {
            running.link = None;
        }
    }

    /// Returns the time of the next start, or `None` while the helper runs.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.running.is_none().then_some(self.start_ns)
    }

    /// Records that the helper has exited or could not be started, and schedules the next start.
    /// Returns the descriptors of messages that were not sent or not read. They may be the last
    /// descriptors of their objects.
    pub(crate) fn ended(&mut self, now_ns: u64) -> Vec<OwnedFd> {
        let mut unsent = Vec::new();
        if let Some(mut running) = self.running.take() {
            let links = [running.link.take(), running.failed_link.take()];
            unsent.extend(links.into_iter().flatten().map(OwnedFd::from));
            unsent.extend(running.outbox.drain(..).flat_map(|(_, fds)| fds));
            if now_ns.saturating_sub(running.since_ns) >= STEADY_NS {
                self.in_a_row = 0;
            }
            // A helper whose link is closed would exit only later.
            running.kill();
            let _ = running.child.wait();
        }
        self.start_ns = now_ns.saturating_add(pause_ns(self.in_a_row));
        self.in_a_row = self.in_a_row.saturating_add(1);
        unsent
    }

    /// Kills the helper. Its pidfd reports the exit.
    pub(crate) fn kill(&self) {
        self.running.iter().for_each(RunningChild::kill);
    }

    /// Waits until `until_ns` for the helper to exit, and then kills it.
    pub(crate) fn end(&mut self, until_ns: u64) {
        if let Some(running) = &self.running {
            let end = ((), running.pidfd.as_fd(), PollFlags::IN);
            let left_ns = until_ns.saturating_sub(monotonic_ns());
            let _ended = link::wait_for(&[end], Some(left_ns));
        }
        self.ended(0);
    }

    /// Returns the helper's process id, or 0 if it does not run.
    pub(crate) fn pid(&self) -> i32 {
        let running = self.running.as_ref();
        running.map_or(0, |running| running.child.id() as i32)
    }

    /// Returns the CPU time of the helper's threads, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> u64 {
        sandbox::cpu_ns(self.pid()).unwrap_or(0)
    }
}

/// Returns the pause before a start that follows `in_a_row` short-lived starts.
fn pause_ns(in_a_row: u32) -> u64 {
    (PAUSE_MIN_NS << in_a_row.min(20)).min(PAUSE_MAX_NS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::core::NetdReply;

    #[test]
    fn pauses_double_up_to_a_second() {
        let ms: Vec<u64> = (0..9).map(|n| pause_ns(n) / 1_000_000).collect();
        assert_eq!(ms, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(pause_ns(u32::MAX), PAUSE_MAX_NS);
    }

    #[test]
    fn an_exited_helper_is_due_after_a_pause() {
        let mut helper = Helper::new(Path::new("/bin"), "true", None);
        assert!(helper.restart_if_due(0));
        assert_eq!((helper.due_ns(), helper.is_linked()), (None, true));
        helper.close_link();
        assert!(!helper.is_linked());
        helper.ended(1);
        assert!(!helper.restart_if_due(PAUSE_MIN_NS));
        assert_eq!(helper.due_ns(), Some(1 + PAUSE_MIN_NS));
        let mut missing = Helper::new(Path::new("/nowhere"), "x", None);
        let error = missing.start(0).unwrap_err();
        assert!(error.starts_with("/nowhere/x: "), "{error}");
    }

    /// The caller must close these descriptors, because closing them may take long.
    #[test]
    fn messages_after_a_protocol_error_are_returned() {
        let mut helper = Helper::new(Path::new("/bin"), "true", None);
        helper.start(0).unwrap();
        let (ours, theirs) = Link::pair().unwrap();
        helper.running.as_mut().unwrap().link = Some(ours);
        theirs.send_bytes(&[0xff; BYTES], &[]).unwrap();
        assert!(helper.receive::<NetdReply>().is_none() && !helper.is_linked());
        let left = helper.ended(0);
        assert_eq!(left.len(), 1, "the link may hold further messages");
        theirs.send_bytes(&[0; BYTES], &[]).unwrap();
    }
}
