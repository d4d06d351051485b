//! The calls between a NIC with queues, the backend of a guest, and the steering of frames.

use crate::buffer::{Buffer, BufferId};
use crate::frame::Frame;

/// A queue of a NIC, 0 … n-1; the shared queue has no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

/// Why a call was refused. But for the last, nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VmqError {
    /// There is no such queue, or it was not allocated.
    #[error("there is no such queue")]
    NoQueue,
    /// The queue is enabled, and has to be disabled first.
    #[error("the queue is enabled")]
    Enabled,
    /// The queue is not enabled.
    #[error("the queue is not enabled")]
    NotEnabled,
    /// The queue may still yield frames to its last MAC.
    #[error("the queue still drains")]
    Draining,
    /// The queue was given no MAC.
    #[error("the queue has no MAC")]
    NoMac,
    /// Another queue has the MAC.
    #[error("another queue has the MAC")]
    MacTaken,
    /// A queue holds at least one buffer.
    #[error("a queue of no buffers")]
    NoBuffers,
    /// The side that steers for the NIC refused, with this errno.
    #[error("steering was refused (errno {0})")]
    Refused(i32),
    /// The side that steers for the NIC has not answered: the change is made now, later, or never.
    #[error("steering was not answered")]
    Unanswered,
}

/// The NIC's half: what the thesis calls the VMQ device driver API.
pub trait Vmq {
    /// Queues that can be allocated now (`vmq_avail_queues`).
    fn avail_queues(&self) -> usize;

    /// Allocates a queue for a guest (`vmq_alloc_queue`); none: all are taken, and the guest uses
    /// the shared queue.
    fn alloc_queue(&mut self) -> Option<QueueId>;

    /// Gives a queue back (`vmq_free_queue`).
    ///
    /// # Errors
    /// It is enabled or drains.
    fn free_queue(&mut self, queue: QueueId) -> Result<(), VmqError>;

    /// The most buffers that the NIC asks the backend for at a time (`vmq_get_size`).
    ///
    /// # Errors
    /// There is no such queue.
    fn size(&self, queue: QueueId) -> Result<usize, VmqError>;

    /// Sets that number (`vmq_set_size`).
    ///
    /// # Errors
    /// There is no such queue, it is enabled, or the number is 0.
    fn set_size(&mut self, queue: QueueId, buffers: usize) -> Result<(), VmqError>;

    /// Says whose frames the queue is for (`vmq_set_mac`), from the next [`Vmq::enable_queue`] on.
    ///
    /// # Errors
    /// There is no such queue, it is enabled or drains, or another queue has the MAC.
    fn set_mac(&mut self, queue: QueueId, mac: [u8; 6]) -> Result<(), VmqError>;

    /// Whether the first [`SNAPSHOT`](crate::frame::SNAPSHOT) bytes of each frame are kept out of
    /// the backend's buffers: they become the frame's bare header, and the buffer holds only the
    /// rest, behind room for them. So no reader of the buffer sees a frame's header before the
    /// backend has put it there ([`Frame::put_header_back`]). Not one of the thesis's calls: its
    /// section 3.4 names the lack of this as a limitation.
    ///
    /// # Errors
    /// There is no such queue, it is enabled or drains.
    fn split_headers(&mut self, queue: QueueId, split: bool) -> Result<(), VmqError>;

    /// From now on frames to the queue's MAC go to the queue (`vmq_enable_queue`). Those that came
    /// before are in the shared queue.
    ///
    /// # Errors
    /// There is no such queue, it is enabled or drains, it has no MAC, or steering was refused. If
    /// steering was not answered the queue drains, for frames may come all the same.
    fn enable_queue(&mut self, queue: QueueId) -> Result<(), VmqError>;

    /// From now on frames to the queue's MAC go to the shared queue (`vmq_disable_queue`). Those
    /// that came before are in the queue, and a few may still arrive there: it drains, and where
    /// steering is not answered, until it is.
    ///
    /// # Errors
    /// The queue is not enabled, or steering was refused.
    fn disable_queue(&mut self, queue: QueueId) -> Result<(), VmqError>;

    /// Recovers all queues from an earlier driver domain, in any state: from now on all frames go
    /// to the shared queue, and every queue drains. A driver calls this first.
    ///
    /// # Errors
    /// They could not be steered yet. No queue is handed out until they could: [`Vmq::poll`] tries.
    fn recover(&mut self) -> Result<(), VmqError>;

    /// Whether the queue may still yield frames to its last MAC.
    fn is_draining(&self, queue: QueueId) -> bool;

    /// Takes up to `budget` frames out of an enabled or draining queue: what the interrupt of the
    /// queue does in the thesis. Never blocks. No buffer of `backend` is kept after the call.
    ///
    /// # Errors
    /// The queue is neither enabled nor drains.
    fn poll(
        &mut self,
        queue: QueueId,
        now_ns: u64,
        budget: usize,
        backend: &mut dyn Backend,
    ) -> Result<usize, VmqError>;

    /// Counters of the queues' own, by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// Why a buffer comes back without a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// No frame came for it: it can be posted again.
    Unused,
    /// It could not be written: its memory is not there.
    Fault,
}

/// The backend's half, for one queue at a time: what the thesis calls the VMQ virtualization layer
/// API.
pub trait Backend {
    /// The next buffer of the guest's to be posted (`vmq_alloc_skb`); none: the guest has posted no
    /// more.
    fn alloc(&mut self) -> Option<Buffer>;

    /// A buffer comes back without a frame (`vmq_free_skb`).
    fn free(&mut self, buffer: BufferId, why: Freed);

    /// A frame has come (`vmq_netif_rx`): its one piece lies in a buffer of [`Backend::alloc`], its
    /// snapshot is made.
    fn netif_rx(&mut self, frame: Frame);
}

/// Tells the NIC which MAC belongs to which queue.
pub trait Steering: std::fmt::Debug {
    /// From now on frames to `mac` choose `queue` (none: the shared one, and with
    /// [`EVERY_MAC`](abi::machine::EVERY_MAC) all frames do). Frames that chose before may be on
    /// their way until [`Steering::effective`] has reached the number that this returns. Changes
    /// are made in the order in which they were asked for.
    ///
    /// # Errors
    /// [`VmqError::Refused`], [`VmqError::Unanswered`].
    fn steer(&mut self, mac: [u8; 6], queue: Option<QueueId>) -> Result<u64, VmqError>;

    /// The number of the last change after which no earlier choice is on its way any more.
    fn effective(&mut self) -> u64;
}

impl<S: Steering + ?Sized> Steering for Box<S> {
    fn steer(&mut self, mac: [u8; 6], queue: Option<QueueId>) -> Result<u64, VmqError> {
        (**self).steer(mac, queue)
    }

    fn effective(&mut self) -> u64 {
        (**self).effective()
    }
}
