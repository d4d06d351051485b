//! A domain's window: what each of its page-sized slots holds.

use super::entry::PinnedGrant;
use abi::{Handle, Slot};
use std::ops::Range;

/// What a slot of a window holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WindowSlot {
    /// Nothing.
    #[default]
    Free,
    /// A page that is just being mapped or unmapped: pinned, and touched by its own worker alone.
    Busy(PinnedGrant),
    /// A page.
    Mapped(PinnedGrant),
    /// What a table of counted grants or an exchange shows there.
    Table(Handle),
    /// A page of the device of this number.
    Device(u64),
}

impl WindowSlot {
    /// The grant behind a page, mapped or on its way.
    pub(crate) fn pin(&self) -> Option<&PinnedGrant> {
        match self {
            Self::Free | Self::Table(_) | Self::Device(_) => None,
            Self::Busy(pin) | Self::Mapped(pin) => Some(pin),
        }
    }
}

/// Slots of a piece.
const PIECE: usize = 512;

/// Slots side by side, of which some hold something or have held a page.
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
pub(crate) struct Window {
    slots: u32,
    pieces: Vec<Option<Box<Piece>>>,
    /// Slots that hold a pinned grant. Counted beside the slots, so that the audit can compare.
    pub(crate) taken: u32,
}

impl Window {
    pub(crate) fn new(slots: u32) -> Self {
        let pieces = (slots as usize).div_ceil(PIECE);
        Self {
            slots,
            pieces: std::iter::repeat_with(|| None).take(pieces).collect(),
            taken: 0,
        }
    }

    /// How many slots there are.
    pub(crate) fn len(&self) -> u32 {
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
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[WindowSlot]> {
        let pieces = self.pieces.iter().flatten();
        pieces.map(|piece| piece.slots.as_slice())
    }

    /// Every pinned grant.
    pub(crate) fn pins(&self) -> impl Iterator<Item = &PinnedGrant> {
        self.parts().flatten().filter_map(WindowSlot::pin)
    }

    /// Whether a slot exists and holds nothing.
    pub(crate) fn is_free(&self, slot: Slot) -> bool {
        self.get(slot) == Some(WindowSlot::Free)
    }

    /// Puts a grant that is about to be mapped into a free slot.
    pub(crate) fn take(&mut self, slot: Slot, pin: PinnedGrant) {
        self.taken += 1;
        self.set(slot, WindowSlot::Busy(pin));
    }

    /// The page of a slot that was taken is mapped now.
    pub(crate) fn map(&mut self, slot: Slot, pin: PinnedGrant) {
        self.set(slot, WindowSlot::Mapped(pin));
    }

    /// A page that is mapped is about to be unmapped; its grant. None: no page is mapped there.
    pub(crate) fn begin_unmap(&mut self, slot: Slot) -> Option<PinnedGrant> {
        let Some(WindowSlot::Mapped(pin)) = self.get(slot) else {
            return None;
        };
        self.set(slot, WindowSlot::Busy(pin));
        Some(pin)
    }

    /// Frees a slot that was taken.
    pub(crate) fn free(&mut self, slot: Slot) {
        self.set(slot, WindowSlot::Free);
        self.taken = self.taken.saturating_sub(1);
    }

    /// Frees the slots of one piece after the other, from the one that slot `from` is in on, until
    /// `budget` of them have been looked at; the grants that were there, and where to go on, if
    /// there is more. What holds no page is freed too.
    pub(crate) fn clear(&mut self, from: u32, budget: u32) -> (Vec<PinnedGrant>, Option<u32>) {
        let mut pins = Vec::new();
        let (mut at, mut looked) = (from as usize / PIECE, 0);
        while let Some(place) = self.pieces.get_mut(at) {
            if looked >= budget {
                self.taken = self.taken.saturating_sub(pins.len() as u32);
                return (pins, Some((at * PIECE) as u32));
            }
            at += 1;
            if let Some(piece) = place.take() {
                looked += PIECE as u32;
                pins.extend(piece.slots.iter().filter_map(WindowSlot::pin));
            }
        }
        self.taken = self.taken.saturating_sub(pins.len() as u32);
        (pins, None)
    }

    pub(super) fn set(&mut self, slot: Slot, to: WindowSlot) {
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
            if let Some(WindowSlot::Table(_) | WindowSlot::Device(_)) = self.get(slot) {
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

    #[test]
    fn a_window_is_cleared_piece_by_piece() {
        let pin = |index| PinnedGrant {
            granter: abi::DomId(1),
            index,
            frame: 0,
            write: false,
        };
        let mut window = Window::new(10_000);
        for index in [0, 1, 4000, 9999] {
            window.take(Slot(index), pin(index));
            window.map(Slot(index), pin(index));
        }
        assert_eq!(window.begin_unmap(Slot(4000)), Some(pin(4000)));
        assert_eq!(window.begin_unmap(Slot(4000)), None, "it is under way");
        window.free(Slot(1));
        let (mut pins, mut from, mut turns) = (Vec::new(), Some(0), 0);
        while let Some(at) = from {
            let (more, next) = window.clear(at, 1);
            pins.extend(more.iter().map(|pin| pin.index));
            (from, turns) = (next, turns + 1);
        }
        assert_eq!((pins, turns), (vec![0, 4000, 9999], 3));
        assert_eq!((window.taken, pieces(&window)), (0, 0));
    }
}
