//! The way of the workers' notices to the main thread.

use abi::DomId;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What a worker has to tell the main thread.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The domain says that it has started.
    Ready(DomId),
    /// The domain has written a record of a connection.
    Connection,
    /// The domain has done with a device.
    DeviceEnded(DomId, u64),
    /// The domain had to be killed.
    Killed(DomId, String),
    /// Domain and agent are gone and every use that they made has ended.
    Gone(DomId),
}

/// The workers' end of the way to the main thread.
#[derive(Clone, Debug)]
pub(crate) struct Post {
    sender: Sender<Notice>,
    wake: Arc<OwnedFd>,
}

impl Post {
    /// A way, and its other end.
    pub(crate) fn create() -> io::Result<(Self, Receiver<Notice>)> {
        use rustix::event::{EventfdFlags, eventfd};
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let (sender, receiver) = channel();
        Ok((
            Self {
                sender,
                wake: Arc::new(wake),
            },
            receiver,
        ))
    }

    /// Readable while there are notices.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes [`Post::fd`] unreadable; take the notices afterwards.
    pub(crate) fn hear(&self) {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
    }

    /// A domain had to be killed.
    pub(crate) fn killed(&self, id: DomId, why: &str) {
        self.send(Notice::Killed(id, format!("killed: {why}")));
    }

    pub(crate) fn send(&self, notice: Notice) {
        // The receiver is gone when the monitor ends.
        let _ = self.sender.send(notice);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}
