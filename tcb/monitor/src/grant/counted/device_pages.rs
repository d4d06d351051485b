//! The pages of a table that are mapped for a device.

use abi::{DomId, Slot};
use std::collections::BTreeSet;
use std::ops::Range;

/// The device of a table, and the pages that are mapped for it.
#[derive(Debug)]
pub(super) struct DevicePages {
    pub(super) device: DomId,
    /// The slots of the table's entries in the device's window.
    pub(super) slots: Range<u32>,
    /// The entries whose pages are mapped in that window.
    pub(super) mapped: BTreeSet<u32>,
}

impl DevicePages {
    /// Returns whether the page of an entry is mapped.
    pub(super) fn contains(&self, index: u32) -> bool {
        self.mapped.contains(&index)
    }

    /// Removes the page of an entry. Returns its slot if it was mapped.
    pub(super) fn remove(&mut self, index: u32) -> Option<Slot> {
        self.mapped.remove(&index).then(|| self.slot(index))
    }

    /// Returns the slots of all mapped pages.
    pub(super) fn mapped_slots(&self) -> Vec<Slot> {
        self.mapped.iter().map(|&index| self.slot(index)).collect()
    }

    fn slot(&self, index: u32) -> Slot {
        Slot(self.slots.start + index)
    }

    /// Returns the number of mapped pages.
    pub(super) fn pages(&self) -> u32 {
        self.mapped.len() as u32
    }
}
