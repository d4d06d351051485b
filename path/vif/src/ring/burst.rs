//! Slots on their way out of the ring's pages, a burst at once: an access that survives a fault
//! hides from the compiler what is in registers, so it is made for many slots.
//!
//! What is written goes straight into the pages: gathered slots would be read again before the
//! processor has written them, and wait for every store before.

use super::{BURST, Place, SLOTS_PER_PAGE, Words, fits, slots};

/// Where slots of one kind lie, in a ring of so many slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    pub(super) place: Place,
    pub(super) slots: u32,
}

impl Slots {
    /// The requests of `REQ` words and the responses of `RSP` that lie in `words`.
    pub(super) fn of<const REQ: usize, const RSP: usize>(words: &impl Words) -> (Self, Self) {
        const { assert!(fits(REQ, RSP)) };
        let format = words.format();
        let slots = slots(words.pages().trailing_zeros() as u8);
        let of = |place| Self { place, slots };
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
        index & self.slots.wrapping_sub(1)
    }
}

/// Slots of the peer's that were copied out: each is read once, unless somebody goes back.
#[derive(Debug)]
pub(super) struct Window<const N: usize> {
    copied: [[u32; N]; BURST],
    /// Index of the first one.
    first: u32,
    count: u32,
}

impl<const N: usize> Window<N> {
    pub(super) const fn new() -> Self {
        Self {
            copied: [[0; N]; BURST],
            first: 0,
            count: 0,
        }
    }

    /// Slot `index`, which is published; `end` is the first index that is not.
    #[inline(always)]
    pub(super) fn get(
        &mut self,
        words: &impl Words,
        slots: &Slots,
        index: u32,
        end: u32,
    ) -> Option<[u32; N]> {
        if index.wrapping_sub(self.first) >= self.count {
            self.copy(words, slots, index, end);
        }
        let at = index.wrapping_sub(self.first);
        self.copied.get(at as usize).copied()
    }

    /// Slots from `index` on, which is published, as many as were copied out together; `end` is the first
    /// index that is not published.
    #[inline]
    pub(super) fn burst(
        &mut self,
        words: &impl Words,
        slots: &Slots,
        index: u32,
        end: u32,
    ) -> &[[u32; N]] {
        if index.wrapping_sub(self.first) >= self.count {
            self.copy(words, slots, index, end);
        }
        let at = index.wrapping_sub(self.first) as usize;
        self.copied.get(at..self.count as usize).unwrap_or(&[])
    }

    /// Copies out what lies together from slot `index` on.
    #[cold]
    #[inline(never)]
    fn copy(&mut self, words: &impl Words, slots: &Slots, index: u32, end: u32) {
        let number = slots.masked(index);
        let (page, offset) = slots.place.of(number);
        let left = SLOTS_PER_PAGE - number % SLOTS_PER_PAGE;
        self.first = index;
        self.count = left.min(end.wrapping_sub(index)).min(BURST as u32);
        let room = self.copied.get_mut(..self.count as usize);
        words.read(page, offset, slots.place.stride, room.unwrap_or(&mut []));
    }
}
