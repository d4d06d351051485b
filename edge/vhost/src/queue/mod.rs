//! The split virtqueue from the device's side.
//!
//! ```text
//! descriptor table   written by the driver   16 bytes an entry: address, length, flags, next
//! available ring     written by the driver   flags, idx, ring[size], used_event
//! used ring          written by the device   flags, idx, ring[size] of {id, length}, avail_event
//! ```
//!
//! OWNERSHIP. All three lie in memory that the driver may write, and that the front end may remove,
//! at any time. The authoritative indices are private fields of [`SplitRing`]: `next_avail` is the
//! first chain that was not taken, `next_used` the first entry without a returned chain. Chains are
//! returned in the order in which they were taken, so both are equal between two calls, and a new
//! shim resumes from `used.idx`.

mod chain;
mod short_chain;

pub use chain::{BadChain, ChainSegment, CopyDirection, DescriptorChain};
pub use short_chain::{BATCH, ShortChain};

use crate::memory::VmMemory;
use shmem::{Fault, Span};
use std::sync::atomic::{Ordering, fence};

/// Maximum number of entries of a ring.
pub const SIZE_MAX: u16 = 32_768;

/// `avail.flags`: the driver disables notifications.
const NO_INTERRUPT: u16 = 1;
/// `used.flags`: the device disables notifications.
const NO_NOTIFY: u32 = 1;
/// The flags in the first word of the used ring, beside the index.
const FLAGS_MASK: u32 = 0xffff;
/// Bytes of flags and index in front of a ring.
const RING_HEADER: usize = 4;

/// The ring is unusable, because its memory faults or its driver violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// A part of the ring faults.
    #[error("the ring's memory is not mapped")]
    Fault,
    /// The driver made more chains available than the ring has entries.
    #[error("the index of the available ring has jumped")]
    IndexJump,
    /// A chain begins beyond the end of the descriptor table.
    #[error("a chain begins outside the descriptor table")]
    Head,
}

impl From<Fault> for RingError {
    fn from(_: Fault) -> Self {
        Self::Fault
    }
}

/// Location of a ring: addresses in the front end's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// The descriptor table.
    pub table: u64,
    /// The available ring.
    pub avail: u64,
    /// The used ring.
    pub used: u64,
    /// The guest physical address of the used ring, if writes to it are logged.
    pub log: Option<u64>,
}

/// A ring in memory, and the device's private indices.
#[derive(Debug)]
pub struct SplitRing {
    table: Span,
    /// The available ring and, if it is not aligned to four bytes, the two bytes in front of it.
    avail: Span,
    /// Offset of the available ring in `avail`: 0 or 2.
    avail_at: usize,
    used: Span,
    log: Option<u64>,
    size: u16,
    event_idx: bool,
    next_avail: u16,
    /// `avail.idx` as last read.
    seen: u16,
    next_used: u16,
    /// `used.idx` as last written.
    published: u16,
    /// `next_used` at the last decision whether to notify the driver.
    signalled: Option<u16>,
    /// `used.flags` as first read or last written.
    flags: u32,
}

impl SplitRing {
    /// Returns the ring at `addresses`, whose next chain is number `next_avail`, or `None` if the
    /// ring is not aligned or not inside the memory.
    #[must_use]
    pub fn new(
        memory: &VmMemory,
        addresses: &RingAddresses,
        size: u16,
        event_idx: bool,
        next_avail: u16,
    ) -> Option<Self> {
        let entries = usize::from(size);
        if !size.is_power_of_two() || size > SIZE_MAX {
            return None;
        }
        let aligned = |address: u64, to: u64| address.is_multiple_of(to);
        if !aligned(addresses.table, 16)
            || !aligned(addresses.avail, 2)
            || !aligned(addresses.used, 4)
        {
            return None;
        }
        let avail_at = (addresses.avail % 4) as usize;
        let avail_bytes = (avail_at + RING_HEADER + 2 * entries + 2).next_multiple_of(4);
        let used_bytes = RING_HEADER + 8 * entries + 4;
        let (table, _) = memory.at_uva(addresses.table, 16 * entries)?;
        let (avail, _) = memory.at_uva(addresses.avail - avail_at as u64, avail_bytes)?;
        let (used, _) = memory.at_uva(addresses.used, used_bytes)?;
        let word = used.load_u32(0).ok()?;
        let next_used = (word >> 16) as u16;
        if let Some(gpa) = addresses.log {
            // An earlier back end may have died between a write and its record in the log.
            memory.log_write(gpa, used_bytes);
        }
        Some(Self {
            table,
            avail,
            avail_at,
            used,
            log: addresses.log,
            size,
            event_idx,
            next_avail,
            seen: next_avail,
            next_used,
            published: next_used,
            signalled: None,
            flags: word & FLAGS_MASK,
        })
    }

    /// Returns the number of the next chain: the answer to `GET_VRING_BASE`.
    #[must_use]
    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// Returns the index of the available ring that was last read.
    #[must_use]
    pub fn last_avail(&self) -> u16 {
        self.seen
    }

    /// Returns the number of chains that can be taken according to the index read last.
    #[must_use]
    #[inline]
    pub fn known_chains(&self) -> u16 {
        self.seen.wrapping_sub(self.next_avail)
    }

    /// Reads the index of the available ring; returns the number of chains that can be taken.
    ///
    /// # Errors
    /// Returns an error if the ring is broken.
    #[inline]
    pub fn count(&mut self) -> Result<u16, RingError> {
        let idx = self.avail_u16(2)?;
        let count = idx.wrapping_sub(self.next_avail);
        if count > self.size {
            return Err(RingError::IndexJump);
        }
        self.seen = idx;
        Ok(count)
    }

    /// Takes the next chain and reads its descriptors into `chain`. Returns `None` if the ring has
    /// no chain. The outer error stops the ring. If it returns the inner error, the caller must
    /// still return the chain.
    ///
    /// # Errors
    /// Returns an error if the ring is broken.
    #[inline]
    pub fn take(
        &mut self,
        memory: &VmMemory,
        direction: CopyDirection,
        chain: &mut DescriptorChain,
    ) -> Result<Option<Result<(), BadChain>>, RingError> {
        if self.known_chains() == 0 && self.count()? == 0 {
            return Ok(None);
        }
        let head = self.head(self.next_avail)?;
        if head >= self.size {
            return Err(RingError::Head);
        }
        self.next_avail = self.next_avail.wrapping_add(1);
        Ok(Some(chain.read(memory, self.table(), head, direction)))
    }

    /// Returns the head of chain number `index`, as the driver wrote it.
    #[inline]
    fn head(&self, index: u16) -> Result<u16, RingError> {
        let slot = usize::from(index & (self.size - 1));
        self.avail_u16(RING_HEADER + 2 * slot)
    }

    #[inline]
    const fn table(&self) -> chain::DescriptorTable {
        chain::DescriptorTable {
            span: self.table,
            entries: self.size,
        }
    }

    /// Puts back the last `count` chains that were taken; later calls take them again.
    pub fn put_back_chains(&mut self, count: u16) {
        self.next_avail = self.next_avail.wrapping_sub(count);
    }

    /// Returns a chain after `bytes` bytes were written to it. The driver sees it after
    /// [`SplitRing::publish`].
    ///
    /// # Errors
    /// Returns an error if the ring is broken.
    #[inline]
    pub fn put(&mut self, memory: &VmMemory, head: u16, bytes: u32) -> Result<(), RingError> {
        let slot = usize::from(self.next_used & (self.size - 1));
        let at = RING_HEADER + 8 * slot;
        self.used.store_words(at, [u32::from(head), bytes])?;
        self.log(memory, at, 8);
        self.next_used = self.next_used.wrapping_add(1);
        Ok(())
    }

    /// Prefetches the used entries of the next `count` chains, up to the end of the ring. The
    /// driver's processor has read them last, so each write would wait for its cache line.
    #[inline]
    fn prefetch_used(&self, count: u16) {
        let slot = self.next_used & (self.size - 1);
        let places = usize::from(count.min(self.size - slot));
        let at = RING_HEADER + 8 * usize::from(slot);
        self.used.skip(at).take(8 * places).prefetch_write();
    }

    /// Publishes all returned chains to the driver. Returns whether it published any and the driver
    /// has requested a notification.
    ///
    /// # Errors
    /// Returns an error if the ring is broken.
    #[inline]
    pub fn publish(&mut self, memory: &VmMemory) -> Result<bool, RingError> {
        if self.published == self.next_used {
            return Ok(false);
        }
        self.write_header(memory)?;
        // The index must be visible before the driver's request for notifications is read, because
        // the driver writes the request and then reads the index.
        fence(Ordering::SeqCst);
        let new = self.next_used;
        let old = self.signalled.replace(new);
        if !self.event_idx {
            return Ok(self.avail_u16(0)? & NO_INTERRUPT == 0);
        }
        let event = self.avail_u16(RING_HEADER + 2 * usize::from(self.size))?;
        Ok(old.is_none_or(|old| has_passed(event, new, old)))
    }

    /// Requests a notification when the driver makes a further chain available. The caller must
    /// issue a full fence and check once more before it sleeps.
    ///
    /// # Errors
    /// Returns an error if the ring is broken.
    pub fn arm(&mut self, memory: &VmMemory) -> Result<(), RingError> {
        if self.event_idx {
            let at = RING_HEADER + 8 * usize::from(self.size);
            self.used.skip(at).write(&self.seen.to_le_bytes())?;
            self.log(memory, at, 2);
            return Ok(());
        }
        self.set_flags(memory, 0)
    }

    /// Disables the driver's notifications. With event indices it writes nothing, because the
    /// driver passes the old index only once in 65536 chains.
    ///
    /// # Errors
    /// Returns an error if the ring is broken.
    pub fn disarm(&mut self, memory: &VmMemory) -> Result<(), RingError> {
        if self.event_idx {
            return Ok(());
        }
        self.set_flags(memory, NO_NOTIFY)
    }

    fn set_flags(&mut self, memory: &VmMemory, flags: u32) -> Result<(), RingError> {
        if self.flags == flags {
            return Ok(());
        }
        self.flags = flags;
        // Do not change the index: chains that were returned but not published must stay hidden.
        let next_used = std::mem::replace(&mut self.next_used, self.published);
        let written = self.write_header(memory);
        self.next_used = next_used;
        written
    }

    /// Writes flags and index, which share a word.
    #[inline]
    fn write_header(&mut self, memory: &VmMemory) -> Result<(), RingError> {
        let word = self.flags | u32::from(self.next_used) << 16;
        self.used.store_u32(0, word)?;
        self.log(memory, 0, RING_HEADER);
        self.published = self.next_used;
        Ok(())
    }

    /// Returns the u16 at an even offset of the available ring, in one access.
    #[inline]
    fn avail_u16(&self, at: usize) -> Result<u16, RingError> {
        let at = self.avail_at + at;
        let word = self.avail.load_u32(at & !3)?;
        Ok((word >> (8 * (at & 2))) as u16)
    }

    #[inline]
    fn log(&self, memory: &VmMemory, at: usize, bytes: usize) {
        if let Some(gpa) = self.log {
            memory.log_write(gpa.wrapping_add(at as u64), bytes);
        }
    }
}

/// Returns whether an index that moved from `old` to `new` has passed `event` (the specification's
/// `vring_need_event`).
#[inline]
const fn has_passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_index_is_passed_once() {
        for old in [0_u16, 5, 65_533] {
            let passes = |event: u16, new: u16| has_passed(event, new, old);
            let at = |n: u16| old.wrapping_add(n);
            assert!(passes(old, at(1)), "the next chain");
            assert!(!passes(at(1), at(1)), "beyond the last chain");
            assert!(passes(at(3), at(4)));
            assert!(!passes(old.wrapping_sub(1), at(4)), "passed before");
            assert!(!passes(old, old), "nothing new");
        }
    }
}
