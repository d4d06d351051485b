//! Waiting in a domain that is a process. It uses words of the domain's INFO page, and an epoll set
//! with the domain's eventfd and devices. [`crate::platform::Wait`] describes the protocol against
//! lost wake-ups.

use crate::platform::{PendingWork, Wait, WakeSource};
use abi::ConnId;
use abi::layout::{fd, info};
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::time::Timespec;
use shmem::Span;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum number of descriptors reported per wake-up.
const EVENTS: usize = 64;

/// The words and descriptors with which one domain waits.
#[derive(Debug)]
pub struct Waiter {
    epoll: Rc<OwnedFd>,
    event: OwnedFd,
    words: Span,
}

impl Waiter {
    /// Creates the waiter from the descriptors with which the domain started.
    #[must_use]
    pub fn new(epoll: impl Into<Rc<OwnedFd>>, event: OwnedFd, info: Span) -> Self {
        Self {
            epoll: epoll.into(),
            event,
            words: info,
        }
    }
}

impl Wait for Waiter {
    #[inline]
    fn pending(&self) -> PendingWork {
        let Some(word) = self.words.u32(info::PENDING) else {
            return PendingWork::NONE;
        };
        // A plain read keeps the cache line shared while the word is zero.
        if word.load(Ordering::Relaxed) == 0 {
            return PendingWork::NONE;
        }
        let bits = word.swap(0, Ordering::Acquire);
        PendingWork {
            connections: bits & info::PENDING_CONNECT != 0,
            requests: bits & info::PENDING_MAILBOX != 0,
        }
    }

    fn has_changed(&self, conn: ConnId) -> bool {
        let (at, bit) = info::changed(conn.0);
        self.words.u64(at).is_none_or(|word| {
            word.load(Ordering::Relaxed) & bit != 0
                && word.fetch_and(!bit, Ordering::Acquire) & bit != 0
        })
    }

    #[inline]
    fn has_pending(&self) -> bool {
        self.words
            .u32(info::PENDING)
            .is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    #[inline]
    fn heartbeat(&self) {
        if let Some(word) = self.words.u64(info::HEARTBEAT) {
            word.store(
                word.load(Ordering::Relaxed).wrapping_add(1),
                Ordering::Relaxed,
            );
        }
        if let Some(word) = self.words.u32(info::CPU) {
            word.store(shmem::cpu(), Ordering::Relaxed);
        }
    }

    #[inline]
    fn arm(&self) {
        if let Some(word) = self.words.u32(info::ARMED) {
            word.store(1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn disarm(&self) {
        if let Some(word) = self.words.u32(info::ARMED) {
            word.store(0, Ordering::Relaxed);
        }
    }

    fn sleep(&self, bell: WakeSource, timeout_ns: Option<u64>) -> io::Result<()> {
        let timeout = timeout_ns.map(Duration::from_nanos).map(Timespec::try_from);
        let timeout = timeout.transpose().map_err(io::Error::other)?;
        let woken = match bell {
            WakeSource::All => {
                let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
                // A turn checks every source, so the events themselves are ignored. But the
                // doorbell must be emptied: any peer can fill it with one write, and after that no
                // ring of any peer would cause an edge.
                epoll::wait(&self.epoll, &mut events, timeout.as_ref()).map(|(ready, _)| {
                    if ready.iter().any(|e| e.data.u64() == fd::EPOLL_EVENT) {
                        let _ = rustix::io::read(&self.event, &mut [0; 8]);
                    }
                })
            }
            WakeSource::Doorbell => {
                let mut events = [PollFd::new(&self.event, PollFlags::IN)];
                poll(&mut events, timeout.as_ref()).map(|ready| {
                    if ready > 0 {
                        // The doorbell is edge-triggered in the epoll set. This wait instead checks
                        // its value.
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

/// Rings a doorbell. A full doorbell has already rung, and its owner empties it before it sleeps
/// again.
pub(crate) fn ring(doorbell: BorrowedFd<'_>) {
    let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::AsFd;
    use std::time::Instant;

    /// Returns a waiter, and a peer's descriptor of its doorbell.
    fn waiter() -> (Waiter, OwnedFd) {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let event = eventfd(0, flags).unwrap();
        let bell = event.try_clone().unwrap();
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let data = epoll::EventData::new_u64(fd::EPOLL_EVENT);
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, &event, data, edges).unwrap();
        (Waiter::new(set, event, Span::EMPTY), bell)
    }

    /// XSA-332, XSA-391: any number of rings since the last wake-up causes a single wake-up.
    #[test]
    fn attack_10_many_rings_cause_one_wake_up() {
        let (waiter, bell) = waiter();
        for kind in [WakeSource::All, WakeSource::Doorbell] {
            for _ in 0..10_000 {
                ring(bell.as_fd());
            }
            waiter.sleep(kind, None).unwrap();
            let left = rustix::io::read(&waiter.event, &mut [0; 8]);
            assert_eq!(left, Err(Errno::AGAIN), "the doorbell is empty");
            let start = Instant::now();
            waiter.sleep(kind, Some(50_000_000)).unwrap();
            let slept = start.elapsed();
            assert!(
                slept >= Duration::from_millis(50),
                "woken again after {slept:?}"
            );
        }
    }

    /// The last ring of a dead peer wakes the domain only once. Ringing the doorbell of a peer that
    /// no longer reads it succeeds without blocking.
    #[test]
    fn a_dead_peers_doorbell_stays_silent() {
        for kind in [WakeSource::All, WakeSource::Doorbell] {
            let (waiter, bell) = waiter();
            ring(bell.as_fd());
            drop(bell);
            waiter.sleep(kind, None).unwrap();
            let start = Instant::now();
            waiter.sleep(kind, Some(50_000_000)).unwrap();
            let slept = start.elapsed();
            assert!(slept >= Duration::from_millis(50), "woken after {slept:?}");
        }
        let dead = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        rustix::io::write(&dead, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..1000 {
            ring(dead.as_fd());
        }
    }

    /// A timer of a queue or a rate limit fires within 100 µs of its time, unless another task has
    /// the CPU. The test permits ten times as much, once in a hundred sleeps.
    #[test]
    fn a_sleep_may_be_shorter_than_a_millisecond() {
        for kind in [WakeSource::All, WakeSource::Doorbell] {
            let (waiter, _bell) = waiter();
            let sleeps = (0..100).map(|_| {
                let start = Instant::now();
                waiter.sleep(kind, Some(20_000)).unwrap();
                start.elapsed()
            });
            let shortest = sleeps.min().unwrap();
            assert!(shortest >= Duration::from_micros(20), "woken early");
            assert!(shortest < Duration::from_millis(1), "{shortest:?}");
        }
    }

    #[test]
    fn a_full_doorbell_still_wakes() {
        let (waiter, bell) = waiter();
        for _ in 0..3 {
            rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            waiter.sleep(WakeSource::All, None).unwrap();
            let start = Instant::now();
            ring(bell.as_fd());
            waiter.sleep(WakeSource::All, Some(20_000_000_000)).unwrap();
            assert!(start.elapsed() < Duration::from_secs(10), "no wake-up");
        }
    }
}
