//! The driver's end of a split virtqueue (virtio 1.2, section 2.7), without indirect descriptors
//! and without event indices. Each buffer is one descriptor, and the device returns buffers in any
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

/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;
/// Bytes of an element of the used ring.
const USED: usize = 8;
/// Bytes of flags and index before each ring.
const RING_HEADER: usize = 4;
/// Flag of a descriptor: the device writes to the buffer.
const WRITE: u16 = 2;
/// Flag of the available ring: the driver needs no interrupts.
const NO_INTERRUPT: u32 = 1;
/// Flag of the used ring: the device needs no notifications.
const NO_NOTIFY: u32 = 1;
/// The maximum number of entries.
pub const ENTRIES_MAX: u16 = 1 << 15;

/// Where the parts of a queue are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// The descriptors.
    pub descriptors: IoAddr,
    /// The available ring.
    pub available: IoAddr,
    /// The used ring.
    pub used: IoAddr,
}

/// The driver's end. `T` identifies a posted buffer.
#[derive(Debug)]
pub struct SplitQueue<T> {
    name: QueueName,
    entries: u16,
    descriptors: Span,
    available: Span,
    used: Span,
    places: Places,
    /// Posted buffers and their lengths, by descriptor. This list, not the shared memory, says what
    /// is posted.
    posted: Vec<Option<(T, u32)>>,
    /// Descriptors that are not posted.
    free: Vec<u16>,
    /// Index after the last posted buffer, and after the last published one.
    next: u16,
    published: u16,
    /// Index after the last buffer that was taken back.
    taken: u16,
    flags: u32,
}

/// Returns the bytes of a queue's memory before its used ring, and all of its bytes.
#[must_use]
pub const fn ring_bytes(entries: u16) -> (usize, usize) {
    let entries = entries as usize;
    let driver = (entries * DESCRIPTOR + RING_HEADER + entries * 2).next_multiple_of(PAGE);
    let used = (RING_HEADER + entries * USED).next_multiple_of(PAGE);
    (driver, driver + used)
}

impl<T> SplitQueue<T> {
    /// Creates an empty queue of `entries` entries, a power of two, over `memory` of
    /// [`ring_bytes`], whose I/O address is `address`. Returns `None` if a size is wrong.
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
            places: Places {
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

    /// Returns where its parts are.
    #[must_use]
    pub fn places(&self) -> Places {
        self.places
    }

    /// Returns the number of its entries.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Returns the number of buffers that can be posted.
    #[must_use]
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of posted buffers.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.posted.len() - self.free.len()
    }

    /// Posts a buffer, which the device reads, or, with `writes`, writes. [`SplitQueue::publish`]
    /// shows it to the device.
    ///
    /// # Errors
    /// The queue has no room, or its memory is inaccessible; returns the item.
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

    /// Shows all posted buffers to the device, and returns whether it needs a notification.
    ///
    /// # Errors
    /// The queue's memory is inaccessible.
    pub fn publish(&mut self) -> Result<bool, DmaError> {
        if self.published == self.next {
            return Ok(false);
        }
        self.published = self.next;
        self.write_available()?;
        // Between the index and the device's flags.
        fence(Ordering::SeqCst);
        let flags = self.used.load_u32(0).map_err(|Fault| self.fault())?;
        Ok(flags & NO_NOTIFY == 0)
    }

    /// Enables or disables interrupts. Returns whether buffers are waiting to be taken back; with
    /// `enabled`, a buffer that the device returns after that raises an interrupt.
    ///
    /// # Errors
    /// The queue's memory is inaccessible.
    pub fn set_interrupts(&mut self, enabled: bool) -> Result<bool, DmaError> {
        self.flags = if enabled { 0 } else { NO_INTERRUPT };
        self.write_available()?;
        // Between the flag and the device's index.
        fence(Ordering::SeqCst);
        self.ready().map(|ready| ready > 0)
    }

    /// Writes flags and index of the available ring, with release ordering.
    fn write_available(&self) -> Result<(), DmaError> {
        let word = self.flags | u32::from(self.published) << 16;
        self.available
            .store_u32(0, word)
            .map_err(|Fault| self.fault())
    }

    /// Returns the number of buffers that the device has returned.
    fn ready(&self) -> Result<u16, DmaError> {
        let word = self.used.load_u32(0).map_err(|Fault| self.fault())?;
        let ready = ((word >> 16) as u16).wrapping_sub(self.taken);
        let shown = self.posted().saturating_sub(self.unpublished());
        match usize::from(ready) <= shown {
            true => Ok(ready),
            false => Err(self.error(Misuse::NotPosted)),
        }
    }

    /// Returns the number of buffers that the device does not know.
    fn unpublished(&self) -> usize {
        usize::from(self.next.wrapping_sub(self.published))
    }

    /// Takes back the next buffer that the device has returned, and the number of bytes that it
    /// reports.
    ///
    /// # Errors
    /// The device returns a buffer that is not posted, or reports more bytes than the buffer has.
    /// The buffer stays posted.
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

    /// Takes back all posted buffers. The device must have been reset before.
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
