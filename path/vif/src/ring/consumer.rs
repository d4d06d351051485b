//! The half of a ring's end that reads the peer's slots.

use super::format::{BURST, SLOTS_PER_PAGE};
use super::slots::SlotPositions;
use super::words::{RingIndex, RingMemory};
use std::sync::atomic::Ordering;

/// Error: a peer moved its producer index further than its side of the ring allows (XSA-39). From
/// then on the ring's contents are meaningless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's producer index is beyond the ring")]
pub struct Overrun;

/// Reader of slots of `N` words.
///
/// Slots are copied out in bursts: the compiler cannot allocate registers across an access that may
/// fault, so each access covers many slots. Each slot is read once, except when the reader steps
/// back.
#[derive(Debug)]
pub(super) struct Consumer<const N: usize> {
    slots: SlotPositions,
    /// Index of the next slot to consume.
    pub(super) cons: u32,
    /// The peer's index as last read and validated.
    cached_prod: u32,
    copied: [[u32; N]; BURST],
    /// Index of the first slot that was copied out.
    first: u32,
    count: u32,
}

impl<const N: usize> Consumer<N> {
    pub(super) const fn new(slots: SlotPositions) -> Self {
        Self {
            slots,
            cons: 0,
            cached_prod: 0,
            copied: [[0; N]; BURST],
            first: 0,
            count: 0,
        }
    }

    /// Continues at slot `at`. Another process has consumed the slots before it.
    pub(super) const fn resume(&mut self, at: u32) {
        self.cons = at;
        self.cached_prod = at;
        self.count = 0;
    }

    /// Rewrites a slot of the peer that was overwritten.
    pub(super) fn put_back(&self, words: &impl RingMemory, index: u32, slot: [u32; N]) {
        self.slots.write(words, index, slot);
    }

    /// Returns the number of slots that can be read without reading the shared index again.
    #[inline]
    pub(super) const fn ready(&self) -> u32 {
        self.cached_prod.wrapping_sub(self.cons)
    }

    /// Makes up to `want` slots ready, if the peer has published them by index `prod`. An index
    /// beyond `end` is an overrun. Reads the shared index only if necessary, because the peer
    /// writes its cache line.
    #[inline]
    pub(super) fn ready_for(
        &mut self,
        words: &impl RingMemory,
        prod: RingIndex,
        want: u32,
        end: u32,
    ) -> Result<u32, Overrun> {
        if self.ready() >= want {
            return Ok(self.ready());
        }
        // Acquire: the slots are read after the index that covers them.
        let prod = words.index(prod, Ordering::Acquire);
        let new = prod.wrapping_sub(self.cons);
        if new > end.wrapping_sub(self.cons) || new < self.ready() {
            return Err(Overrun);
        }
        self.cached_prod = prod;
        Ok(self.ready())
    }

    /// Returns ready slot number `ahead`.
    #[inline(always)]
    pub(super) fn peek(&mut self, words: &impl RingMemory, ahead: u32) -> Option<[u32; N]> {
        if ahead >= self.ready() {
            return None;
        }
        let at = self.copied_at(words, self.cons.wrapping_add(ahead));
        self.copied.get(at).copied()
    }

    /// Returns the ready slots at the head that were copied out together.
    #[inline]
    pub(super) fn burst(&mut self, words: &impl RingMemory) -> &[[u32; N]] {
        if self.ready() == 0 {
            return &[];
        }
        let at = self.copied_at(words, self.cons);
        self.copied.get(at..self.count as usize).unwrap_or(&[])
    }

    /// Consumes the next `count` slots, or all ready ones if these are fewer.
    #[inline]
    pub(super) fn consume(&mut self, count: u32) {
        self.cons = self.cons.wrapping_add(count.min(self.ready()));
    }

    /// Requests a notification from the peer, by the index `event`, when more than `beyond` slots
    /// are unconsumed.
    #[inline]
    pub(super) fn arm(&self, words: &impl RingMemory, event: RingIndex, beyond: u32) {
        let at = self.cons.wrapping_add(beyond).wrapping_add(1);
        words.set_index(event, at, Ordering::Relaxed);
    }

    /// Returns the number of unconsumed slots according to the shared index.
    #[inline]
    pub(super) fn pending(&self, words: &impl RingMemory, prod: RingIndex) -> u32 {
        words.index(prod, Ordering::Acquire).wrapping_sub(self.cons)
    }

    /// Returns the position of ready slot `index` among the copied slots; copies slots out if
    /// necessary.
    #[inline(always)]
    fn copied_at(&mut self, words: &impl RingMemory, index: u32) -> usize {
        if index.wrapping_sub(self.first) >= self.count {
            self.copy(words, index);
        }
        index.wrapping_sub(self.first) as usize
    }

    /// Copies out adjacent slots starting at `index`.
    #[cold]
    #[inline(never)]
    fn copy(&mut self, words: &impl RingMemory, index: u32) {
        let number = self.slots.masked(index);
        let (page, offset) = self.slots.place.of(number);
        let left = SLOTS_PER_PAGE - number % SLOTS_PER_PAGE;
        self.first = index;
        self.count = left
            .min(self.cached_prod.wrapping_sub(index))
            .min(BURST as u32);
        let room = self.copied.get_mut(..self.count as usize);
        let room = room.unwrap_or(&mut []);
        words.read(page, offset, self.slots.place.stride, room);
        words.record_slots(index, room);
    }
}
