//! The interface of a kind of PCI network device: its registers and its two queues.

use crate::buffer::Buffer;
use crate::dma::addr::IoAddr;
use crate::dma::chunks::Chunk;
use crate::dma::pci::setup::PciSetup;
use crate::dma::queue::{DmaError, QueueName};
use crate::frame::Frame;
use crate::offload::Offload;
use shmem::{Fault, Span};
use std::fmt::Debug;

/// How long each step of a reset may take.
pub(super) const RESET_NS: u64 = 100_000_000;

/// Why a device cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartupError {
    /// The registers are inaccessible.
    #[error("the device's registers are not accessible")]
    Registers,
    /// The device does not report the end of its reset.
    #[error("the device does not complete its reset")]
    Reset,
    /// A feature is missing.
    #[error(
        "the device lacks the feature {0}: with QEMU write \
         disable-legacy=on,iommu_platform=on"
    )]
    Feature(&'static str),
    /// The device rejects the features that it has offered.
    #[error("the device rejects the features that it offers")]
    Rejects,
    /// A queue cannot be used.
    #[error("the device has no usable {0}")]
    Queue(QueueName),
    /// A size is wrong.
    #[error("the queues do not fit their memory")]
    Memory,
}

/// Why a NIC is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The device violates the rules of a queue.
    #[error(transparent)]
    Queue(#[from] DmaError),
    /// The device has failed, for example because it could not access memory.
    #[error("the device has failed and needs a reset")]
    NeedsReset,
    /// The device has stopped, for example because it has reset itself.
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
    /// The frame's length, without the device's header, and its offloads. `None` if the buffer
    /// holds no whole frame, or if the header is invalid.
    pub frame: Option<(usize, Offload)>,
}

/// Memory for the two queues, [`super::setup::queue_bytes`] each, and its I/O addresses.
#[derive(Clone, Copy, Debug)]
pub struct QueueMemory {
    /// Memory and I/O address of the queue of received frames.
    pub receive: (Span, IoAddr),
    /// Memory and I/O address of the queue of frames to send.
    pub transmit: (Span, IoAddr),
}

/// A device with a queue in each direction. Queues hold buffers and frames to send in order, but
/// the device may return them in any order that its kind permits.
pub trait PciDevice: Debug + Sized {
    /// Access to its registers.
    type Registers: Clone + Debug;
    /// The bytes before each frame.
    type Header: AsRef<[u8]>;
    /// Progress of a reset.
    type Reset: Debug + Default;

    /// The fewest bytes of a frame that the device sends.
    const SHORTEST: usize;
    /// Whether the device counts the frames that it has lost.
    const COUNTS_MISSED: bool;

    /// Continues a reset, which begins with the default progress. Returns whether it is complete;
    /// otherwise the caller repeats the call soon. After an error, the next reset begins with the
    /// default progress.
    ///
    /// # Errors
    /// The registers are inaccessible, or the reset takes too long.
    fn reset(
        registers: &Self::Registers,
        reset: &mut Self::Reset,
        now_ns: u64,
    ) -> Result<bool, StartupError>;

    /// Starts a device that was reset. Its queues are empty.
    ///
    /// # Errors
    /// The device is unsuitable or does not follow its specification.
    fn start(
        registers: Self::Registers,
        setup: &PciSetup,
        memory: QueueMemory,
    ) -> Result<Self, StartupError>;

    /// Stops the device, and passes what was posted to `buffer` and `chunk`. A device that does not
    /// stop can reach the memory that was mapped for it, and nothing else.
    fn stop(&mut self, buffer: &mut dyn FnMut(Buffer), chunk: &mut dyn FnMut(u32));

    /// Reads the device's status. Returns the number of frames that it has lost since the last
    /// call, or 0 if it does not count them.
    ///
    /// # Errors
    /// The device has failed.
    fn check(&mut self) -> Result<u32, CloseReason>;

    /// Returns whether the device completes checksums of sent frames.
    fn has_checksum(&self) -> bool;

    /// Returns the number of buffers that can be posted.
    fn room(&self) -> usize;

    /// Returns the number of posted buffers.
    fn posted(&self) -> usize;

    /// Posts a buffer. [`PciDevice::publish_buffers`] shows it to the device.
    ///
    /// # Errors
    /// The queue has no room, or the buffer is unsuitable; returns it.
    fn post(&mut self, buffer: Buffer, address: IoAddr) -> Result<(), Buffer>;

    /// Shows all posted buffers to the device.
    ///
    /// # Errors
    /// The queue's memory is inaccessible.
    fn publish_buffers(&mut self) -> Result<(), DmaError>;

    /// Takes the next received buffer.
    ///
    /// # Errors
    /// The device violates the rules of its queue. The buffer stays posted.
    fn take(&mut self) -> Result<Option<Received>, DmaError>;

    /// Enables or disables the interrupt of received frames. Returns whether buffers are waiting to
    /// be taken; with `enabled`, one that the device returns after that raises an interrupt.
    ///
    /// # Errors
    /// The queue's memory is inaccessible.
    fn set_interrupts(&mut self, enabled: bool) -> Result<bool, DmaError>;

    /// Returns the bytes that are sent before a frame.
    fn header(frame: &Frame) -> Self::Header;

    /// Posts a chunk that holds the header and the bytes of `frame`. [`PciDevice::publish_sent`]
    /// shows it to the device.
    ///
    /// # Errors
    /// The queue has no room, or its memory is inaccessible; returns the chunk's number.
    fn send(&mut self, chunk: Chunk, frame: &Frame) -> Result<(), u32>;

    /// Shows all frames to send to the device.
    ///
    /// # Errors
    /// The queue's memory is inaccessible.
    fn publish_sent(&mut self) -> Result<(), DmaError>;

    /// Takes back the number of the chunk of a sent frame.
    ///
    /// # Errors
    /// The device violates the rules of its queue.
    fn take_sent(&mut self) -> Result<Option<u32>, DmaError>;
}
