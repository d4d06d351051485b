//! A domain's window: page-sized slots and their contents.

use abi::Handle;
use std::collections::BTreeMap;
use std::ops::Range;

/// The contents of a window slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowSlot {
    /// A page of a table of counted grants, or of an exchange.
    Table(Handle),
    /// A page of the device with this number.
    Device(u64),
    /// A page that was mapped individually ([`super::mechanism`]).
    Page,
}

/// The slots of one domain's window.
#[derive(Debug)]
pub struct WindowSlots {
    slots: u32,
    /// Reserved ranges by their first slot: the slot after the last one, and the contents. No two
    /// ranges overlap.
    held: BTreeMap<u32, (u32, WindowSlot)>,
}

impl WindowSlots {
    pub(crate) fn new(slots: u32) -> Self {
        let held = BTreeMap::new();
        Self { slots, held }
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn slot_count(&self) -> u32 {
        self.slots
    }

    /// Returns the reserved ranges of slots; all other slots are free.
    pub fn held(&self) -> impl Iterator<Item = (Range<u32>, WindowSlot)> {
        let held = self.held.iter();
        held.map(|(&from, &(to, contents))| (from..to, contents))
    }

    /// Returns whether all of these slots exist and are free.
    #[must_use]
    pub fn is_free(&self, range: &Range<u32>) -> bool {
        let before = self.held.range(..range.end).next_back();
        range.end <= self.slots && before.is_none_or(|(_, (end, _))| *end <= range.start)
    }

    /// Reserves slots, all or none. Returns whether they were free.
    pub fn reserve(&mut self, contents: WindowSlot, ranges: &[Range<u32>]) -> bool {
        for (n, range) in ranges.iter().enumerate().filter(|(_, r)| !r.is_empty()) {
            if !self.is_free(range) {
                self.unreserve(ranges.get(..n).unwrap_or_default());
                return false;
            }
            self.held.insert(range.start, (range.end, contents));
        }
        true
    }

    /// Frees slots; each range must equal a reserved range.
    pub fn unreserve(&mut self, ranges: &[Range<u32>]) {
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            let held = self.held.get(&range.start);
            if held.is_some_and(|(end, _)| *end == range.end) {
                self.held.remove(&range.start);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::layout::WINDOW_SLOTS_MAX;

    #[test]
    fn a_window_takes_memory_for_its_contents_only() {
        let mut window = WindowSlots::new(WINDOW_SLOTS_MAX);
        let table = WindowSlot::Table(Handle(1));
        let last = WINDOW_SLOTS_MAX;
        let both = [0..3, last - 700..last];
        assert!(window.reserve(table, &both));
        let held = || both.clone().map(|range| (range, table));
        assert!(window.held().eq(held()));
        for refused in [
            [5000..5001, 2..4],
            [9..10, last..last + 1],
            [9..10, 9..11],
            [9..10, last - 701..last],
            [9..10, last - 700..last - 699],
            [9..10, last - 1..last],
            [9..10, 0..u32::MAX],
        ] {
            assert!(
                !window.reserve(WindowSlot::Device(0), &refused),
                "{refused:?}"
            );
        }
        assert!(
            window.held().eq(held()),
            "a rejected reservation left slots reserved"
        );
        assert!(window.is_free(&(3..last - 700)));
        for taken in [2..3, 2..4, last - 701..last - 699, last..last + 1] {
            assert!(!window.is_free(&taken), "{taken:?}");
        }
        window.unreserve(&both);
        assert_eq!(window.held().count(), 0);
        assert!(window.is_free(&(0..last)));
    }

    #[test]
    fn empty_ranges_reserve_nothing() {
        let mut window = WindowSlots::new(8);
        assert!(window.reserve(WindowSlot::Page, &[3..5, 6..7]));
        assert!(window.reserve(WindowSlot::Device(0), &[3..3, 9..9]));
        window.unreserve(&[3..3, 9..9]);
        assert_eq!(window.held().count(), 2);
    }
}
