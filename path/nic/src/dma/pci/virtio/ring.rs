//! The driver's end of a split virtqueue (virtio 1.2, section 2.7), without indirect descriptors
//! and event indices. Each buffer has one descriptor, and the device may return buffers in any
//! order.
//!
//! ```text
//!   descriptors, 16 bytes each     the driver writes them
//!   available: flags, index, ring  the driver writes it
//!   then, in whole pages
//!   used: flags, index, ring       the device writes it
//! ```

use crate::dma::addr::IoAddr;
use crate::dma::queue::{DmaError, Misuse, QueueName};
use abi::PAGE;
use shmem::{Fault, Span};
use std::sync::atomic::{Ordering, fence};

/// Size of a descriptor in bytes.
const DESCRIPTOR: usize = 16;
/// Size in bytes of an element of the used ring.
const USED: usize = 8;
/// Size in bytes of the flags and index before each ring.
const RING_HEADER: usize = 4;
/// Flag of a descriptor: the device writes to the buffer.
const WRITE: u16 = 2;
/// Flag of the available ring: the device should raise no interrupts.
const NO_INTERRUPT: u32 = 1;
/// Flag of the used ring: the driver should send no notifications.
const NO_NOTIFY: u32 = 1;
/// Maximum number of entries.
pub const ENTRIES_MAX: u16 = 1 << 15;

/// I/O addresses of the parts of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// Address of the descriptors.
    pub descriptors: IoAddr,
    /// Address of the available ring.
    pub available: IoAddr,
    /// Address of the used ring.
    pub used: IoAddr,
}

/// The driver's end of a virtqueue. `T` identifies a posted buffer.
#[derive(Debug)]
pub struct SplitQueue<T> {
    name: QueueName,
    entries: u16,
    descriptors: Span,
    available: Span,
    used: Span,
    addresses: RingAddresses,
    /// Posted buffers and their lengths, by descriptor. This list, not the shared memory,
    /// determines which buffers are posted.
    posted: Vec<Option<(T, u32)>>,
    /// Free descriptors.
    free: Vec<u16>,
    /// Index after the last posted buffer.
    next: u16,
    /// Index after the last published buffer.
    published: u16,
    /// Index after the last buffer that the driver has taken.
    taken: u16,
    flags: u32,
}

/// Returns the offset of the used ring in a queue's memory, and the total size of this memory, both
/// in bytes.
#[must_use]
pub const fn ring_bytes(entries: u16) -> (usize, usize) {
    let entries = entries as usize;
    let driver = (entries * DESCRIPTOR + RING_HEADER + entries * 2).next_multiple_of(PAGE);
    let used = (RING_HEADER + entries * USED).next_multiple_of(PAGE);
    (driver, driver + used)
}

impl<T> SplitQueue<T> {
    /// Creates an empty queue of `entries` entries, a power of two, over `memory` of [`ring_bytes`]
    /// with I/O address `address`. Returns `None` if a size is wrong.
    #[must_use]
    pub fn new(name: QueueName, entries: u16, memory: Span, address: IoAddr) -> Option<Self> {
        let (driver, all) = ring_bytes(entries);
        if !entries.is_power_of_two() || entries > ENTRIES_MAX || memory.len() < all {
            return None;
        }
        memory.take(all).fill(0).ok()?;
        let available_at = usize::from(entries) * DESCRIPTOR;
        Some(Self {
            name,
            entries,
            descriptors: memory.take(available_at),
            available: memory.skip(available_at).take(driver - available_at),
            used: memory.skip(driver).take(all - driver),
            addresses: RingAddresses {
                descriptors: address,
                available: address.add(available_at)?,
                used: address.add(driver)?,
            },
            posted: (0..entries).map(|_| None).collect(),
            free: (0..entries).rev().collect(),
            next: 0,
            published: 0,
            taken: 0,
            flags: 0,
        })
    }

    /// Returns the I/O addresses of its parts.
    #[must_use]
    pub fn addresses(&self) -> RingAddresses {
        self.addresses
    }

    /// Returns the number of its entries.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Returns the number of buffers that can be posted.
    #[must_use]
    pub fn free_entries(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of posted buffers.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.posted.len() - self.free.len()
    }

    /// Posts a buffer that the device reads, or writes if `writes` is true. The device sees it
    /// after [`SplitQueue::publish`].
    ///
    /// # Errors
    /// Returns the item if the queue is full or its memory is inaccessible.
    pub fn post(&mut self, item: T, address: IoAddr, len: u32, writes: bool) -> Result<(), T> {
        let Some(id) = self.free.pop() else {
            return Err(item);
        };
        if self.write(id, address, len, writes).is_err() {
            self.free.push(id);
            return Err(item);
        }
        if let Some(place) = self.posted.get_mut(usize::from(id)) {
            *place = Some((item, len));
        }
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    fn write(&self, id: u16, address: IoAddr, len: u32, writes: bool) -> Result<(), Fault> {
        let mut bytes = [0; DESCRIPTOR];
        let flags = if writes { WRITE } else { 0 };
        bytes[..8].copy_from_slice(&address.bits().to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        let at = usize::from(id) * DESCRIPTOR;
        self.descriptors
            .sub(at, DESCRIPTOR)
            .ok_or(Fault)?
            .write(&bytes)?;
        let slot = usize::from(self.next & (self.entries - 1));
        self.available.store_u16(RING_HEADER + slot * 2, id)
    }

    /// Publishes all posted buffers to the device, and returns whether the device needs a
    /// notification.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn publish(&mut self) -> Result<bool, DmaError> {
        if self.published == self.next {
            return Ok(false);
        }
        self.published = self.next;
        self.write_available()?;
        // This fence separates the write of the index from the read of the device's flags.
        fence(Ordering::SeqCst);
        let flags = self.used.load_u32(0).map_err(|Fault| self.fault())?;
        Ok(flags & NO_NOTIFY == 0)
    }

    /// Enables or disables interrupts. Returns whether returned buffers are waiting. After this
    /// call with `enabled`, the next buffer that the device returns raises an interrupt.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn set_interrupts(&mut self, enabled: bool) -> Result<bool, DmaError> {
        self.flags = if enabled { 0 } else { NO_INTERRUPT };
        self.write_available()?;
        // This fence separates the write of the flag from the read of the device's index.
        fence(Ordering::SeqCst);
        self.ready().map(|ready| ready > 0)
    }

    /// Writes the flags and index of the available ring, with release ordering.
    fn write_available(&self) -> Result<(), DmaError> {
        let word = self.flags | u32::from(self.published) << 16;
        self.available
            .store_u32(0, word)
            .map_err(|Fault| self.fault())
    }

    /// Returns the number of buffers that the device has returned and the driver has not taken.
    fn ready(&self) -> Result<u16, DmaError> {
        let word = self.used.load_u32(0).map_err(|Fault| self.fault())?;
        let ready = ((word >> 16) as u16).wrapping_sub(self.taken);
        let shown = self.posted().saturating_sub(self.unpublished());
        match usize::from(ready) <= shown {
            true => Ok(ready),
            false => Err(self.error(Misuse::NotPosted)),
        }
    }

    /// Returns the number of posted buffers that are not published.
    fn unpublished(&self) -> usize {
        usize::from(self.next.wrapping_sub(self.published))
    }

    /// Takes the next buffer that the device has returned, with the number of bytes that the device
    /// reports.
    ///
    /// # Errors
    /// Returns an error if the device returns a buffer that is not posted, or reports more bytes
    /// than the buffer has. The buffer then stays posted.
    pub fn take(&mut self) -> Result<Option<(T, u32)>, DmaError> {
        if self.ready()? == 0 {
            return Ok(None);
        }
        let slot = usize::from(self.taken & (self.entries - 1));
        let at = RING_HEADER + slot * USED;
        let word = |at| self.used.load_u32(at).map_err(|Fault| self.fault());
        let (id, len) = (word(at)?, word(at + 4)?);
        let place = usize::try_from(id).ok();
        let posted = place.and_then(|place| self.posted.get(place)?.as_ref());
        let Some((_, most)) = posted else {
            return Err(self.error(Misuse::NotPosted));
        };
        if len > *most {
            let most = *most;
            return Err(self.error(Misuse::TooLong { len, most }));
        }
        self.taken = self.taken.wrapping_add(1);
        let place = place.and_then(|place| self.posted.get_mut(place));
        let item = place.and_then(Option::take);
        self.free.push(id as u16);
        Ok(item.map(|(item, _)| (item, len)))
    }

    /// Passes all posted buffers to `put`, and empties the queue. The caller must have reset the
    /// device.
    pub fn withdraw(&mut self, mut put: impl FnMut(T)) {
        for (id, place) in (0..).zip(&mut self.posted) {
            if let Some((item, _)) = place.take() {
                self.free.push(id);
                put(item);
            }
        }
    }

    fn fault(&self) -> DmaError {
        self.error(Misuse::Fault)
    }

    fn error(&self, misuse: Misuse) -> DmaError {
        DmaError {
            queue: self.name,
            index: self.taken.into(),
            misuse,
        }
    }
}
