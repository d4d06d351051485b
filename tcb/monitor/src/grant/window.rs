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

/// The slots of one domain's window.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) slots: Vec<WindowSlot>,
    /// Slots that hold a pinned grant. Counted beside the slots, so that the audit can compare.
    pub(crate) taken: u32,
}

impl Window {
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            slots: vec![WindowSlot::Free; slots as usize],
            taken: 0,
        }
    }

    /// A slot, if it exists.
    pub(crate) fn slot(&mut self, slot: u32) -> Option<&mut WindowSlot> {
        self.slots.get_mut(slot as usize)
    }

    /// Whether a slot exists and holds nothing.
    pub(crate) fn is_free(&self, slot: Slot) -> bool {
        self.slots.get(slot.0 as usize) == Some(&WindowSlot::Free)
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

    /// Frees a slot that was taken.
    pub(crate) fn free(&mut self, slot: Slot) {
        self.set(slot, WindowSlot::Free);
        self.taken = self.taken.saturating_sub(1);
    }

    fn set(&mut self, slot: Slot, to: WindowSlot) {
        if let Some(place) = self.slot(slot.0) {
            *place = to;
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

    /// Frees slots that a table, an exchange or a device had.
    pub(crate) fn unreserve(&mut self, ranges: &[Range<u32>]) {
        for slot in ranges.iter().cloned().flatten() {
            if let Some(place @ (WindowSlot::Table(_) | WindowSlot::Device(_))) = self.slot(slot) {
                *place = WindowSlot::Free;
            }
        }
    }
}
