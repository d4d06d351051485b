//! The way of the workers' notices to the main thread.
//!
//! What a domain can cause is a mark, not a message: however often it does it, the main thread is
//! woken once and finds one mark. So no domain can fill memory or keep the main thread busy.

use abi::DomId;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// What the worker of one domain has to tell, all since it was last heard. One without a mark: a
/// connection of the domain's may be up, or a device may have ended, and who waits for that looks
/// again.
#[derive(Debug, Default)]
pub(crate) struct Notice {
    /// Its process is there; what this system could not provide.
    pub(crate) started: Option<Vec<&'static str>>,
    /// The domain had to be killed; why first.
    pub(crate) killed: Option<String>,
    /// Domain and agent are gone and every use that they made has ended.
    pub(crate) gone: bool,
}

/// Notices that were not heard yet.
#[derive(Debug, Default)]
struct Inbox {
    notices: BTreeMap<DomId, Notice>,
    /// The descriptor is readable, or about to be read.
    rung: bool,
}

/// Both ends of the way to the main thread.
#[derive(Clone, Debug)]
pub(crate) struct Post {
    inbox: Arc<Mutex<Inbox>>,
    wake: Arc<OwnedFd>,
}

impl Post {
    /// A way without notices.
    pub(crate) fn create() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self {
            inbox: Arc::default(),
            wake: Arc::new(wake),
        })
    }

    /// Readable while there are notices.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Takes all notices, at most one of each domain, and makes [`Post::fd`] unreadable.
    pub(crate) fn hear(&self) -> BTreeMap<DomId, Notice> {
        // Read first: who adds a notice in between finds `rung` set, and it is taken below.
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.rung = false;
        std::mem::take(&mut inbox.notices)
    }

    /// Whether something of a domain was not heard yet.
    pub(crate) fn names(&self, id: DomId) -> bool {
        let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.notices.contains_key(&id)
    }

    /// A domain had to be killed, or its process could not be made: why, in words.
    pub(crate) fn killed(&self, id: DomId, why: String) {
        self.tell(id, |notice| {
            notice.killed.get_or_insert(why);
        });
    }

    /// Adds to what is to be told of a domain, and wakes the main thread unless it is on its way.
    pub(crate) fn tell(&self, id: DomId, add: impl FnOnce(&mut Notice)) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        add(inbox.notices.entry(id).or_default());
        if !std::mem::replace(&mut inbox.rung, true) {
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often the main thread was woken since this was last asked.
    fn wakes(post: &Post) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(post.fd(), &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    #[test]
    fn however_often_a_domain_says_something_it_is_told_once() {
        let post = Post::create().unwrap();
        for _ in 0..100_000 {
            post.tell(DomId(3), |_| {});
            post.tell(DomId(4), |notice| notice.gone = true);
        }
        assert_eq!(wakes(&post), 1);
        let heard = post.hear();
        assert_eq!(heard.len(), 2);
        assert!(!heard[&DomId(3)].gone && heard[&DomId(4)].gone);
        assert!(post.hear().is_empty());
    }

    #[test]
    fn who_was_heard_wakes_again_and_the_first_reason_stays() {
        let post = Post::create().unwrap();
        post.killed(DomId(1), "killed: one".into());
        post.killed(DomId(1), "killed: two".into());
        let heard = post.hear();
        assert_eq!(heard[&DomId(1)].killed.as_deref(), Some("killed: one"));
        assert_eq!(wakes(&post), 0);
        post.tell(DomId(1), |notice| notice.gone = true);
        assert_eq!(wakes(&post), 1);
        assert!(post.hear()[&DomId(1)].gone);
    }
}
