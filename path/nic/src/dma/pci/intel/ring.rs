//! The driver's end of a descriptor ring. The device completes descriptors in order, and sets a bit
//! in each completed descriptor.
//!
//! The device uses the descriptors from its head up to, but not including, the tail. One descriptor
//! always stays free, because equal indices mean an empty ring.

use crate::dma::addr::IoAddr;
use crate::dma::queue::{DmaError, Misuse, QueueName};
use shmem::{Fault, Span};
use std::collections::VecDeque;

/// Size of a descriptor in bytes.
pub const DESCRIPTOR: usize = 16;
/// Minimum number of descriptors, because a ring's length is a multiple of 128 bytes.
const ENTRIES_MIN: u16 = 8;
/// Maximum number of descriptors.
const ENTRIES_MAX: u16 = 1 << 15;

/// The driver's end of a ring. `T` identifies a posted buffer or frame.
#[derive(Debug)]
pub struct DescriptorRing<T> {
    name: QueueName,
    entries: u16,
    memory: Span,
    address: IoAddr,
    /// Posted items, oldest first, and the number of descriptors of each. This list, not the shared
    /// memory, determines which items are posted.
    posted: VecDeque<(T, u16)>,
    /// Number of posted descriptors.
    used: u16,
    /// Index of the oldest posted descriptor.
    oldest: u16,
    /// The tail that was last written to the device.
    published: u16,
    /// The bit of the second word that marks a completed descriptor.
    done: u64,
}

/// Returns the size of a ring's memory in bytes.
#[must_use]
pub const fn ring_bytes(entries: u16) -> usize {
    entries as usize * DESCRIPTOR
}

impl<T> DescriptorRing<T> {
    /// Creates an empty ring of `entries` descriptors, a power of two, over memory with an I/O
    /// address. The device sets the bit `done` in the second word of a completed descriptor.
    /// Returns `None` if a size is wrong.
    #[must_use]
    pub fn new(
        name: QueueName,
        entries: u16,
        (memory, address): (Span, IoAddr),
        done: u64,
    ) -> Option<Self> {
        let bytes = ring_bytes(entries);
        let fits = (ENTRIES_MIN..=ENTRIES_MAX).contains(&entries) && memory.len() >= bytes;
        if !fits || !entries.is_power_of_two() {
            return None;
        }
        let memory = memory.take(bytes);
        memory.fill(0).ok()?;
        Some(Self {
            name,
            entries,
            memory,
            address,
            posted: VecDeque::with_capacity(usize::from(entries)),
            used: 0,
            oldest: 0,
            published: 0,
            done,
        })
    }

    /// Returns the ring's I/O address.
    #[must_use]
    pub fn address(&self) -> IoAddr {
        self.address
    }

    /// Returns the ring's length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.memory.len() as u32
    }

    /// Returns the number of descriptors that can be posted.
    #[must_use]
    pub fn free_entries(&self) -> usize {
        usize::from(self.entries - 1 - self.used)
    }

    /// Returns the number of posted items.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Posts an item with its descriptors. The device completes the item with the last of them.
    ///
    /// # Errors
    /// Returns the item if the ring is full or its memory is inaccessible.
    pub fn post(&mut self, item: T, descriptors: &[[u64; 2]]) -> Result<(), T> {
        if descriptors.len() > self.free_entries() {
            return Err(item);
        }
        let mut next = self.tail();
        for words in descriptors {
            if self.write(next, *words).is_err() {
                return Err(item);
            }
            next = self.wrap(next + 1);
        }
        self.used += descriptors.len() as u16;
        self.posted.push_back((item, descriptors.len() as u16));
        Ok(())
    }

    fn write(&self, slot: u16, [address, rest]: [u64; 2]) -> Result<(), Fault> {
        let at = usize::from(slot) * DESCRIPTOR;
        self.memory.store_u64(at, address)?;
        self.memory.store_u64(at + 8, rest)
    }

    /// Returns the tail if it has changed since the last call. The caller writes it to the device.
    pub fn publish(&mut self) -> Option<u16> {
        let tail = self.tail();
        (std::mem::replace(&mut self.published, tail) != tail).then_some(tail)
    }

    /// Returns the oldest item with the second word of its last descriptor, if the device has
    /// completed the item. `check` validates the word.
    ///
    /// # Errors
    /// Returns an error if `check` returns an error, or the ring's memory is inaccessible. The item
    /// then stays posted.
    pub fn take(
        &mut self,
        check: impl FnOnce(&T, u64) -> Result<(), Misuse>,
    ) -> Result<Option<(T, u64)>, DmaError> {
        let Some(word) = self.completed()? else {
            return Ok(None);
        };
        if let Some((item, _)) = self.posted.front() {
            check(item, word).map_err(|misuse| self.error(misuse))?;
        }
        Ok(self.posted.pop_front().map(|(item, count)| {
            self.used -= count;
            self.oldest = self.wrap(self.oldest + count);
            (item, word)
        }))
    }

    /// Returns whether the device has completed the oldest item.
    ///
    /// # Errors
    /// Returns an error if the ring's memory is inaccessible.
    pub fn is_ready(&self) -> Result<bool, DmaError> {
        self.completed().map(|word| word.is_some())
    }

    /// Returns the second word of the oldest item's last descriptor, if the device has completed
    /// it.
    fn completed(&self) -> Result<Option<u64>, DmaError> {
        let Some((_, count)) = self.posted.front() else {
            return Ok(None);
        };
        let last = self.wrap(self.oldest + count - 1);
        let at = usize::from(last) * DESCRIPTOR + 8;
        let word = self.memory.load_u64(at);
        let word = word.map_err(|Fault| self.error(Misuse::Fault))?;
        Ok((word & self.done != 0).then_some(word))
    }

    /// Passes all posted items to `put`, and empties the ring. The caller must have reset the
    /// device.
    pub fn withdraw(&mut self, put: &mut dyn FnMut(T)) {
        self.oldest = self.tail();
        self.used = 0;
        self.posted.drain(..).for_each(|(item, _)| put(item));
    }

    fn error(&self, misuse: Misuse) -> DmaError {
        DmaError {
            queue: self.name,
            index: self.oldest.into(),
            misuse,
        }
    }

    /// Returns the index of the first free descriptor.
    fn tail(&self) -> u16 {
        self.wrap(self.oldest + self.used)
    }

    fn wrap(&self, index: u16) -> u16 {
        index & (self.entries - 1)
    }
}
