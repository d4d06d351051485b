//! Waiting for one of several descriptors.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Waits until one of `sources` has a requested event or an error, for at most `timeout_ns` (unset:
/// forever). Returns the names of the ready sources, in order; empty after the timeout or a signal.
#[must_use]
pub fn wait_for<T: Copy>(
    sources: &[(T, BorrowedFd<'_>, PollFlags)],
    timeout_ns: Option<u64>,
) -> Vec<T> {
    let mut fds: Vec<PollFd<'_>> = sources
        .iter()
        .map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
        .collect();
    // The conversion cannot fail, because any number of nanoseconds fits.
    let timeout = timeout_ns.and_then(|ns| Timespec::try_from(Duration::from_nanos(ns)).ok());
    if poll(&mut fds, timeout.as_ref()).is_err() {
        return Vec::new();
    }
    let ready = sources
        .iter()
        .zip(&fds)
        .filter(|(_, fd)| !fd.revents().is_empty());
    ready.map(|((name, ..), _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::os::fd::AsFd;

    #[test]
    fn ready_sources_are_named() {
        let (empty, _writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (full, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (closed, _) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        let sources = [
            ("full", full.as_fd(), PollFlags::IN),
            ("empty", empty.as_fd(), PollFlags::IN),
            ("closed", closed.as_fd(), PollFlags::empty()),
            ("writable", writer.as_fd(), PollFlags::OUT),
        ];
        assert_eq!(wait_for(&sources, None), ["full", "closed", "writable"]);
        assert!(wait_for(&sources[1..2], Some(1_000_000)).is_empty());
    }
}
