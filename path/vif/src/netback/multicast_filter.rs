//! Multicast control (NETIF-28): the guest's filter, in memory that may outlive the process.
//!
//! ```text
//!    0  u32 whole     1: every change since the connection began was recorded
//!    4  u32 applied   1: frames for groups outside the list are dropped
//!    8  u32 count
//!   16  u64[64]       addresses: six bytes, two of zeros
//! ```
//!
//! OWNERSHIP. The memory belongs to this domain; no peer can access it. The process with the back
//! end of the rings writes it; after a restart, its successor does.

use net::packet::Mac;
use shmem::Span;

/// Maximum number of groups per guest.
pub const GROUPS_MAX: usize = 64;

const WHOLE: usize = 0;
const APPLIED: usize = 4;
const COUNT: usize = 8;
const LIST: usize = 16;
/// Bytes of an address in the list.
const ENTRY: usize = 8;

/// One guest's multicast filter.
#[derive(Clone, Copy, Debug)]
pub struct MulticastFilter(Span);

/// A change that the guest requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupChange {
    pub(super) group: [u8; 6],
    pub(super) joins: bool,
}

impl MulticastFilter {
    /// Size of the filter in bytes.
    pub const BYTES: usize = LIST + GROUPS_MAX * ENTRY;

    /// Opens the filter in `memory`, which must start zeroed; a zeroed filter passes everything.
    #[must_use]
    pub const fn in_memory(memory: Span) -> Self {
        Self(memory)
    }

    /// Begins a connection: clears the list. From now on the filter records all changes.
    pub fn begin(self) {
        let _ = self.0.fill(0);
        let _ = self.0.store_u32(WHOLE, 1);
    }

    /// Sets whether frames for other groups are dropped.
    pub fn apply(self, applied: bool) {
        let _ = self.0.store_u32(APPLIED, applied.into());
    }

    /// Returns whether the filter applies. Returns false if the filter may lack a change.
    #[must_use]
    pub fn is_applied(self) -> bool {
        self.0.load_u32(APPLIED) == Ok(1) && self.0.load_u32(WHOLE) == Ok(1)
    }

    /// Makes a change to the list. Idempotent: a process that takes over from a killed one may
    /// repeat it. Returns false if the list is full.
    pub(super) fn change(self, change: GroupChange) -> bool {
        let group = word(&change.group);
        let (count, found) = (self.count(), self.position(group));
        match (change.joins, found) {
            (true, Some(_)) | (false, None) => true,
            (true, None) if count == GROUPS_MAX => false,
            (true, None) => {
                // The count is stored after the entry, so that a kill in between leaves a valid
                // list.
                let _ = self.0.store_u64(LIST + count * ENTRY, group);
                self.0.store_u32(COUNT, count as u32 + 1).is_ok()
            }
            (false, Some(at)) => {
                // Until the count is stored, the list holds the last entry twice.
                let last = self.at(count - 1).unwrap_or_default();
                let _ = self.0.store_u64(LIST + at * ENTRY, last);
                let _ = self.0.store_u32(COUNT, count as u32 - 1);
                // Also removes a duplicate that a killed process left.
                self.position(group).is_none() || self.change(change)
            }
        }
    }

    /// Returns whether a frame with this header passes the filter: it is unicast, broadcast, or for
    /// a group in the list.
    pub(super) fn matches(self, header: &[u8]) -> bool {
        let Some(to) = header.first_chunk().copied().map(Mac) else {
            return true;
        };
        !to.is_group() || to == Mac::BROADCAST || self.position(word(&to.0)).is_some()
    }

    fn position(self, group: u64) -> Option<usize> {
        (0..self.count()).find(|at| self.at(*at) == Some(group))
    }

    fn at(self, n: usize) -> Option<u64> {
        self.0.load_u64(LIST + n * ENTRY).ok()
    }

    fn count(self) -> usize {
        (self.0.load_u32(COUNT).unwrap_or(0) as usize).min(GROUPS_MAX)
    }
}

fn word([a, b, c, d, e, f]: &[u8; 6]) -> u64 {
    u64::from_le_bytes([*a, *b, *c, *d, *e, *f, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use shmem::Area;
    use std::collections::BTreeSet;

    fn groups() -> MulticastFilter {
        let memory = Area::anonymous(abi::PAGE).unwrap().span();
        let groups = MulticastFilter::in_memory(memory.sub(0, MulticastFilter::BYTES).unwrap());
        groups.begin();
        groups
    }

    fn group(n: u8) -> [u8; 6] {
        [1, 0, 0x5e, 0, 0, n]
    }

    fn change(n: u8, joins: bool) -> GroupChange {
        let group = group(n);
        GroupChange { group, joins }
    }

    #[test]
    fn netif_28_zeroed_filter_passes_everything() {
        let memory = Area::anonymous(abi::PAGE).unwrap().span();
        for memory in [memory, Span::EMPTY] {
            let groups = MulticastFilter::in_memory(memory);
            groups.apply(true);
            assert!(!groups.is_applied(), "the list may lack groups");
        }
        groups().apply(true);
        assert!(!groups().is_applied());
    }

    #[test]
    fn netif_28_unicast_and_broadcast_always_pass() {
        let groups = groups();
        assert!(groups.matches(&[0xff; 14]));
        assert!(groups.matches(&[2; 14]));
        assert!(!groups.matches(&[3; 14]));
        assert!(!groups.matches(&group(1)));
        assert!(groups.matches(&[1, 2]), "no address at all");
    }

    #[test]
    fn netif_28_full_list_rejects_new_groups() {
        let groups = groups();
        let limit = GROUPS_MAX as u8;
        assert!((0..limit).all(|n| groups.change(change(n, true))));
        assert!(!groups.change(change(limit, true)));
        assert!(
            groups.change(change(3, true)),
            "the group is already in the list"
        );
        assert!(groups.change(change(3, false)));
        assert!(groups.change(change(limit, true)));
        assert!(groups.matches(&group(limit)) && !groups.matches(&group(3)));
    }

    #[test]
    fn duplicate_of_a_killed_process_is_removed() {
        let groups = groups();
        (0..3).for_each(|n| assert!(groups.change(change(n, true))));
        // Killed while removing group 0.
        groups.0.store_u64(LIST, word(&group(2))).unwrap();
        assert!(groups.matches(&group(2)) && groups.matches(&group(1)));
        assert!(groups.change(change(2, false)));
        assert!(!groups.matches(&group(2)) && groups.matches(&group(1)));
    }

    proptest! {
        #[test]
        fn the_list_is_a_set(changes in prop::collection::vec((0..80_u8, any::<bool>()), 0..300)) {
            let (groups, mut set) = (groups(), BTreeSet::new());
            for (n, joins) in changes {
                let fits = !joins || set.contains(&n) || set.len() < GROUPS_MAX;
                prop_assert_eq!(groups.change(change(n, joins)), fits);
                match joins {
                    true if fits => drop(set.insert(n)),
                    true => {}
                    false => drop(set.remove(&n)),
                }
                prop_assert!((0..80).all(|n| groups.matches(&group(n)) == set.contains(&n)));
            }
        }
    }
}
