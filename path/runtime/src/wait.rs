//! Sleeping until there is work.
//!
//! The protocol against lost wake-ups, written down once: (1) whoever may wake us is told that
//! we are about to sleep (the armed words of the event channels and of INFO, the event indices of
//! the rings); (2) one full fence; (3) every source of work is looked at once more; (4) only then
//! the sleep, on the epoll set that holds our eventfd and our devices.

use abi::layout::{fd, info};
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
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
        Self {
            epoll,
            event,
            words: info,
        }
    }

    /// What the monitor has to say since the last call: bits `info::PENDING_*`.
    #[must_use]
    pub fn pending(&self) -> u32 {
        let Some(word) = self.words.u32(info::PENDING) else {
            return 0;
        };
        // The plain read keeps the line shared while there is nothing.
        if word.load(Ordering::Relaxed) == 0 {
            0
        } else {
            word.swap(0, Ordering::Acquire)
        }
    }

    /// Whether the monitor has something to say, without taking it.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.words
            .u32(info::PENDING)
            .is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Shows the monitor that the main loop turns, and where.
    pub fn heartbeat(&self) {
        if let Some(word) = self.words.u64(info::HEARTBEAT) {
            word.store(
                word.load(Ordering::Relaxed).wrapping_add(1),
                Ordering::Relaxed,
            );
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

    /// Step 4: sleeps until one of `bell` rings or `timeout_ns` have passed (none: for ever).
    ///
    /// # Errors
    /// The descriptors cannot be waited for.
    pub fn sleep(&self, bell: Bell, timeout_ns: Option<u64>) -> io::Result<()> {
        let timeout = timeout_ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        });
        let woken = match bell {
            Bell::All => {
                let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
                // What has happened is found by looking everywhere: a turn does so anyway. But the
                // doorbell must be emptied: anybody who has it can fill it up with one write, and
                // then no further ring, of nobody, would make an edge.
                epoll::wait(&self.epoll, &mut events, timeout.as_ref()).map(|(ready, _)| {
                    if ready.iter().any(|e| e.data.u64() == fd::EPOLL_EVENT) {
                        let _ = rustix::io::read(&self.event, &mut [0; 8]);
                    }
                })
            }
            Bell::Doorbell => {
                let mut events = [PollFd::new(&self.event, PollFlags::IN)];
                poll(&mut events, timeout.as_ref()).map(|ready| {
                    if ready > 0 {
                        // In the epoll set it counts by edges, here by what it holds.
                        let _ = rustix::io::read(&self.event, &mut [0; 8]);
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

/// What ends a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bell {
    /// The domain's doorbell and its devices.
    All,
    /// The doorbell alone: a device that moderation keeps for later is ignored.
    Doorbell,
}

/// Rings a doorbell. A full one has rung already: its owner empties it before it sleeps again.
pub fn ring(doorbell: BorrowedFd<'_>) {
    let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    #[test]
    fn a_doorbell_that_a_peer_has_filled_up_still_wakes() {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let event = eventfd(0, flags).unwrap();
        let bell = event.try_clone().unwrap();
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let data = epoll::EventData::new_u64(fd::EPOLL_EVENT);
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, &event, data, edges).unwrap();
        let waiter = Waiter::new(set, event, Span::EMPTY);
        for _ in 0..3 {
            rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            waiter.sleep(Bell::All, None).unwrap();
            let start = Instant::now();
            ring(bell.as_fd());
            waiter.sleep(Bell::All, Some(20_000_000_000)).unwrap();
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "nobody was woken"
            );
        }
    }
}
