//! The half of a ring's end that reads the peer's slots.

use super::format::{BURST, SLOTS_PER_PAGE};
use super::slots::Slots;
use super::words::{Index, Words};
use std::sync::atomic::Ordering;

/// A peer moved its producer index further than its side of the ring allows (XSA-39). What the
/// ring holds is meaningless from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's producer index is beyond the ring")]
pub struct Overrun;

/// Reads slots of `N` words.
///
/// They are copied out a burst at once: an access that survives a fault hides from the compiler
/// what is in registers, so it is made for many slots. Each is read once, unless its reader goes
/// back.
#[derive(Debug)]
pub(super) struct Consumer<const N: usize> {
    slots: Slots,
    /// Slots consumed.
    pub(super) cons: u32,
    /// The peer's index as last read and found possible.
    seen: u32,
    copied: [[u32; N]; BURST],
    /// Index of the first slot that was copied out.
    first: u32,
    count: u32,
}

impl<const N: usize> Consumer<N> {
    pub(super) const fn new(slots: Slots) -> Self {
        Self {
            slots,
            cons: 0,
            seen: 0,
            copied: [[0; N]; BURST],
            first: 0,
            count: 0,
        }
    }

    /// Goes on at slot `at`: those before it were consumed by another process.
    pub(super) const fn resume(&mut self, at: u32) {
        self.cons = at;
        self.seen = at;
        self.count = 0;
    }

    /// Writes a slot of the peer's as it was.
    pub(super) fn put_back(&self, words: &impl Words, index: u32, slot: [u32; N]) {
        self.slots.write(words, index, slot);
    }

    /// Slots that can be read without looking at the shared index again.
    #[inline]
    pub(super) const fn ready(&self) -> u32 {
        self.seen.wrapping_sub(self.cons)
    }

    /// Makes sure that `want` slots are ready, if the peer published so many by the index `prod`;
    /// before `end` an honest peer stops. The shared index is read only if it has to be: it lies in
    /// a cache line that the peer writes.
    #[inline]
    pub(super) fn ready_for(
        &mut self,
        words: &impl Words,
        prod: Index,
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
        self.seen = prod;
        Ok(self.ready())
    }

    /// Slot number `ahead` of those that are ready.
    #[inline(always)]
    pub(super) fn peek(&mut self, words: &impl Words, ahead: u32) -> Option<[u32; N]> {
        if ahead >= self.ready() {
            return None;
        }
        let at = self.copied_at(words, self.cons.wrapping_add(ahead));
        self.copied.get(at).copied()
    }

    /// The first of the slots that are ready, as many as were copied out together.
    #[inline]
    pub(super) fn burst(&mut self, words: &impl Words) -> &[[u32; N]] {
        if self.ready() == 0 {
            return &[];
        }
        let at = self.copied_at(words, self.cons);
        self.copied.get(at..self.count as usize).unwrap_or(&[])
    }

    /// The next `count` slots are consumed, as far as they are ready.
    #[inline]
    pub(super) fn consume(&mut self, count: u32) {
        self.cons = self.cons.wrapping_add(count.min(self.ready()));
    }

    /// Asks the peer, by the index `event`, to notify when there are more than `beyond` unconsumed
    /// slots.
    #[inline]
    pub(super) fn arm(&self, words: &impl Words, event: Index, beyond: u32) {
        let at = self.cons.wrapping_add(beyond).wrapping_add(1);
        words.set_index(event, at, Ordering::Relaxed);
    }

    /// How many unconsumed slots the shared index speaks of.
    #[inline]
    pub(super) fn pending(&self, words: &impl Words, prod: Index) -> u32 {
        words.index(prod, Ordering::Acquire).wrapping_sub(self.cons)
    }

    /// Where slot `index`, which is ready, lies among those that were copied out.
    #[inline(always)]
    fn copied_at(&mut self, words: &impl Words, index: u32) -> usize {
        if index.wrapping_sub(self.first) >= self.count {
            self.copy(words, index);
        }
        index.wrapping_sub(self.first) as usize
    }

    /// Copies out what lies together from slot `index` on.
    #[cold]
    #[inline(never)]
    fn copy(&mut self, words: &impl Words, index: u32) {
        let number = self.slots.masked(index);
        let (page, offset) = self.slots.place.of(number);
        let left = SLOTS_PER_PAGE - number % SLOTS_PER_PAGE;
        self.first = index;
        self.count = left.min(self.seen.wrapping_sub(index)).min(BURST as u32);
        let room = self.copied.get_mut(..self.count as usize);
        let room = room.unwrap_or(&mut []);
        words.read(page, offset, self.slots.place.stride, room);
        words.note(index, room);
    }
}
