//! Slots of one domain's window, and the individually mapped pages that they show.

use crate::entry::PinnedGrant;
use abi::Slot;

/// State of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// No individually mapped page.
    #[default]
    Nothing,
    /// A page that is being mapped or unmapped. It is pinned, and only the domain's worker uses it.
    Busy(PinnedGrant),
    /// A mapped page.
    Mapped(PinnedGrant),
}

impl SlotState {
    /// Returns the grant of the page, mapped or in transition.
    pub(crate) fn pin(&self) -> Option<&PinnedGrant> {
        match self {
            Self::Nothing => None,
            Self::Busy(pin) | Self::Mapped(pin) => Some(pin),
        }
    }
}

/// Slots per chunk.
const PIECE: usize = 512;

type Piece = [SlotState; PIECE];

/// Pages of one window. Chunks without pages take no memory.
#[derive(Debug)]
pub(crate) struct Pages {
    pieces: Vec<Option<Box<Piece>>>,
    /// Number of slots with a page, counted separately so that the audit can compare.
    pub(crate) taken: u32,
}

impl Pages {
    /// Creates an empty window of `slots` slots.
    pub(crate) fn new(slots: u32) -> Self {
        let pieces = (slots as usize).div_ceil(PIECE);
        Self {
            pieces: std::iter::repeat_with(|| None).take(pieces).collect(),
            taken: 0,
        }
    }

    /// Returns the state of a slot.
    pub(crate) fn get(&self, slot: Slot) -> SlotState {
        let at = slot.0 as usize;
        let piece = self.pieces.get(at / PIECE).and_then(Option::as_ref);
        let shown = piece.and_then(|piece| piece.get(at % PIECE));
        shown.copied().unwrap_or_default()
    }

    /// Returns every pinned grant.
    pub(crate) fn pins(&self) -> impl Iterator<Item = &PinnedGrant> {
        let slots = self.pieces.iter().flatten().flat_map(|piece| piece.iter());
        slots.filter_map(SlotState::pin)
    }

    /// Reserves a free slot for a pinned grant.
    pub(crate) fn take(&mut self, slot: Slot, pin: PinnedGrant) {
        self.taken += 1;
        self.set(slot, SlotState::Busy(pin));
    }

    /// Marks a reserved slot as mapped.
    pub(crate) fn map(&mut self, slot: Slot, pin: PinnedGrant) {
        self.set(slot, SlotState::Mapped(pin));
    }

    /// Starts to unmap a page and returns its grant, or `None` if no page is mapped there.
    pub(crate) fn begin_unmap(&mut self, slot: Slot) -> Option<PinnedGrant> {
        let SlotState::Mapped(pin) = self.get(slot) else {
            return None;
        };
        self.set(slot, SlotState::Busy(pin));
        Some(pin)
    }

    /// Frees a reserved slot.
    pub(crate) fn free(&mut self, slot: Slot) {
        self.set(slot, SlotState::Nothing);
        self.taken = self.taken.saturating_sub(1);
    }

    /// Frees slots chunk by chunk, starting at the chunk that contains `from`, until it has visited
    /// `budget` slots. Returns their grants, and where to continue if slots remain.
    pub(crate) fn clear(
        &mut self,
        from: u32,
        budget: u32,
    ) -> (Vec<(Slot, PinnedGrant)>, Option<u32>) {
        let mut pins = Vec::new();
        let (mut at, mut looked) = (from as usize / PIECE, 0);
        let mut next = None;
        while let Some(place) = self.pieces.get_mut(at) {
            let first = (at * PIECE) as u32;
            if looked >= budget {
                next = Some(first);
                break;
            }
            at += 1;
            if let Some(piece) = place.take() {
                looked += PIECE as u32;
                let slots = (first..).map(Slot).zip(piece.iter());
                pins.extend(slots.filter_map(|(slot, shown)| Some((slot, *shown.pin()?))));
            }
        }
        self.taken = self.taken.saturating_sub(pins.len() as u32);
        (pins, next)
    }

    pub(crate) fn set(&mut self, slot: Slot, to: SlotState) {
        let at = slot.0 as usize;
        if let Some(piece) = self.pieces.get_mut(at / PIECE) {
            let piece = piece.get_or_insert_with(|| Box::new([SlotState::Nothing; PIECE]));
            if let Some(place) = piece.get_mut(at % PIECE) {
                *place = to;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_cleared_in_chunks() {
        let pin = |index| PinnedGrant {
            granter: abi::DomId(1),
            index,
            frame: 0,
            write: false,
        };
        let mut pages = Pages::new(10_000);
        for index in [0, 1, 4000, 9999] {
            pages.take(Slot(index), pin(index));
            pages.map(Slot(index), pin(index));
        }
        assert_eq!(pages.begin_unmap(Slot(4000)), Some(pin(4000)));
        assert_eq!(pages.begin_unmap(Slot(4000)), None, "it is being unmapped");
        pages.free(Slot(1));
        let (mut pins, mut from, mut turns) = (Vec::new(), Some(0), 0);
        while let Some(at) = from {
            let (more, next) = pages.clear(at, 1);
            pins.extend(more.iter().map(|(slot, pin)| (slot.0, pin.index)));
            (from, turns) = (next, turns + 1);
        }
        assert_eq!((pins, turns), (vec![(0, 0), (4000, 4000), (9999, 9999)], 3));
        assert_eq!((pages.taken, pages.pins().count()), (0, 0));
    }
}
