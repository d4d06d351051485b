//! Notices from the workers to the main thread.
//!
//! A notice is a set of flags, not a queue of messages: however often a domain repeats an action,
//! the main thread wakes once and finds one flag. So no domain can exhaust memory or keep the main
//! thread busy.

use abi::DomId;
use shmem::lock;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// Reports of one domain's worker since the main thread last took the notices. A notice with no
/// flag set makes the main thread check the domain again: a connection may be up, or a device may
/// have ended.
#[derive(Debug, Default)]
pub(crate) struct Notice {
    /// The features that this system lacks; set once the process exists.
    pub(crate) started: Option<Vec<&'static str>>,
    /// The first reason for which the domain had to be killed.
    pub(crate) killed: Option<String>,
    /// Whether the domain is torn down: the process and its agent have exited, and they use no
    /// grants.
    pub(crate) gone: bool,
}

/// Notices that the main thread has not taken yet.
#[derive(Debug, Default)]
struct NoticeInbox {
    notices: BTreeMap<DomId, Notice>,
    /// Whether the descriptor is readable or is about to become readable.
    is_signalled: bool,
}

/// Both ends of the channel to the main thread.
#[derive(Clone, Debug)]
pub(crate) struct NoticeChannel {
    inbox: Arc<Mutex<NoticeInbox>>,
    wake: Arc<OwnedFd>,
}

impl NoticeChannel {
    /// Creates a channel without notices.
    pub(crate) fn create() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self {
            inbox: Arc::default(),
            wake: Arc::new(wake),
        })
    }

    /// Returns a descriptor that is readable while notices are pending.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Takes all notices, at most one per domain, and makes [`NoticeChannel::fd`] unreadable.
    pub(crate) fn take(&self) -> BTreeMap<DomId, Notice> {
        // Read the descriptor first: a worker that adds a notice in between finds `is_signalled`
        // set, and its notice is taken below.
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        let mut inbox = lock(&self.inbox);
        inbox.is_signalled = false;
        std::mem::take(&mut inbox.notices)
    }

    /// Returns whether a notice of this domain is pending.
    pub(crate) fn refers_to(&self, id: DomId) -> bool {
        let inbox = lock(&self.inbox);
        inbox.notices.contains_key(&id)
    }

    /// Reports why a domain had to be killed, or why its process could not be created.
    pub(crate) fn report_kill(&self, id: DomId, why: String) {
        self.report(id, |notice| {
            notice.killed.get_or_insert(why);
        });
    }

    /// Updates a domain's notice with `add`, and wakes the main thread unless a wake-up is pending.
    pub(crate) fn report(&self, id: DomId, add: impl FnOnce(&mut Notice)) {
        let mut inbox = lock(&self.inbox);
        add(inbox.notices.entry(id).or_default());
        if !std::mem::replace(&mut inbox.is_signalled, true) {
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of wake-ups since the last call.
    fn wakes(notices: &NoticeChannel) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(notices.fd(), &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    #[test]
    fn repeated_notices_of_a_domain_wake_once() {
        let notices = NoticeChannel::create().unwrap();
        for _ in 0..100_000 {
            notices.report(DomId(3), |_| {});
            notices.report(DomId(4), |notice| notice.gone = true);
        }
        assert_eq!(wakes(&notices), 1);
        let taken = notices.take();
        assert_eq!(taken.len(), 2);
        assert!(!taken[&DomId(3)].gone && taken[&DomId(4)].gone);
        assert!(notices.take().is_empty());
    }

    #[test]
    fn the_first_kill_reason_is_kept() {
        let notices = NoticeChannel::create().unwrap();
        notices.report_kill(DomId(1), "killed: one".into());
        notices.report_kill(DomId(1), "killed: two".into());
        let taken = notices.take();
        assert_eq!(taken[&DomId(1)].killed.as_deref(), Some("killed: one"));
        assert_eq!(wakes(&notices), 0);
        notices.report(DomId(1), |notice| notice.gone = true);
        assert_eq!(wakes(&notices), 1);
        assert!(notices.take()[&DomId(1)].gone);
    }
}
