//! Properties of a NIC, and the layout of its memory.

use super::{intel, virtio};
use crate::dma::addr::IoAddr;
use crate::frame::ETHERNET_BYTES;
use abi::PAGE;

const VLAN_TAG: usize = 4;
/// Maximum length in bytes of the header before a frame: the virtio-net header with its number of
/// buffers.
pub(super) const HEADER: usize = crate::virtio::HEADER_BYTES + 2;

/// Properties of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciSetup {
    /// Maximum number of entries of each queue, a power of two.
    pub entries: u16,
    /// Maximum length of a frame in bytes, without the Ethernet header and a VLAN tag.
    pub mtu: usize,
    /// I/O address of the pool. The memory of the queues follows the pool.
    pub base: IoAddr,
}

/// Returns the size in bytes, in whole pages, of the memory of a queue of any kind of device.
#[must_use]
pub const fn queue_bytes(entries: u16) -> usize {
    let (_, virtio) = virtio::ring::ring_bytes(entries);
    let intel = intel::ring::ring_bytes(entries).next_multiple_of(PAGE);
    if virtio > intel { virtio } else { intel }
}

impl PciSetup {
    /// Returns the size in bytes of the memory of both queues and of frames to send.
    #[must_use]
    pub fn bytes(&self) -> usize {
        2 * queue_bytes(self.entries) + usize::from(self.entries) * self.chunk_bytes()
    }

    /// Returns the maximum length in bytes of a frame without a VLAN tag.
    #[must_use]
    pub fn max_frame(&self) -> usize {
        self.mtu + ETHERNET_BYTES
    }

    /// Returns the size in bytes of a chunk, which holds a frame to send. No chunk crosses a page,
    /// because QEMU's 82574 does not send a buffer whose pages are not contiguous in memory.
    pub(super) fn chunk_bytes(&self) -> usize {
        (HEADER + self.longest()).next_power_of_two()
    }

    /// Returns the maximum length of a frame in bytes.
    pub(super) fn longest(&self) -> usize {
        self.mtu + ETHERNET_BYTES + VLAN_TAG
    }
}
