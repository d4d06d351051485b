//! The interface of the system on which a domain runs.
//!
//! | part | requirement |
//! |---|---|
//! | connection | read the other end's state and record, set this end's |
//! | doorbell | wake the other end |
//! | window | hold pages of other domains |
//! | control | attach, message and give up devices; report that the domain is ready |
//! | waiting | report pending changes, and sleep without missing a wake-up |
//!
//! [`Platform`] is for control: no method is called per packet. The main loop uses [`Wait`] in
//! every turn, and is generic over it. Neither trait covers grants: `Granter` and `Grants` of `vif`
//! create and access grants, with one implementation per mechanism.
//!
//! The implementations are [`crate::processes`], and threads of one process in `lab/pointers`.

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
    /// Domain at the other end.
    pub domain: DomId,
    /// State of the other end; [`XenbusState::Unknown`] if its domain has exited.
    pub state: XenbusState,
    /// Record of the other end.
    pub record: ConnectRecord,
}

/// A domain's calls to its system, outside the data path. A system without devices uses the default
/// methods for devices.
pub trait Platform: Debug {
    /// Returns the other end of a connection, or `None` if the connection does not exist.
    ///
    /// # Errors
    /// Returns an error if the system cannot determine the other end.
    fn peer(&self, conn: ConnId) -> io::Result<Option<PeerEnd>>;

    /// Sets this end's state and record of a connection, and notifies the other end.
    ///
    /// # Errors
    /// Returns an error if the state transition is invalid, or the connection does not exist.
    fn set_state(&self, conn: ConnId, state: XenbusState, record: &ConnectRecord)
    -> io::Result<()>;

    /// Returns the doorbell of a connection's other end. A new domain at that end has a new
    /// doorbell; the caller must drop the old doorbell first.
    ///
    /// # Errors
    /// Returns an error if the connection does not exist, or its other end has exited.
    fn doorbell(&self, conn: ConnId) -> io::Result<Box<dyn Doorbell>>;

    /// Returns the window into which pages of other domains are mapped. It never changes.
    fn window(&self) -> Area;

    /// Attaches a device of this domain and returns its descriptor. Each device can be attached
    /// once.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::NotFound`] if the device does not exist or was removed, and another
    /// error if the system rejects the call.
    fn attach(&self, _device: u32) -> io::Result<OwnedFd> {
        no_device()
    }

    /// Sends several messages to a device, in one call to the system if possible, and returns each
    /// answer.
    fn device_control_all(&self, _device: u32, all: &[[u64; 2]]) -> Vec<io::Result<u64>> {
        all.iter().map(|_| no_device()).collect()
    }

    /// Sends a message to a device and returns the answer.
    ///
    /// # Errors
    /// Returns an error if the device does not exist, accepts no messages, or rejects this one.
    fn device_control(&self, device: u32, words: [u64; 2]) -> io::Result<u64> {
        let answers = self.device_control_all(device, &[words]);
        let unanswered = || Err(io::ErrorKind::InvalidInput.into());
        answers.into_iter().next().unwrap_or_else(unanswered)
    }

    /// Releases a device permanently. The caller must have closed its descriptor.
    ///
    /// # Errors
    /// Returns an error if the device does not exist, or its descriptor is still open.
    fn end(&self, _device: u32) -> io::Result<()> {
        no_device()
    }

    /// Maps `bytes` bytes of a file from `offset`, shared and writable, and returns the mapped
    /// range. Both numbers must be multiples of the page size. The file may be shorter or become
    /// shorter; pages after its end then fault.
    ///
    /// # Errors
    /// Returns an error if the system does not support mappings, or the region exceeds the domain's
    /// limits.
    fn map_region(&self, _file: BorrowedFd<'_>, _offset: u64, _bytes: u64) -> io::Result<Span> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Unmaps a region, exactly as [`Platform::map_region`] returned it.
    ///
    /// # Errors
    /// Returns an error if the region does not exist.
    fn unmap_region(&self, _region: Span) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Adds a descriptor to those that end a sleep. With `edges` it ends a sleep each time it
    /// becomes readable, otherwise as long as it is readable.
    ///
    /// # Errors
    /// Returns an error if the descriptor does not support waiting.
    fn watch(&self, _fd: BorrowedFd<'_>, _edges: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes a descriptor from those that end a sleep. The caller must do this before it closes
    /// the descriptor, because other processes may have the same file open.
    ///
    /// # Errors
    /// Returns an error if the descriptor could not be added.
    fn unwatch(&self, _fd: BorrowedFd<'_>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns this domain's calls to the system since it started. The list is empty if the system,
    /// not the domain, counts the calls.
    fn hypercall_counts(&self) -> Vec<HypercallCount> {
        Vec::new()
    }

    /// Reports that the domain has started, if the system waits for that.
    ///
    /// # Errors
    /// Returns an error if the system rejects the report.
    fn ready(&self) -> io::Result<()> {
        Ok(())
    }
}

fn no_device<T>() -> io::Result<T> {
    Err(io::ErrorKind::NotFound.into())
}

/// Number of hypercalls of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HypercallCount {
    /// Kind of hypercall.
    pub kind: &'static str,
    /// Number of hypercalls.
    pub calls: u64,
    /// Number of operations in these hypercalls.
    pub operations: u64,
}

/// Wakes the other end of a connection.
pub trait Doorbell: Debug {
    /// Wakes the other end. Costs a system call even if the other end is awake.
    fn ring(&self);

    /// Wakes the other end like [`Doorbell::ring`], and names the rings and the queue if the system
    /// supports that.
    #[inline]
    fn ring_for(&self, _queue: usize, _rings: NotifiedRings) {
        self.ring();
    }
}

/// Changes outside the rings since the last check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingWork {
    /// The state or record at the other end of a connection has changed.
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
    /// The domain's doorbell and devices.
    All,
    /// Only the doorbell, because interrupt moderation currently ignores a device.
    Doorbell,
}

/// Sleeps until work is pending.
///
/// This is the specification of the protocol against lost wake-ups. (1) The domain announces its
/// sleep to every possible waker: to the system with [`Wait::arm`], to peers with the armed words
/// of the event channels and the event indices of the rings. (2) It executes one full fence,
/// [`Wait::fence`]. (3) It checks every source of work once more, the system with
/// [`Wait::has_pending`]. (4) Only then does it sleep, until a doorbell rings or a device is ready.
pub trait Wait: Debug {
    /// Returns and clears the changes since the last call.
    fn pending(&self) -> PendingWork;

    /// Returns whether a connection may have changed since the last call for this connection. The
    /// default is true, so that callers check every connection.
    fn has_changed(&self, _conn: ConnId) -> bool {
        true
    }

    /// Returns whether changes are pending, without clearing them.
    fn has_pending(&self) -> bool;

    /// Reports progress of the main loop to the system.
    fn heartbeat(&self);

    /// Step 1 for the system: enables doorbells.
    fn arm(&self);

    /// Step 2: orders the writes of step 1 before the checks of step 3.
    fn fence(&self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// Disables doorbells, after the check has found work or the sleep is over.
    fn disarm(&self);

    /// Step 4: sleeps until a source in `bell` is ready, or `timeout_ns` nanoseconds have passed.
    /// `None` means no timeout.
    ///
    /// # Errors
    /// Returns an error if waiting for the descriptors fails.
    fn sleep(&self, bell: WakeSource, timeout_ns: Option<u64>) -> io::Result<()>;
}
