//! Properties of a NIC, and the layout of its memory.

use super::{intel, virtio};
use crate::dma::addr::IoAddr;
use crate::frame::ETHERNET;
use abi::PAGE;

const VLAN_TAG: usize = 4;
/// The most bytes before a frame: the header of virtio-net, and its number of buffers.
pub(super) const HEADER: usize = crate::virtio::BYTES + 2;

/// Properties of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciSetup {
    /// The most entries of each queue, a power of two.
    pub entries: u16,
    /// Bytes of IP in the longest frame.
    pub mtu: usize,
    /// The I/O address of the pool, which the memory of the queues follows.
    pub base: IoAddr,
}

/// Returns the bytes of the memory of a queue of any kind of device, in whole pages.
#[must_use]
pub const fn queue_bytes(entries: u16) -> usize {
    let (_, virtio) = virtio::ring::ring_bytes(entries);
    let intel = intel::ring::ring_bytes(entries).next_multiple_of(PAGE);
    if virtio > intel { virtio } else { intel }
}

impl PciSetup {
    /// Returns the bytes of the memory of both queues and of frames to send.
    #[must_use]
    pub fn bytes(&self) -> usize {
        2 * queue_bytes(self.entries) + usize::from(self.entries) * self.chunk_bytes()
    }

    /// Returns the most bytes of a frame without a VLAN tag.
    #[must_use]
    pub fn max_frame(&self) -> usize {
        self.mtu + ETHERNET
    }

    /// Returns the bytes of a chunk, which holds a frame to send. No chunk crosses a page: QEMU's
    /// 82574 does not send a buffer whose pages are not contiguous in memory.
    pub(super) fn chunk_bytes(&self) -> usize {
        (HEADER + self.longest()).next_power_of_two()
    }

    /// Returns the most bytes of a frame.
    pub(super) fn longest(&self) -> usize {
        self.mtu + ETHERNET + VLAN_TAG
    }
}
