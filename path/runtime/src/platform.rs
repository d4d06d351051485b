//! The system that a domain runs on, as far as a domain sees it.
//!
//! | part | what a domain needs |
//! |---|---|
//! | connection | the other end's state and record are read, this end's are set |
//! | doorbell | how the other end is woken |
//! | window | where pages of other domains appear |
//! | control | devices are attached, told something, ended; the domain says that it is ready |
//! | waiting | what is new, and a sleep that no wake-up misses |
//!
//! [`Platform`] is for control: nothing of it happens once a packet. [`Waiting`] is used by every
//! turn of a main loop, which is generic over it. Grants are no part of either: how pages are
//! granted and reached is `vif`'s `Granter` and `Grants`, one implementation per mechanism.
//!
//! Implementations: [`crate::processes`], and threads of one process in `lab/pointers`.

use abi::{ConnId, DomId, RECORD_BYTES, XenbusState};
use shmem::Area;
use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use vif::events::Rings;

/// A record of a connection: what one end says of itself, encoded by `vif::netif`.
pub type Record = [u8; RECORD_BYTES];

/// The record of an end that has nothing to say.
pub const NO_RECORD: Record = [0; RECORD_BYTES];

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its domain.
    pub domain: DomId,
    /// Its state; [`XenbusState::Unknown`] if its domain is gone.
    pub state: XenbusState,
    /// Its record.
    pub record: Record,
}

/// What a domain asks of its system outside of the data path. A system without devices leaves what
/// is said of devices as it is here.
pub trait Platform: Debug {
    /// The other end of a connection; none if there is no such connection.
    ///
    /// # Errors
    /// The system cannot say.
    fn peer(&self, conn: ConnId) -> io::Result<Option<Peer>>;

    /// Sets this end's state and record of a connection, and tells the other end.
    ///
    /// # Errors
    /// The state cannot follow the one before, or there is no such connection.
    fn set_state(&self, conn: ConnId, state: XenbusState, record: &Record) -> io::Result<()>;

    /// How the other end of a connection is woken. Another domain behind it has another doorbell:
    /// the old one goes first.
    ///
    /// # Errors
    /// There is no such connection, or its other end is gone.
    fn doorbell(&self, conn: ConnId) -> io::Result<Box<dyn Doorbell>>;

    /// Where pages of other domains appear. It does not move.
    fn window(&self) -> Area;

    /// The descriptor of a device of this domain's. Each is attached once.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]: there is no such device, or no more. Others: it is refused.
    fn attach(&self, _device: u32) -> io::Result<OwnedFd> {
        no_device()
    }

    /// Tells a device several things, as one exchange with the system where it can; each answer.
    fn tell_all(&self, _device: u32, all: &[[u64; 2]]) -> Vec<io::Result<u64>> {
        all.iter().map(|_| no_device()).collect()
    }

    /// Tells a device something; its answer.
    ///
    /// # Errors
    /// There is no such device, it can be told nothing, or it refused.
    fn tell(&self, device: u32, words: [u64; 2]) -> io::Result<u64> {
        let told = self.tell_all(device, &[words]);
        let unanswered = || Err(io::ErrorKind::InvalidInput.into());
        told.into_iter().next().unwrap_or_else(unanswered)
    }

    /// Gives a device up for good, after its descriptor was closed.
    ///
    /// # Errors
    /// There is no such device, or the descriptor is still open.
    fn end(&self, _device: u32) -> io::Result<()> {
        no_device()
    }

    /// What this domain has asked the system for since it started, where the system's side does not
    /// count that.
    fn asked(&self) -> Vec<Asked> {
        Vec::new()
    }

    /// Says that the domain has started, where somebody waits for that.
    ///
    /// # Errors
    /// The system refuses.
    fn ready(&self) -> io::Result<()> {
        Ok(())
    }
}

fn no_device<T>() -> io::Result<T> {
    Err(io::ErrorKind::NotFound.into())
}

/// Hypercalls of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The kind.
    pub kind: &'static str,
    /// Hypercalls.
    pub calls: u64,
    /// Operations in them.
    pub operations: u64,
}

/// How the other end of a connection is woken.
pub trait Doorbell: Debug {
    /// Wakes the other end. Cheap where it is awake anyway, but not free: a system call.
    fn ring(&self);

    /// The same, where the other end may be told that it is to look at these rings of this queue
    /// alone.
    #[inline]
    fn ring_for(&self, _queue: usize, _rings: Rings) {
        self.ring();
    }
}

/// What has changed outside the rings since a domain last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// The other end of a connection has another state or record.
    pub connections: bool,
    /// Somebody wants to know something: see [`crate::mailbox`].
    pub requests: bool,
}

impl Pending {
    /// Nothing has changed.
    pub const NONE: Self = Self {
        connections: false,
        requests: false,
    };
}

/// What ends a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bell {
    /// The domain's doorbell and its devices.
    All,
    /// The doorbell alone: a device that moderation keeps for later is ignored.
    Doorbell,
}

/// Sleeping until there is work.
///
/// The protocol against lost wake-ups, written down once: (1) all who may wake this domain are told
/// that it is about to sleep: the system by [`Waiting::arm`], peers by the armed words of the event
/// channels and the event indices of the rings; (2) one full fence, [`Waiting::fence`]; (3) every
/// source of work is looked at once more, the system by [`Waiting::has_pending`]; (4) only then
/// the sleep, which ends when a doorbell rings or a device has something.
pub trait Waiting: Debug {
    /// What is new since the last call.
    fn pending(&self) -> Pending;

    /// Whether a connection has changed since this was asked of it last. A system that does
    /// not say has them all looked at.
    fn has_changed(&self, _conn: ConnId) -> bool {
        true
    }

    /// Whether anything is new, without taking it.
    fn has_pending(&self) -> bool;

    /// Shows the system that the main loop turns, and where.
    fn heartbeat(&self);

    /// Step 1 for the system: it shall ring from now on.
    fn arm(&self);

    /// Step 2. It orders the armed words of step 1 before the looks of step 3.
    fn fence(&self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// The system need not ring any more: there was work after all, or the sleep is over.
    fn disarm(&self);

    /// Step 4: sleeps until one of `bell` rings or `timeout_ns` have passed (none: for ever).
    ///
    /// # Errors
    /// The descriptors cannot be waited for.
    fn sleep(&self, bell: Bell, timeout_ns: Option<u64>) -> io::Result<()>;
}
