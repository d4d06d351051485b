//! The interface of a kind of PCI network device, with registers and two queues.

use crate::buffer::Buffer;
use crate::dma::addr::IoAddr;
use crate::dma::chunks::Chunk;
use crate::dma::pci::setup::PciSetup;
use crate::dma::queue::{DmaError, QueueName};
use crate::frame::Frame;
use crate::offload::Offload;
use shmem::{Fault, Span};
use std::fmt::Debug;

/// Maximum duration of each step of a reset.
pub(super) const RESET_NS: u64 = 100_000_000;

/// Reason why a device cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartupError {
    /// The registers are inaccessible.
    #[error("the device's registers are not accessible")]
    Registers,
    /// The device does not report that its reset is complete.
    #[error("the device does not complete its reset")]
    Reset,
    /// The device lacks a required feature.
    #[error(
        "the device lacks the feature {0}: with QEMU write \
         disable-legacy=on,iommu_platform=on"
    )]
    Feature(&'static str),
    /// The device rejects features that it has offered.
    #[error("the device rejects features that it has offered")]
    Rejects,
    /// A queue does not exist or has unsuitable properties.
    #[error("the device has no usable {0}")]
    Queue(QueueName),
    /// The memory is too small for the queues.
    #[error("the queues do not fit their memory")]
    Memory,
}

/// Reason why a NIC is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The device violates the rules of a queue.
    #[error(transparent)]
    Queue(#[from] DmaError),
    /// The device has failed, for example because it could not access memory.
    #[error("the device has failed and needs a reset")]
    NeedsReset,
    /// The device has stopped without a request, for example because it has reset itself.
    #[error("the device has stopped by itself")]
    Stopped,
    /// The registers are inaccessible.
    #[error("the device's registers are not accessible")]
    Registers,
}

impl From<Fault> for StartupError {
    fn from(_: Fault) -> Self {
        Self::Registers
    }
}

impl From<Fault> for CloseReason {
    fn from(_: Fault) -> Self {
        Self::Registers
    }
}

/// A received buffer.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// The buffer.
    pub buffer: Buffer,
    /// The frame's length, without the device's header, and its offloads. `None` if the buffer does
    /// not hold a whole frame, or the header is invalid.
    pub frame: Option<(usize, Offload)>,
}

/// Memory and I/O addresses of the two queues, [`super::setup::queue_bytes`] each.
#[derive(Clone, Copy, Debug)]
pub struct QueueMemory {
    /// Memory and I/O address of the receive queue.
    pub receive: (Span, IoAddr),
    /// Memory and I/O address of the transmit queue.
    pub transmit: (Span, IoAddr),
}

/// A device with one receive queue and one transmit queue. The driver posts buffers and frames in
/// order, but the device may return them in any order that its kind permits.
pub trait PciDevice: Debug + Sized {
    /// Access to the device's registers.
    type Registers: Clone + Debug;
    /// The header that precedes each frame.
    type Header: AsRef<[u8]>;
    /// Progress of a reset.
    type Reset: Debug + Default;

    /// Minimum length in bytes of a frame that the device can send.
    const SHORTEST: usize;
    /// Whether the device counts the frames that it loses.
    const COUNTS_MISSED: bool;

    /// Continues a reset. The first call of a reset passes the default progress. Returns whether
    /// the reset is complete; if not, the caller repeats the call soon. After an error, a new reset
    /// again begins with the default progress.
    ///
    /// # Errors
    /// Returns an error if the registers are inaccessible, or the reset takes too long.
    fn reset(
        registers: &Self::Registers,
        reset: &mut Self::Reset,
        now_ns: u64,
    ) -> Result<bool, StartupError>;

    /// Starts a device that was reset, with empty queues.
    ///
    /// # Errors
    /// Returns an error if the device is unsuitable or violates its specification.
    fn start(
        registers: Self::Registers,
        setup: &PciSetup,
        memory: QueueMemory,
    ) -> Result<Self, StartupError>;

    /// Stops the device, and passes the posted buffers to `buffer` and the posted chunks to
    /// `chunk`. A device that does not stop can still access only the memory that was mapped for
    /// it.
    fn stop(&mut self, buffer: &mut dyn FnMut(Buffer), chunk: &mut dyn FnMut(u32));

    /// Reads the device's status. Returns the number of frames that the device has lost since the
    /// last call, or 0 if it does not count them.
    ///
    /// # Errors
    /// Returns an error if the device has failed.
    fn check(&mut self) -> Result<u32, CloseReason>;

    /// Returns whether the device completes the checksums of sent frames.
    fn has_checksum(&self) -> bool;

    /// Returns the number of buffers that can be posted.
    fn free_receive_entries(&self) -> usize;

    /// Returns the number of posted buffers.
    fn posted(&self) -> usize;

    /// Posts a buffer; the device sees it after [`PciDevice::publish_buffers`].
    ///
    /// # Errors
    /// Returns the buffer if the queue is full or the buffer is unsuitable.
    fn post(&mut self, buffer: Buffer, address: IoAddr) -> Result<(), Buffer>;

    /// Publishes all posted buffers to the device.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    fn publish_buffers(&mut self) -> Result<(), DmaError>;

    /// Takes the next received buffer.
    ///
    /// # Errors
    /// Returns an error if the device violates the rules of the queue. The buffer then stays
    /// posted.
    fn take(&mut self) -> Result<Option<Received>, DmaError>;

    /// Enables or disables the interrupt of received frames. Returns whether received buffers are
    /// waiting. After this call with `enabled`, the next buffer that the device returns raises an
    /// interrupt.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    fn set_interrupts(&mut self, enabled: bool) -> Result<bool, DmaError>;

    /// Returns the header that precedes a frame to send.
    fn header(frame: &Frame) -> Self::Header;

    /// Posts a chunk that holds the header and the bytes of `frame`; the device sees it after
    /// [`PciDevice::publish_sent`].
    ///
    /// # Errors
    /// Returns the chunk's number if the queue is full or its memory is inaccessible.
    fn send(&mut self, chunk: Chunk, frame: &Frame) -> Result<(), u32>;

    /// Publishes all frames to send to the device.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    fn publish_sent(&mut self) -> Result<(), DmaError>;

    /// Returns the number of the chunk of a sent frame, or `None` if the device has sent no other
    /// frame.
    ///
    /// # Errors
    /// Returns an error if the device violates the rules of the queue.
    fn take_sent(&mut self) -> Result<Option<u32>, DmaError>;
}
