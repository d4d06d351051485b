//! The state of a table that a device reaches.

use abi::{DomId, Slot};
use std::collections::BTreeSet;
use std::ops::Range;

/// The device of a table, and the pages that it reaches.
#[derive(Debug)]
pub(super) struct DevicePages {
    pub(super) device: DomId,
    /// The slots of the entries in its window.
    pub(super) slots: Range<u32>,
    /// The entries whose pages are mapped there.
    pub(super) mapped: BTreeSet<u32>,
}

impl DevicePages {
    /// Returns whether the device reaches the page of an entry.
    pub(super) fn shows(&self, index: u32) -> bool {
        self.mapped.contains(&index)
    }

    /// Forgets the page of an entry. Returns its slot if the device reaches it.
    pub(super) fn hide(&mut self, index: u32) -> Option<Slot> {
        self.mapped.remove(&index).then(|| self.slot(index))
    }

    /// Returns the slots of all pages that the device reaches.
    pub(super) fn mapped_slots(&self) -> Vec<Slot> {
        self.mapped.iter().map(|&index| self.slot(index)).collect()
    }

    fn slot(&self, index: u32) -> Slot {
        Slot(self.slots.start + index)
    }

    /// Returns the number of pages that the device reaches.
    pub(super) fn pages(&self) -> u32 {
        self.mapped.len() as u32
    }
}
