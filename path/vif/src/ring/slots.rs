//! Positions of slots, and writing of slots.
//!
//! Slots are written directly into the pages. If a slot was first assembled in private memory, the
//! processor would read it before the stores to it retire, and the read would wait for all earlier
//! stores.

use super::format::{self, SLOTS_PER_PAGE, SlotLayout, fits};
use super::words::RingMemory;

/// Positions of one kind of slots in a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotPositions {
    pub(super) place: SlotLayout,
    pub(super) count: u32,
}

impl SlotPositions {
    /// Returns the positions of requests of `REQ` words and of responses of `RSP` words in `words`.
    pub(super) fn of<const REQ: usize, const RSP: usize>(words: &impl RingMemory) -> (Self, Self) {
        const { assert!(fits(REQ, RSP)) };
        let format = words.format();
        let count = format::slots(words.pages().trailing_zeros() as u8);
        let of = |place| Self { place, count };
        (of(format.requests(REQ)), of(format.responses(REQ, RSP)))
    }

    /// Writes slot `index`.
    #[inline]
    pub(super) fn write<const N: usize>(
        &self,
        words: &impl RingMemory,
        index: u32,
        slot: [u32; N],
    ) {
        let (page, offset) = self.place.of(self.masked(index));
        words.write(page, offset, slot);
    }

    /// Writes slots starting at `index`, page by page.
    #[inline]
    pub(super) fn write_all<const N: usize>(
        &self,
        words: &impl RingMemory,
        mut index: u32,
        mut slots: &[[u32; N]],
    ) {
        while !slots.is_empty() {
            let number = self.masked(index);
            let (page, offset) = self.place.of(number);
            let left = SLOTS_PER_PAGE - number % SLOTS_PER_PAGE;
            let (here, rest) = slots.split_at(slots.len().min(left as usize));
            if self.place.stride == N * 4 {
                words.write_run(page, offset, here);
            } else {
                for (n, slot) in here.iter().enumerate() {
                    words.write(page, offset + n * self.place.stride, *slot);
                }
            }
            index = index.wrapping_add(here.len() as u32);
            slots = rest;
        }
    }

    #[inline]
    pub(super) fn masked(&self, index: u32) -> u32 {
        index & self.count.wrapping_sub(1)
    }
}
