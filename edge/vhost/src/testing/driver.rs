//! The driver's side of a split virtqueue. It can write any descriptor and index, valid or invalid.

use shmem::Span;
use std::sync::atomic::{Ordering, fence};

/// A descriptor's flag: another descriptor follows.
pub const NEXT: u16 = 1;
/// A descriptor's flag: the device writes the buffer.
pub const WRITE: u16 = 2;
/// A descriptor's flag: the buffer is a table of descriptors.
pub const INDIRECT: u16 = 4;

/// A descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Guest physical address of the buffer.
    pub gpa: u64,
    /// Bytes of the buffer.
    pub bytes: u32,
    /// [`NEXT`], [`WRITE`], [`INDIRECT`].
    pub flags: u16,
    /// The next descriptor's index.
    pub next: u16,
}

impl Descriptor {
    /// Returns the descriptor's bytes in memory.
    #[must_use]
    pub fn encode(&self) -> [u8; 16] {
        let all = u128::from(self.gpa)
            | u128::from(self.bytes) << 64
            | u128::from(self.flags) << 96
            | u128::from(self.next) << 112;
        all.to_le_bytes()
    }
}

/// A ring in the driver's memory.
#[derive(Clone, Debug)]
pub struct DriverRing {
    /// All memory of the ring: table, available ring, used ring.
    span: Span,
    /// Number of entries.
    pub size: u16,
    /// `avail.idx`.
    pub avail: u16,
    /// The number of the next returned chain.
    pub used: u16,
}

impl DriverRing {
    /// Returns an empty ring in `span`, which is zeroed.
    #[must_use]
    pub fn new(span: Span, size: u16) -> Self {
        let ring = Self {
            span,
            size,
            avail: 0,
            used: 0,
        };
        assert!(ring.used_at() + 8 * usize::from(size) + 8 <= span.len());
        ring
    }

    /// Returns the offset of the available ring.
    #[must_use]
    pub fn avail_at(&self) -> usize {
        16 * usize::from(self.size)
    }

    /// Returns the offset of the used ring.
    #[must_use]
    pub fn used_at(&self) -> usize {
        (self.avail_at() + 6 + 2 * usize::from(self.size)).next_multiple_of(4)
    }

    /// Writes a descriptor.
    pub fn describe(&self, index: u16, descriptor: Descriptor) {
        let at = 16 * usize::from(index);
        self.put(at, &descriptor.encode());
    }

    /// Makes the chain starting at `head` available; the device sees it after
    /// [`DriverRing::publish`].
    pub fn offer(&mut self, head: u16) {
        let slot = usize::from(self.avail % self.size);
        self.put(self.avail_at() + 4 + 2 * slot, &head.to_le_bytes());
        self.avail = self.avail.wrapping_add(1);
    }

    /// Publishes all available chains to the device.
    pub fn publish(&self) {
        fence(Ordering::SeqCst);
        self.put(self.avail_at() + 2, &self.avail.to_le_bytes());
        fence(Ordering::SeqCst);
    }

    /// Returns the head of the next returned chain, and the number of bytes that the device wrote.
    pub fn returned(&mut self) -> Option<(u32, u32)> {
        if self.used_index() == self.used {
            return None;
        }
        let slot = usize::from(self.used % self.size);
        let mut bytes = [0; 8];
        self.get(self.used_at() + 4 + 8 * slot, &mut bytes);
        self.used = self.used.wrapping_add(1);
        let both = u64::from_le_bytes(bytes);
        Some((both as u32, (both >> 32) as u32))
    }

    /// Returns `used.idx`.
    #[must_use]
    pub fn used_index(&self) -> u16 {
        self.u16(self.used_at() + 2)
    }

    /// Returns `used.flags`.
    #[must_use]
    pub fn used_flags(&self) -> u16 {
        self.u16(self.used_at())
    }

    /// Returns `avail_event`: the device requests a notification when the index passes it.
    #[must_use]
    pub fn avail_event(&self) -> u16 {
        self.u16(self.used_at() + 4 + 8 * usize::from(self.size))
    }

    /// Sets `avail.flags`.
    pub fn set_flags(&self, flags: u16) {
        self.put(self.avail_at(), &flags.to_le_bytes());
    }

    /// Sets `used_event`: requests a notification when the index passes it.
    pub fn set_used_event(&self, event: u16) {
        let at = self.avail_at() + 4 + 2 * usize::from(self.size);
        self.put(at, &event.to_le_bytes());
    }

    fn u16(&self, at: usize) -> u16 {
        let mut bytes = [0; 2];
        self.get(at, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    /// Writes bytes of the ring. Has no effect on a ring without memory.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        let _ = self.span.skip(at).write(bytes);
    }

    fn get(&self, at: usize, bytes: &mut [u8]) {
        let _ = self.span.skip(at).read(bytes);
    }
}
