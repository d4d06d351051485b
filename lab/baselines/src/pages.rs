//! The slots of one domain's window, and the pages that are individually mapped there.

use crate::entry::PinnedGrant;
use abi::Slot;

/// State of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// The slot has no individually mapped page.
    #[default]
    Empty,
    /// A page is being mapped or unmapped. It is pinned, and only the domain's worker changes the
    /// slot.
    Busy(PinnedGrant),
    /// A page is mapped.
    Mapped(PinnedGrant),
}

impl SlotState {
    /// Returns the pinned grant of the page, whether the page is mapped or in transition.
    pub(crate) fn pin(&self) -> Option<&PinnedGrant> {
        match self {
            Self::Empty => None,
            Self::Busy(pin) | Self::Mapped(pin) => Some(pin),
        }
    }
}

/// Number of slots per chunk.
const CHUNK_SLOTS: usize = 512;

type Chunk = [SlotState; CHUNK_SLOTS];

/// The individually mapped pages of one window. Chunks without pages use no memory.
#[derive(Debug)]
pub(crate) struct Pages {
    chunks: Vec<Option<Box<Chunk>>>,
    /// Number of slots with a page. It is counted separately, so that the audit can compare it.
    pub(crate) taken: u32,
}

impl Pages {
    /// Creates an empty window of `slots` slots.
    pub(crate) fn new(slots: u32) -> Self {
        let chunks = (slots as usize).div_ceil(CHUNK_SLOTS);
        Self {
            chunks: std::iter::repeat_with(|| None).take(chunks).collect(),
            taken: 0,
        }
    }

    /// Returns the state of a slot.
    pub(crate) fn get(&self, slot: Slot) -> SlotState {
        let at = slot.0 as usize;
        let chunk = self.chunks.get(at / CHUNK_SLOTS).and_then(Option::as_ref);
        let shown = chunk.and_then(|chunk| chunk.get(at % CHUNK_SLOTS));
        shown.copied().unwrap_or_default()
    }

    /// Returns all pinned grants.
    pub(crate) fn pins(&self) -> impl Iterator<Item = &PinnedGrant> {
        let slots = self.chunks.iter().flatten().flat_map(|chunk| chunk.iter());
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

    /// Starts to unmap a page, and returns its grant. Returns `None` if no page is mapped at the
    /// slot.
    pub(crate) fn begin_unmap(&mut self, slot: Slot) -> Option<PinnedGrant> {
        let SlotState::Mapped(pin) = self.get(slot) else {
            return None;
        };
        self.set(slot, SlotState::Busy(pin));
        Some(pin)
    }

    /// Frees a reserved slot.
    pub(crate) fn free(&mut self, slot: Slot) {
        self.set(slot, SlotState::Empty);
        self.taken = self.taken.saturating_sub(1);
    }

    /// Frees slots chunk by chunk, starting at the chunk that contains slot `from`, until it has
    /// visited `budget` slots. Returns the slots with their grants, and the slot at which to
    /// continue if slots remain.
    pub(crate) fn clear(
        &mut self,
        from: u32,
        budget: u32,
    ) -> (Vec<(Slot, PinnedGrant)>, Option<u32>) {
        let mut pins = Vec::new();
        let (mut at, mut visited) = (from as usize / CHUNK_SLOTS, 0);
        let mut next = None;
        while let Some(place) = self.chunks.get_mut(at) {
            let first = (at * CHUNK_SLOTS) as u32;
            if visited >= budget {
                next = Some(first);
                break;
            }
            at += 1;
            if let Some(chunk) = place.take() {
                visited += CHUNK_SLOTS as u32;
                let slots = (first..).map(Slot).zip(chunk.iter());
                pins.extend(slots.filter_map(|(slot, shown)| Some((slot, *shown.pin()?))));
            }
        }
        self.taken = self.taken.saturating_sub(pins.len() as u32);
        (pins, next)
    }

    pub(crate) fn set(&mut self, slot: Slot, to: SlotState) {
        let at = slot.0 as usize;
        if let Some(chunk) = self.chunks.get_mut(at / CHUNK_SLOTS) {
            let chunk = chunk.get_or_insert_with(|| Box::new([SlotState::Empty; CHUNK_SLOTS]));
            if let Some(place) = chunk.get_mut(at % CHUNK_SLOTS) {
                *place = to;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_cleared_in_chunks() {
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
