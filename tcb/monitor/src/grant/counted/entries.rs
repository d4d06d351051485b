//! The entries of a table: their grants, and the number of mappings that the grants take in the
//! user's address space.
//!
//! Adjacent entries form one mapping, called a *piece*, if none of them has a grant, or if they
//! grant adjacent frames with the same access. The kernel limits a process's mappings, so each
//! table has a share of the user's limit and never has more pieces than its share.

use abi::counted::{GENERATION_MAX, Translation};

/// Mappings of the user itself (program, stacks, memory, devices), and those that a batch adds
/// temporarily (two per operation).
const OWN_MAPPINGS: u32 = 2048;

/// Returns the maximum number of pieces of a table of `slots` slots, in a window of `window_slots`
/// slots, if a process may have `mappings` mappings. The two mappings of the table's sub-tables are
/// already subtracted.
pub(super) fn pieces_max(slots: u32, window_slots: u32, mappings: u32) -> u32 {
    let all = u64::from(mappings.saturating_sub(OWN_MAPPINGS));
    let share = all * u64::from(slots) / u64::from(window_slots.max(1));
    u32::try_from(share).unwrap_or(u32::MAX).saturating_sub(2)
}

/// The current grant of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CurrentGrant {
    pub(super) frame: u32,
    pub(super) readonly: bool,
    /// Whether the page is granted for I/O.
    pub(super) io: bool,
}

/// One entry: the generation of its last grant, and its current grant, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CountedEntry {
    pub(super) generation: u32,
    pub(super) granted: Option<CurrentGrant>,
    /// Whether new uses are rejected until the grant is revoked.
    pub(super) draining: bool,
}

impl CountedEntry {
    /// Returns the translation word of the entry while it is valid.
    pub(super) fn translation(&self) -> Translation {
        self.granted.map_or(Translation::INVALID, |granted| {
            Translation::valid(granted.frame, self.generation, granted.readonly)
        })
    }

    /// Begins a new generation.
    pub(super) fn begin_generation(&mut self) {
        self.generation = self.generation % GENERATION_MAX + 1;
        self.draining = false;
    }
}

/// The entries of one table.
#[derive(Debug)]
pub(super) struct CountedEntries {
    list: Vec<CountedEntry>,
    /// The number of boundaries between two pieces.
    seams: u32,
}

impl CountedEntries {
    pub(super) fn new(count: u32) -> Self {
        Self {
            list: vec![CountedEntry::default(); count as usize],
            seams: 0,
        }
    }

    pub(super) fn get(&self, index: u32) -> Option<&CountedEntry> {
        self.list.get(index as usize)
    }

    /// Returns the entries that have a grant, with their indices.
    pub(super) fn granted(&self) -> impl Iterator<Item = (u32, &CountedEntry, CurrentGrant)> {
        let all = (0..).zip(&self.list);
        all.filter_map(|(index, entry)| Some((index, entry, entry.granted?)))
    }

    /// Returns the number of pieces, each of which takes one mapping.
    pub(super) fn pieces(&self) -> u32 {
        self.seams + 1
    }

    /// Returns the number of pieces that would remain without the grants of these entries.
    pub(super) fn pieces_without(&mut self, indices: &[u32]) -> u32 {
        let before: Vec<_> = indices.iter().map(|&index| self.set(index, None)).collect();
        let pieces = self.pieces();
        // Restore in reverse order, so that an index that occurs twice has its original grant
        // afterwards.
        for (&index, granted) in indices.iter().zip(before).rev() {
            self.set(index, granted);
        }
        pieces
    }

    /// Sets the grant of an entry that has none, under a new generation. Returns false, and changes
    /// nothing, if the table would then have more than `pieces_max` pieces.
    pub(super) fn grant(&mut self, index: u32, granted: CurrentGrant, pieces_max: u32) -> bool {
        self.set(index, Some(granted));
        let fits = self.pieces() <= pieces_max;
        if !fits {
            self.set(index, None);
        } else if let Some(entry) = self.list.get_mut(index as usize) {
            entry.begin_generation();
        }
        fits
    }

    /// Removes and returns an entry's grant.
    pub(super) fn revoke(&mut self, index: u32) -> Option<CurrentGrant> {
        if let Some(entry) = self.list.get_mut(index as usize) {
            entry.draining = false;
        }
        self.set(index, None)
    }

    /// Stops new uses of an entry.
    pub(super) fn drain(&mut self, index: u32) {
        if let Some(entry) = self.list.get_mut(index as usize) {
            entry.draining = true;
        }
    }

    /// Removes and returns all grants.
    pub(super) fn revoke_all(&mut self) -> Vec<CurrentGrant> {
        self.seams = 0;
        let all = self.list.iter_mut();
        all.filter_map(|entry| entry.granted.take()).collect()
    }

    fn set(&mut self, index: u32, granted: Option<CurrentGrant>) -> Option<CurrentGrant> {
        self.seams -= self.seams_at(index);
        let entry = self.list.get_mut(index as usize);
        let before = entry.and_then(|entry| std::mem::replace(&mut entry.granted, granted));
        self.seams += self.seams_at(index);
        before
    }

    /// Returns the number of seams directly before and after an entry.
    fn seams_at(&self, index: u32) -> u32 {
        let from = (index as usize).saturating_sub(1);
        let around = self.list.get(from..).unwrap_or_default();
        let around = around.get(..index as usize + 2 - from).unwrap_or(around);
        let seams = around.windows(2).filter(|pair| match pair {
            [left, right] => !continues(left.granted, right.granted),
            _ => false,
        });
        seams.count() as u32
    }
}

/// Returns whether two adjacent entries belong to one mapping.
fn continues(left: Option<CurrentGrant>, right: Option<CurrentGrant>) -> bool {
    match (left, right) {
        (None, None) => true,
        (Some(left), Some(right)) => {
            left.readonly == right.readonly && left.frame.checked_add(1) == Some(right.frame)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: u32 = u32::MAX;

    fn frame(frame: u32) -> CurrentGrant {
        let readonly = frame.is_multiple_of(7);
        CurrentGrant {
            frame,
            readonly,
            io: false,
        }
    }

    /// Counts pieces by a scan of all entries.
    fn counted(entries: &CountedEntries) -> u32 {
        let all: Vec<_> = entries.list.iter().map(|entry| entry.granted).collect();
        let seams = all.windows(2).filter(|w| !continues(w[0], w[1]));
        seams.count() as u32 + 1
    }

    proptest! {
        #[test]
        fn pieces_are_counted_on_every_change(
            ops in prop::collection::vec((0..8u32, prop::option::of(0..12u32)), 0..40),
        ) {
            let mut entries = CountedEntries::new(8);
            for (index, granted) in ops {
                match granted {
                    Some(number) if entries.get(index).unwrap().granted.is_none() => {
                        let pieces = entries.pieces();
                        let fits = entries.grant(index, frame(number), 5);
                        prop_assert!(entries.pieces() <= pieces.max(5));
                        prop_assert_eq!(entries.get(index).unwrap().granted.is_some(), fits);
                    }
                    _ => {
                        let without = entries.pieces_without(&[index, index]);
                        entries.revoke(index);
                        prop_assert_eq!(entries.pieces(), without);
                    }
                }
                prop_assert_eq!(entries.pieces(), counted(&entries));
            }
            entries.revoke_all();
            prop_assert_eq!(entries.pieces(), 1);
        }
    }

    #[test]
    fn adjacent_frames_of_equal_access_are_one_piece() {
        let mut entries = CountedEntries::new(8);
        for index in 0..6 {
            assert!(entries.grant(index, frame(index + 1), MAX));
        }
        assert_eq!(entries.pieces(), 2, "six pages and a hole");
        assert_eq!(entries.pieces_without(&[1, 3]), 6);
        assert!(entries.grant(6, frame(7), MAX), "read-only");
        assert_eq!(entries.pieces(), 3);
    }

    #[test]
    fn shares_of_all_tables_fit_the_mapping_limit() {
        // If the limit of mappings is high enough, every entry may be a separate piece.
        assert!(pieces_max(1027, 16 * 1027, 65_530) >= 1024);
        assert!(pieces_max(63_482, 63_482, 65_530) >= 63_480);
        // 64 guests of 1024 entries each have a slightly smaller share.
        let share = pieces_max(1027, 64 * 1027, 65_530);
        assert_eq!(share, 989);
        assert!(64 * (share + 2) <= 65_530 - OWN_MAPPINGS);
        assert_eq!(pieces_max(MAX, 0, MAX), MAX - 2);
        assert_eq!(pieces_max(1, MAX, 100), 0);
    }
}
