//! A domain's window: what each of its page-sized slots holds.

use abi::{Handle, Slot};
use std::ops::Range;

/// What a slot of a window holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WindowSlot {
    /// Nothing.
    #[default]
    Free,
    /// What a table of counted grants, or an exchange, shows there.
    Table(Handle),
    /// A page of the device of this number.
    Device(u64),
    /// A page that was mapped by itself ([`super::mechanism`]).
    Page,
}

/// Slots of a piece.
const PIECE: usize = 512;

/// Slots side by side, of which some hold something or have held something.
#[derive(Debug)]
struct Piece {
    /// Slots that hold something.
    used: usize,
    slots: [WindowSlot; PIECE],
}

impl Piece {
    const FREE: Self = Self {
        used: 0,
        slots: [WindowSlot::Free; PIECE],
    };
}

/// The slots of one domain's window. What nothing was ever put into takes no memory, however large
/// the window is.
#[derive(Debug)]
pub struct Window {
    slots: u32,
    pieces: Vec<Option<Box<Piece>>>,
}

impl Window {
    pub(crate) fn new(slots: u32) -> Self {
        let pieces = (slots as usize).div_ceil(PIECE);
        Self {
            slots,
            pieces: std::iter::repeat_with(|| None).take(pieces).collect(),
        }
    }

    /// How many slots there are.
    #[must_use]
    pub fn slot_count(&self) -> u32 {
        self.slots
    }

    /// What a slot holds, if it exists.
    pub(crate) fn get(&self, slot: Slot) -> Option<WindowSlot> {
        if slot.0 >= self.slots {
            return None;
        }
        let at = slot.0 as usize;
        match self.pieces.get(at / PIECE)? {
            Some(piece) => piece.slots.get(at % PIECE).copied(),
            None => Some(WindowSlot::Free),
        }
    }

    /// Slots that lie side by side and may hold something: all others are free.
    pub fn parts(&self) -> impl Iterator<Item = &[WindowSlot]> {
        let pieces = self.pieces.iter().flatten();
        pieces.map(|piece| piece.slots.as_slice())
    }

    /// Whether a slot exists and holds nothing.
    #[must_use]
    pub fn is_free(&self, slot: Slot) -> bool {
        self.get(slot) == Some(WindowSlot::Free)
    }

    /// Puts something into a slot, or takes it out. The memory of its piece stays.
    pub fn set(&mut self, slot: Slot, to: WindowSlot) {
        if slot.0 >= self.slots {
            return;
        }
        let at = slot.0 as usize;
        if let Some(piece) = self.pieces.get_mut(at / PIECE) {
            let piece = piece.get_or_insert_with(|| Box::new(Piece::FREE));
            if let Some(place) = piece.slots.get_mut(at % PIECE) {
                piece.used += usize::from(to != WindowSlot::Free);
                piece.used -= usize::from(*place != WindowSlot::Free);
                *place = to;
            }
        }
    }

    /// Takes free slots for what they are to hold, a table, an exchange or a device; all or none.
    /// Whether it could.
    pub(crate) fn reserve(&mut self, holds: WindowSlot, ranges: &[Range<u32>]) -> bool {
        for (n, range) in ranges.iter().enumerate() {
            if !range.clone().all(|slot| self.is_free(Slot(slot))) {
                self.unreserve(ranges.get(..n).unwrap_or_default());
                return false;
            }
            for slot in range.clone() {
                self.set(Slot(slot), holds);
            }
        }
        true
    }

    /// Frees slots that a table, an exchange or a device had, and the memory of pieces in which
    /// nothing is left.
    pub(crate) fn unreserve(&mut self, ranges: &[Range<u32>]) {
        for slot in ranges.iter().cloned().flatten().map(Slot) {
            if self.is_free(slot) {
                continue;
            }
            self.set(slot, WindowSlot::Free);
            let piece = self.pieces.get_mut(slot.0 as usize / PIECE);
            if let Some(place) = piece
                && place.as_ref().is_some_and(|piece| piece.used == 0)
            {
                *place = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::layout::WINDOW_SLOTS_MAX;

    fn pieces(window: &Window) -> usize {
        window.parts().count()
    }

    #[test]
    fn the_largest_window_takes_memory_for_what_is_in_it() {
        let mut window = Window::new(WINDOW_SLOTS_MAX);
        let table = WindowSlot::Table(Handle(1));
        let last = WINDOW_SLOTS_MAX;
        assert!(window.reserve(table, &[0..3, last - 700..last]));
        assert_eq!(pieces(&window), 3);
        assert!(!window.reserve(WindowSlot::Device(0), &[5000..5001, 2..4]));
        assert!(!window.reserve(WindowSlot::Device(0), &[9..10, last..last + 1]));
        assert_eq!(pieces(&window), 3, "what was refused left nothing");
        assert_eq!(window.get(Slot(last - 1)), Some(table));
        assert_eq!(window.get(Slot(last)), None);
        assert!(window.is_free(Slot(3)) && !window.is_free(Slot(last)));
        window.unreserve(&[0..3, last - 700..last]);
        assert_eq!(pieces(&window), 0);
    }
}
