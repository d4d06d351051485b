//! The link to a device in another domain.

use super::addr::IoAddr;
use super::layout::{MERGED_MAX, queue_bytes};
use super::queue::DmaError;
use crate::frame::{ETHERNET_BYTES, SNAPSHOT_MAX, TAG_BYTES};
use abi::PAGE;
use shmem::{Area, Span};
use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::rc::Rc;

/// Properties of the NIC.
#[derive(Clone, Copy, Debug)]
pub struct RemoteSetup {
    /// Number of entries of each queue, a power of two.
    pub entries: u32,
    /// Maximum length of a frame in bytes, without the Ethernet header and a VLAN tag.
    pub mtu: usize,
    /// Number of dedicated queues.
    pub queues: u32,
    /// Whether the device merges received frames.
    pub merges: bool,
    /// Whether the device stores headers of received frames separately. Each frame then has one
    /// buffer.
    pub splits: bool,
}

impl RemoteSetup {
    /// Returns the maximum length of a frame on the wire in bytes.
    pub(super) const fn longest(&self) -> usize {
        self.mtu + ETHERNET_BYTES + TAG_BYTES
    }

    /// Returns the maximum length of a received frame in bytes.
    pub(super) const fn longest_received(&self) -> usize {
        if self.merges && MERGED_MAX > self.longest() {
            MERGED_MAX
        } else {
            self.longest()
        }
    }

    /// Returns the size in bytes of a chunk, which holds a frame to send.
    pub(super) const fn chunk_bytes(&self) -> usize {
        self.longest().next_multiple_of(64)
    }

    pub(super) const fn chunks_bytes(&self) -> usize {
        (self.entries as usize * self.chunk_bytes()).next_multiple_of(PAGE)
    }

    /// Returns the size in bytes of the NIC's memory: queues, frames to send, and split headers.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.headers_at(self.queues + 1)
    }

    /// Returns the size in bytes of a receive queue's space for split headers.
    const fn header_bytes(&self) -> usize {
        if self.splits {
            (self.entries as usize * SNAPSHOT_MAX).next_multiple_of(PAGE)
        } else {
            0
        }
    }

    /// Returns the offset of the space for split headers of receive queue `number`.
    const fn headers_at(&self, number: u32) -> usize {
        self.dedicated_at(self.queues) + number as usize * self.header_bytes()
    }

    /// Returns the space for split headers of receive queue `number` in the NIC's memory, and its
    /// I/O address. Returns `None` if the device does not split headers.
    pub(super) fn headers(&self, number: u32, memory: Area) -> Option<(Span, IoAddr)> {
        let at = self.headers_at(number);
        let span = memory.at(at, self.header_bytes())?;
        let address = IoAddr::of_page(0).add(at)?;
        self.splits.then_some((span, address))
    }

    /// Returns the offset of a dedicated queue's memory.
    pub(super) const fn dedicated_at(&self, queue: u32) -> usize {
        (2 + queue as usize) * queue_bytes(self.entries) + self.chunks_bytes()
    }
}

/// The doorbell of a device.
pub trait DeviceDoorbell: Debug {
    /// Wakes the device.
    fn ring(&self);
}

/// The link to the device, which all queues of the NIC share.
#[derive(Debug, Default)]
pub struct RemoteLink {
    /// The device's doorbell; `None` while the link is down.
    pub(super) doorbell: RefCell<Option<Rc<dyn DeviceDoorbell>>>,
    /// Connection number: how often the link was set down.
    pub(super) connection: Cell<u32>,
    /// Reason why the NIC is closed, or `None` if it works.
    pub(super) close_reason: Cell<Option<DmaError>>,
}

impl RemoteLink {
    /// Returns whether the link is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.doorbell.borrow().is_some()
    }

    /// Returns whether the link is up and the NIC is not closed.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.is_up() && self.close_reason.get().is_none()
    }

    /// Returns a number that changes when the link is set down.
    #[must_use]
    pub fn connection(&self) -> u32 {
        self.connection.get()
    }

    /// Wakes the device.
    pub fn ring(&self) {
        if let Some(bell) = &*self.doorbell.borrow() {
            bell.ring();
        }
    }

    /// Closes the NIC because of an error.
    pub fn close(&self, error: DmaError) {
        self.close_reason
            .set(self.close_reason.get().or(Some(error)));
    }
}
