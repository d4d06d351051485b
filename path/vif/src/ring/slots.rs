//! Where slots lie, and how they are written.
//!
//! What is written goes straight into the pages: gathered slots would be read again before the
//! processor has written them, and wait for every store before.

use super::format::{self, Place, SLOTS_PER_PAGE, fits};
use super::words::Words;

/// Where slots of one kind lie, in a ring of so many slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    pub(super) place: Place,
    pub(super) count: u32,
}

impl Slots {
    /// The requests of `REQ` words and the responses of `RSP` that lie in `words`.
    pub(super) fn of<const REQ: usize, const RSP: usize>(words: &impl Words) -> (Self, Self) {
        const { assert!(fits(REQ, RSP)) };
        let format = words.format();
        let count = format::slots(words.pages().trailing_zeros() as u8);
        let of = |place| Self { place, count };
        (of(format.requests(REQ)), of(format.responses(REQ, RSP)))
    }

    /// Writes slot `index`.
    #[inline]
    pub(super) fn write<const N: usize>(&self, words: &impl Words, index: u32, slot: [u32; N]) {
        let (page, offset) = self.place.of(self.masked(index));
        words.write(page, offset, slot);
    }

    /// Writes slots from `index` on, page by page.
    #[inline]
    pub(super) fn write_all<const N: usize>(
        &self,
        words: &impl Words,
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
