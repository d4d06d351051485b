//! Sleeping until there is work.
//!
//! The protocol against lost wake-ups, written down once: (1) whoever may wake us is told that
//! we are about to sleep (the armed words of the event channels and of INFO, the event indices of
//! the rings); (2) one full fence; (3) every source of work is looked at once more; (4) only then
//! the sleep, on the epoll set that holds our eventfd and our devices.

use abi::layout::{fd, info};
use rustix::event::epoll;
use rustix::fd::BorrowedFd;
use rustix::time::Timespec;
use shmem::Span;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

/// Descriptors that one wake-up can report.
const EVENTS: usize = 64;

/// The domain's bed.
#[derive(Debug)]
pub struct Waiter {
    epoll: OwnedFd,
    event: OwnedFd,
    words: Span,
}

impl Waiter {
    /// Takes the descriptors that the domain started with.
    #[must_use]
    pub fn new(epoll: OwnedFd, event: OwnedFd, info: Span) -> Self {
        Self { epoll, event, words: info }
    }

    /// What the monitor has to say since the last call: bits `info::PENDING_*`.
    #[must_use]
    pub fn pending(&self) -> u32 {
        let Some(word) = self.words.u32(info::PENDING) else { return 0 };
        // The plain read keeps the line shared while there is nothing.
        if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) }
    }

    /// Shows the monitor that the main loop turns, and where.
    pub fn heartbeat(&self) {
        if let Some(word) = self.words.u64(info::HEARTBEAT) {
            word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        if let Some(word) = self.words.u32(info::CPU) {
            word.store(shmem::time::cpu(), Ordering::Relaxed);
        }
    }

    /// Step 1 for the monitor: it shall ring from now on.
    pub fn arm(&self) {
        if let Some(word) = self.words.u32(info::ARMED) {
            word.store(1, Ordering::Relaxed);
        }
    }

    /// Step 2.
    pub fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    /// Step 3 for the monitor, and the way back when there was work after all.
    pub fn disarm(&self) {
        if let Some(word) = self.words.u32(info::ARMED) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Step 4: sleeps until a descriptor is ready or `timeout_ns` have passed (none: for ever).
    /// Device numbers that are ready are appended to `ready`.
    ///
    /// # Errors
    /// The epoll set cannot be waited for.
    pub fn sleep(&self, timeout_ns: Option<u64>, ready: &mut Vec<u64>) -> io::Result<()> {
        let timeout = timeout_ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        });
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let (ready_now, _) = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok(done) => done,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for event in ready_now {
            let data = event.data.u64();
            if data == fd::EPOLL_EVENT {
                let mut count = [0; 8];
                // Empty already is as good as emptied now.
                let _ = rustix::io::read(&self.event, &mut count);
            } else {
                ready.push(data);
            }
        }
        Ok(())
    }
}

/// Rings a doorbell. A full one is readable, which is all that ringing is for.
pub fn ring(doorbell: BorrowedFd<'_>) {
    let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
}
