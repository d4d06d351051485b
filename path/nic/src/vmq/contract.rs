//! The interfaces between a NIC with queues, the backend of a guest, and the steering of frames.

use crate::buffer::{Buffer, BufferId};
use crate::frame::Frame;

/// Number of a queue of a NIC, from 0; the shared queue has no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

/// Error of a call. With any error except [`VmqError::Unanswered`], the call has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VmqError {
    /// The queue does not exist or was not allocated.
    #[error("the queue does not exist")]
    NoQueue,
    /// The queue is enabled, and must be disabled first.
    #[error("the queue is enabled")]
    Enabled,
    /// The queue is not enabled.
    #[error("the queue is not enabled")]
    NotEnabled,
    /// The queue may still receive frames for its last MAC.
    #[error("the queue is draining")]
    Draining,
    /// The queue has no MAC.
    #[error("the queue has no MAC")]
    NoMac,
    /// Another queue has the MAC.
    #[error("another queue has the MAC")]
    MacTaken,
    /// The requested number of buffers is 0.
    #[error("a queue needs at least one buffer")]
    NoBuffers,
    /// The NIC's steering agent rejected the change with this errno.
    #[error("steering was rejected (errno {0})")]
    Refused(i32),
    /// The NIC's steering agent has not answered. The change may take effect now, later, or never.
    #[error("steering was not answered")]
    Unanswered,
}

/// The NIC's part of the interface: the thesis's VMQ device driver API.
pub trait Vmq {
    /// Returns the number of allocatable queues (`vmq_avail_queues`).
    fn avail_queues(&self) -> usize;

    /// Allocates a queue for a guest (`vmq_alloc_queue`). Returns `None` if all are taken; the
    /// guest then uses the shared queue.
    fn alloc_queue(&mut self) -> Option<QueueId>;

    /// Frees a queue (`vmq_free_queue`).
    ///
    /// # Errors
    /// Returns an error if it is enabled or draining.
    fn free_queue(&mut self, queue: QueueId) -> Result<(), VmqError>;

    /// Returns the maximum number of buffers that the NIC requests from the backend per poll
    /// (`vmq_get_size`).
    ///
    /// # Errors
    /// Returns an error if the queue does not exist.
    fn size(&self, queue: QueueId) -> Result<usize, VmqError>;

    /// Sets the maximum number of buffers that the NIC requests per poll (`vmq_set_size`).
    ///
    /// # Errors
    /// Returns an error if the queue does not exist, it is enabled, or the number is 0.
    fn set_size(&mut self, queue: QueueId, buffers: usize) -> Result<(), VmqError>;

    /// Sets the queue's MAC (`vmq_set_mac`), which applies from the next [`Vmq::enable_queue`] on.
    ///
    /// # Errors
    /// Returns an error if the queue does not exist, it is enabled or draining, or another queue
    /// has the MAC.
    fn set_mac(&mut self, queue: QueueId, mac: [u8; 6]) -> Result<(), VmqError>;

    /// Sets whether the NIC keeps the first [`SNAPSHOT_MAX`](crate::frame::SNAPSHOT_MAX) bytes of
    /// each frame out of the backend's buffers. These bytes then become the frame's bare header;
    /// the buffer begins with space for them and holds the rest of the frame after that. So a
    /// reader of the buffer cannot see a frame's header before the backend writes it
    /// ([`Frame::undo_split`]). The thesis does not have this call; its section 3.4 names the lack
    /// as a limitation.
    ///
    /// # Errors
    /// Returns an error if the queue does not exist, or is enabled or draining.
    fn split_headers(&mut self, queue: QueueId, split: bool) -> Result<(), VmqError>;

    /// Steers frames for the queue's MAC to the queue (`vmq_enable_queue`). Frames that arrived
    /// earlier stay in the shared queue.
    ///
    /// # Errors
    /// Returns an error if the queue does not exist, is enabled or draining, or has no MAC, or the
    /// steering agent rejected the change. If the agent does not answer, the queue drains, because
    /// frames may still arrive.
    fn enable_queue(&mut self, queue: QueueId) -> Result<(), VmqError>;

    /// Steers frames for the queue's MAC to the shared queue (`vmq_disable_queue`). The queue then
    /// drains: it holds earlier frames, and a few more may arrive. If the steering agent does not
    /// answer, the queue drains at least until the agent answers.
    ///
    /// # Errors
    /// Returns an error if the queue is not enabled, or the steering agent rejected the change.
    fn disable_queue(&mut self, queue: QueueId) -> Result<(), VmqError>;

    /// Takes over all queues from an earlier driver domain, which may have left them in any state.
    /// Steers all frames to the shared queue, and drains every queue. A driver must call this
    /// first.
    ///
    /// # Errors
    /// Returns an error if steering failed. No queue can be allocated until steering succeeds;
    /// [`Vmq::poll`] retries.
    fn recover(&mut self) -> Result<(), VmqError>;

    /// Returns whether the queue may still receive frames for its last MAC.
    fn is_draining(&self, queue: QueueId) -> bool;

    /// Receives up to `budget` frames from an enabled or draining queue, like the handler of the
    /// thesis's queue interrupt. Never blocks. Keeps no buffer of `backend` after the call.
    ///
    /// # Errors
    /// Returns an error if the queue is neither enabled nor draining.
    fn poll(
        &mut self,
        queue: QueueId,
        now_ns: u64,
        budget: usize,
        backend: &mut dyn VmqBackend,
    ) -> Result<usize, VmqError>;

    /// Returns the counters of the queues, by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// Reason why a buffer returns without a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnReason {
    /// The buffer received no frame, and can be posted again.
    Unused,
    /// The buffer's memory is inaccessible.
    Fault,
}

/// The backend's part of the interface, for one queue: the thesis's VMQ virtualization layer API.
pub trait VmqBackend {
    /// Returns the next buffer that the guest has posted (`vmq_alloc_skb`), if any.
    fn alloc(&mut self) -> Option<Buffer>;

    /// Returns a buffer without a frame (`vmq_free_skb`).
    fn free(&mut self, buffer: BufferId, why: ReturnReason);

    /// Delivers a received frame (`vmq_netif_rx`). Its single piece lies in a buffer from
    /// [`VmqBackend::alloc`], and its snapshot is complete.
    fn netif_rx(&mut self, frame: Frame);
}

/// Control over a NIC's mapping of MACs to queues.
pub trait Steering: std::fmt::Debug {
    /// Steers frames for `mac` to `queue`, or to the shared queue if it is `None`.
    /// [`ALL_MACS`](abi::machine::ALL_MACS) means all frames. Returns the number of the change:
    /// frames steered by earlier rules may be in transit until [`Steering::effective`] returns at
    /// least this number. Changes take effect in the order of the calls.
    ///
    /// # Errors
    /// Returns [`VmqError::Refused`] or [`VmqError::Unanswered`].
    fn steer(&mut self, mac: [u8; 6], queue: Option<QueueId>) -> Result<u64, VmqError>;

    /// Returns the number of the last change that is in effect. No frame steered before that change
    /// is still in transit.
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
