//! The system on which a domain runs, as the domain sees it.
//!
//! | part | requirement |
//! |---|---|
//! | connection | read the other end's state and record, set this end's |
//! | doorbell | wake the other end |
//! | window | hold pages of other domains |
//! | control | attach, message and give up devices; report that the domain is ready |
//! | waiting | report pending changes, and sleep without missing a wake-up |
//!
//! [`Platform`] is for control; no method is called per packet. Every turn of a main loop, which is
//! generic over it, uses [`Wait`]. Neither covers grants: `vif`'s `Granter` and `Grants` create
//! and access them, with one implementation per mechanism.
//!
//! Implementations: [`crate::processes`], and threads of one process in `lab/pointers`.

use abi::{ConnId, DomId, RECORD_BYTES, XenbusState};
use shmem::{Area, Span};
use std::fmt::Debug;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use vif::events::NotifiedRings;

/// A record of a connection: one end's parameters, encoded by `vif::netif`.
pub type ConnectRecord = [u8; RECORD_BYTES];

/// The empty record.
pub const NO_RECORD: ConnectRecord = [0; RECORD_BYTES];

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct PeerEnd {
    /// Its domain.
    pub domain: DomId,
    /// Its state; [`XenbusState::Unknown`] if its domain has exited.
    pub state: XenbusState,
    /// Its record.
    pub record: ConnectRecord,
}

/// A domain's calls to its system, outside of the data path. A system without devices keeps the
/// default methods for devices.
pub trait Platform: Debug {
    /// Returns the other end of a connection, or `None` if the connection does not exist.
    ///
    /// # Errors
    /// The system cannot determine it.
    fn peer(&self, conn: ConnId) -> io::Result<Option<PeerEnd>>;

    /// Sets this end's state and record of a connection, and notifies the other end.
    ///
    /// # Errors
    /// The state transition is invalid, or the connection does not exist.
    fn set_state(&self, conn: ConnId, state: XenbusState, record: &ConnectRecord)
    -> io::Result<()>;

    /// Returns the doorbell of a connection's other end. A new domain at that end has a new
    /// doorbell; the caller must drop the old one first.
    ///
    /// # Errors
    /// The connection does not exist, or its other end has exited.
    fn doorbell(&self, conn: ConnId) -> io::Result<Box<dyn Doorbell>>;

    /// Returns the window in which pages of other domains appear. It never changes.
    fn window(&self) -> Area;

    /// Attaches a device of this domain and returns its descriptor. A device can be attached once.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]: the device does not exist or has been removed. Other errors:
    /// the system rejects it.
    fn attach(&self, _device: u32) -> io::Result<OwnedFd> {
        no_device()
    }

    /// Sends several messages to a device, in one exchange with the system if possible; returns
    /// each answer.
    fn device_control_all(&self, _device: u32, all: &[[u64; 2]]) -> Vec<io::Result<u64>> {
        all.iter().map(|_| no_device()).collect()
    }

    /// Sends a message to a device and returns the answer.
    ///
    /// # Errors
    /// The device does not exist, accepts no messages, or rejects this one.
    fn device_control(&self, device: u32, words: [u64; 2]) -> io::Result<u64> {
        let answers = self.device_control_all(device, &[words]);
        let unanswered = || Err(io::ErrorKind::InvalidInput.into());
        answers.into_iter().next().unwrap_or_else(unanswered)
    }

    /// Gives up a device permanently, after its descriptor has been closed.
    ///
    /// # Errors
    /// The device does not exist, or its descriptor is still open.
    fn end(&self, _device: u32) -> io::Result<()> {
        no_device()
    }

    /// Maps `bytes` bytes of a file starting at `offset`, shared and writable, and returns the
    /// mapped range. Both numbers are multiples of the page size. The file may be shorter or become
    /// shorter; pages behind its end then fault.
    ///
    /// # Errors
    /// The system maps nothing, or the region exceeds the domain's bounds.
    fn map_region(&self, _file: BorrowedFd<'_>, _offset: u64, _bytes: u64) -> io::Result<Span> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Unmaps a region, exactly as [`Platform::map_region`] returned it.
    ///
    /// # Errors
    /// The region does not exist.
    fn unmap_region(&self, _region: Span) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Adds a descriptor to those that end a sleep: with `edges` each time it becomes readable,
    /// otherwise as long as it is readable.
    ///
    /// # Errors
    /// The descriptor does not support waiting.
    fn watch(&self, _fd: BorrowedFd<'_>, _edges: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes a descriptor from those that end a sleep. Callers do this before they close it,
    /// because others may hold the same open file.
    ///
    /// # Errors
    /// The descriptor was not added.
    fn unwatch(&self, _fd: BorrowedFd<'_>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns this domain's calls to the system since it started. Empty if the system itself
    /// counts them.
    fn hypercall_counts(&self) -> Vec<HypercallCount> {
        Vec::new()
    }

    /// Reports that the domain has started, if the system waits for that.
    ///
    /// # Errors
    /// The system rejects the report.
    fn ready(&self) -> io::Result<()> {
        Ok(())
    }
}

fn no_device<T>() -> io::Result<T> {
    Err(io::ErrorKind::NotFound.into())
}

/// Count of hypercalls of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HypercallCount {
    /// The kind.
    pub kind: &'static str,
    /// Hypercalls.
    pub calls: u64,
    /// Operations in them.
    pub operations: u64,
}

/// Wakes the other end of a connection.
pub trait Doorbell: Debug {
    /// Wakes the other end. Costs a system call even if the other end is awake.
    fn ring(&self);

    /// Like [`Doorbell::ring`], for systems that can name the rings and the queue to the other end.
    #[inline]
    fn ring_for(&self, _queue: usize, _rings: NotifiedRings) {
        self.ring();
    }
}

/// Changes outside the rings since the last check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingWork {
    /// The other end of a connection has another state or record.
    pub connections: bool,
    /// A request is pending: see [`crate::mailbox`].
    pub requests: bool,
}

impl PendingWork {
    /// Nothing has changed.
    pub const NONE: Self = Self {
        connections: false,
        requests: false,
    };
}

/// Events that end a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeSource {
    /// The domain's doorbell and its devices.
    All,
    /// Only the doorbell: moderation ignores a device for now.
    Doorbell,
}

/// Sleep until there is work.
///
/// This is the specification of the protocol against lost wake-ups. (1) The domain informs every
/// possible waker that it is about to sleep: the system by [`Wait::arm`], peers by the armed
/// words of the event channels and the event indices of the rings. (2) It executes one full fence,
/// [`Wait::fence`]. (3) It checks every source of work once more, the system by
/// [`Wait::has_pending`]. (4) Only then it sleeps, until a doorbell rings or a device is ready.
pub trait Wait: Debug {
    /// Returns and clears the changes since the last call.
    fn pending(&self) -> PendingWork;

    /// Returns whether a connection may have changed since the last call for it. The default is
    /// true, so that callers check every connection.
    fn has_changed(&self, _conn: ConnId) -> bool {
        true
    }

    /// Returns whether changes are pending, without clearing them.
    fn has_pending(&self) -> bool;

    /// Reports progress of the main loop to the system.
    fn heartbeat(&self);

    /// Step 1 for the system: requests doorbells.
    fn arm(&self);

    /// Step 2: orders the armed words of step 1 before the checks of step 3.
    fn fence(&self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// Disables doorbells: there was work after all, or the sleep is over.
    fn disarm(&self);

    /// Step 4: sleeps until one of `bell` rings or `timeout_ns` have passed (`None`: no timeout).
    ///
    /// # Errors
    /// Waiting for the descriptors fails.
    fn sleep(&self, bell: WakeSource, timeout_ns: Option<u64>) -> io::Result<()>;
}
