//! The driver's sleep on Xen: an epoll set with the event channels, the xenstore, the mailbox's
//! doorbell and the NICs. `runtime::platform::Wait` has the protocol against lost wake-ups.
//!
//! Before a sleep, only the rings' event indices must be armed: an event channel stays pending
//! until its event is taken, and the set reports every descriptor as long as it is readable.

use crate::dev::Evtchn;
use crate::platform::Xen;
use abi::layout::info;
use runtime::platform::{PendingWork, Wait, WakeSource};
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

/// Maximum number of descriptors that one wake-up reports.
const EVENTS: usize = 64;
/// Number of turns between two checks of the xenstore under continuous load, when the driver never
/// sleeps and thus never checks it before a sleep.
const TURNS_PER_CHECK: u32 = 256;

/// Identifiers in the set for descriptors that are not NICs.
const EVTCHN: u64 = u64::MAX;
const STORE: u64 = u64::MAX - 1;
const CONTROL: u64 = u64::MAX - 2;

/// The event sources of the driver.
#[derive(Debug)]
pub struct XenWaiter {
    set: OwnedFd,
    xen: Rc<Xen>,
    evtchn: Rc<Evtchn>,
    store: OwnedFd,
    mail: OwnedFd,
    info: Span,
    turns: Cell<u32>,
    /// Whether the xenstore has a message.
    store_ready: Cell<bool>,
    /// Whether a control ring may have a request.
    control_ready: Cell<bool>,
}

impl XenWaiter {
    /// Creates a waiter for these sources and for `nics`. `store` is a descriptor of the xenstore's
    /// device. `info` has the words of the mailbox; the returned descriptor is its doorbell.
    ///
    /// # Errors
    ///
    /// Returns an error if no descriptors are left.
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
            (mail.as_fd(), CONTROL),
        ];
        let nics = nics.iter().copied().zip(0..);
        for (fd, data) in all.into_iter().chain(nics) {
            let data = epoll::EventData::new_u64(data);
            match epoll::add(&set, fd, data, epoll::EventFlags::IN) {
                // A file is always ready, so waiting for it is unnecessary.
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

    /// Returns whether the mailbox has a request.
    fn asked(&self) -> bool {
        let word = self.info.u32(info::PENDING);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & info::PENDING_MAILBOX != 0)
    }

    /// Handles a descriptor of the set that is ready or has an error.
    ///
    /// # Errors
    /// Returns an error if the ring of the event channel device has overflowed. The device then
    /// reports an error and no events until it is opened again.
    fn woken(&self, by: u64, has_failed: bool) -> Result<(), Errno> {
        match by {
            EVTCHN if has_failed => return Err(Errno::OVERFLOW),
            EVTCHN => {
                self.evtchn.take();
                self.serve_control_rings();
            }
            STORE => self.store_ready.set(true),
            CONTROL => drop(rustix::io::read(&self.mail, &mut [0; 8])),
            _ => {}
        }
        Ok(())
    }

    /// Checks whether a guest has a request on its control ring.
    fn serve_control_rings(&self) {
        if self.xen.control_rings.have_work() {
            self.control_ready.set(true);
        }
    }

    /// Returns whether an interface that changed too often is due to be read.
    fn is_due(&self) -> bool {
        self.xen.due_in_ns() == Some(0)
    }

    /// Checks whether the xenstore has a message, without waiting.
    fn check_store(&self) {
        let mut fds = [PollFd::new(&self.store, PollFlags::IN)];
        if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            self.store_ready.set(true);
        }
    }
}

impl Wait for XenWaiter {
    #[inline]
    fn pending(&self) -> PendingWork {
        self.turns.set(self.turns.get().wrapping_add(1));
        if self.turns.get().is_multiple_of(TURNS_PER_CHECK) {
            self.check_store();
            self.serve_control_rings();
        }
        let requests = self.asked();
        if requests && let Some(word) = self.info.u32(info::PENDING) {
            // Acquire: the request is visible once the bit is.
            word.fetch_and(!info::PENDING_MAILBOX, Ordering::Acquire);
        }
        PendingWork {
            connections: self.store_ready.replace(false)
                | self.control_ready.replace(false)
                | self.xen.has_changes()
                | self.is_due(),
            requests,
        }
    }

    fn has_pending(&self) -> bool {
        self.store_ready.get()
            || self.control_ready.get()
            || self.xen.control_rings.have_work()
            || self.xen.has_changes()
            || self.is_due()
            || self.asked()
    }

    fn heartbeat(&self) {}

    fn arm(&self) {}

    fn disarm(&self) {}

    fn sleep(&self, bell: WakeSource, timeout_ns: Option<u64>) -> io::Result<()> {
        let timeout_ns = timeout_ns.into_iter().chain(self.xen.due_in_ns()).min();
        let timeout = timeout_ns.map(Duration::from_nanos).map(Timespec::try_from);
        let timeout = timeout.transpose().map_err(io::Error::other)?;
        let woken = match bell {
            WakeSource::All => {
                let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
                epoll::wait(&self.set, &mut events, timeout.as_ref()).and_then(|(ready, _)| {
                    ready.iter().try_for_each(|event| {
                        let (by, flags) = (event.data.u64(), event.flags);
                        self.woken(by, flags.contains(epoll::EventFlags::ERR))
                    })
                })
            }
            WakeSource::Doorbell => {
                let fds = [self.evtchn.as_fd(), self.store.as_fd(), self.mail.as_fd()];
                let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
                poll(&mut fds, timeout.as_ref()).and_then(|_| {
                    let ready = fds.iter().zip([EVTCHN, STORE, CONTROL]);
                    let mut ready = ready.filter(|(fd, _)| !fd.revents().is_empty());
                    ready.try_for_each(|(fd, by)| {
                        self.woken(by, fd.revents().contains(PollFlags::ERR))
                    })
                })
            }
        };
        match woken {
            Ok(()) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
