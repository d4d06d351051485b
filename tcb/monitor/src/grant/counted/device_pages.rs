//! The state of a table that a device reaches.

use abi::DomId;
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

    /// Returns the number of pages that the device reaches.
    pub(super) fn pages(&self) -> u32 {
        self.mapped.len() as u32
    }
}
