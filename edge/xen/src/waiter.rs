//! How the driver sleeps on Xen: an epoll set with the event channels, the xenstore, the mailbox's
//! doorbell and the NICs. The protocol against lost wake-ups is `runtime::platform::Waiting`'s.
//!
//! Nothing is armed here before a sleep: an event channel stays pending until it is taken, and the
//! set reports every descriptor as long as it is readable. Only the rings' event indices are armed.

use crate::dev::Evtchn;
use crate::platform::Xen;
use abi::layout::info;
use runtime::platform::{Bell, Pending, Waiting};
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use shmem::Span;
use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Descriptors that one wake-up can report.
const EVENTS: usize = 64;
/// Turns between two looks at the xenstore while there is always work, so that no sleep looks at
/// it.
const LOOK_EVERY: u32 = 256;

/// What the set knows a descriptor by; a NIC has none of these.
const EVTCHN: u64 = u64::MAX;
const STORE: u64 = u64::MAX - 1;
const MAIL: u64 = u64::MAX - 2;

/// What the driver waits for.
#[derive(Debug)]
pub struct XenWaiter {
    set: OwnedFd,
    xen: Rc<Xen>,
    evtchn: Rc<Evtchn>,
    store: OwnedFd,
    mail: OwnedFd,
    info: Span,
    turns: Cell<u32>,
    /// The xenstore has something.
    store_ready: Cell<bool>,
    /// A control ring may have.
    control_ready: Cell<bool>,
}

impl XenWaiter {
    /// Waits for these, and for `nics`. `store` is a descriptor of the xenstore's device; `info`
    /// has the words of the mailbox, and the descriptor that is returned too rings for it.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new(
        xen: Rc<Xen>,
        evtchn: Rc<Evtchn>,
        store: OwnedFd,
        nics: &[BorrowedFd<'_>],
        info: Span,
    ) -> io::Result<(Self, OwnedFd)> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mail = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let all = [
            (evtchn.as_fd(), EVTCHN),
            (store.as_fd(), STORE),
            (mail.as_fd(), MAIL),
        ];
        let nics = nics.iter().copied().zip(0..);
        for (fd, data) in all.into_iter().chain(nics) {
            let data = epoll::EventData::new_u64(data);
            match epoll::add(&set, fd, data, epoll::EventFlags::IN) {
                // A file is always ready, so there is nothing to wait for.
                Ok(()) | Err(Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let bell = mail.try_clone()?;
        let waiter = Self {
            set,
            xen,
            evtchn,
            store,
            mail,
            info,
            turns: Cell::new(0),
            store_ready: Cell::new(true),
            control_ready: Cell::new(false),
        };
        Ok((waiter, bell))
    }

    /// Whether a request lies in the mailbox.
    fn asked(&self) -> bool {
        let word = self.info.u32(info::PENDING);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & info::PENDING_MAILBOX != 0)
    }

    /// Something of the set is ready.
    fn woken(&self, by: u64) {
        match by {
            EVTCHN => {
                self.evtchn.take();
                self.look_at_control_rings();
            }
            STORE => self.store_ready.set(true),
            MAIL => drop(rustix::io::read(&self.mail, &mut [0; 8])),
            _ => {}
        }
    }

    /// Whether a guest has asked for something by its control ring.
    fn look_at_control_rings(&self) {
        if self.xen.control_rings.have_work() {
            self.control_ready.set(true);
        }
    }

    /// Whether the xenstore has something, asked without waiting.
    fn look(&self) {
        let mut fds = [PollFd::new(&self.store, PollFlags::IN)];
        if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            self.store_ready.set(true);
        }
    }
}

impl Waiting for XenWaiter {
    #[inline]
    fn pending(&self) -> Pending {
        self.turns.set(self.turns.get().wrapping_add(1));
        if self.turns.get().is_multiple_of(LOOK_EVERY) {
            self.look();
            self.look_at_control_rings();
        }
        let requests = self.asked();
        if requests && let Some(word) = self.info.u32(info::PENDING) {
            // Acquire: the request is seen with the bit.
            word.fetch_and(!info::PENDING_MAILBOX, Ordering::Acquire);
        }
        Pending {
            connections: self.store_ready.replace(false)
                | self.control_ready.replace(false)
                | self.xen.has_news(),
            requests,
        }
    }

    fn has_pending(&self) -> bool {
        self.store_ready.get()
            || self.control_ready.get()
            || self.xen.control_rings.have_work()
            || self.xen.has_news()
            || self.asked()
    }

    fn heartbeat(&self) {}

    fn arm(&self) {}

    fn disarm(&self) {}

    fn sleep(&self, bell: Bell, timeout_ns: Option<u64>) -> io::Result<()> {
        let timeout = timeout_ns.map(Duration::from_nanos).map(Timespec::try_from);
        let timeout = timeout.transpose().map_err(io::Error::other)?;
        let woken = match bell {
            Bell::All => {
                let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
                epoll::wait(&self.set, &mut events, timeout.as_ref()).map(|(ready, _)| {
                    ready.iter().for_each(|event| self.woken(event.data.u64()));
                })
            }
            Bell::Doorbell => {
                let fds = [self.evtchn.as_fd(), self.store.as_fd(), self.mail.as_fd()];
                let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
                poll(&mut fds, timeout.as_ref()).map(|_| {
                    for (fd, by) in fds.iter().zip([EVTCHN, STORE, MAIL]) {
                        if fd.revents().contains(PollFlags::IN) {
                            self.woken(by);
                        }
                    }
                })
            }
        };
        match woken {
            Ok(()) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
