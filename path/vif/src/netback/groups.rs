//! Multicast control (NETIF-28): which groups a guest wants to hear, in memory that may outlive the
//! process.
//!
//! ```text
//!    0  u32 whole     1: every change since the connection began was noted
//!    4  u32 applied   1: what is for a group that is not in the list is dropped
//!    8  u32 count
//!   16  u64[64]       addresses: six bytes, two of zeros
//! ```
//!
//! OWNERSHIP. The memory is this domain's own; no peer can touch it. The process that has the back
//! end of the rings writes it, one process after the other.

use net::packet::Mac;
use shmem::Span;

/// Groups that are kept for a guest.
pub const GROUPS_MAX: usize = 64;

const WHOLE: usize = 0;
const APPLIED: usize = 4;
const COUNT: usize = 8;
const LIST: usize = 16;
/// Bytes of an address in the list.
const ENTRY: usize = 8;

/// One guest's groups.
#[derive(Clone, Copy, Debug)]
pub struct Groups(Span);

/// What a guest asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) group: [u8; 6],
    pub(super) joins: bool,
}

impl Groups {
    /// Bytes that they take.
    pub const BYTES: usize = LIST + GROUPS_MAX * ENTRY;

    /// The groups in `memory`, which was made full of zeros: then everything passes.
    #[must_use]
    pub const fn over(memory: Span) -> Self {
        Self(memory)
    }

    /// A connection begins: there are none, and all that follows is noted.
    pub fn begin(self) {
        let _ = self.0.fill(0);
        let _ = self.0.store_u32(WHOLE, 1);
    }

    /// Whether what is for other groups is to be dropped.
    pub fn apply(self, applied: bool) {
        let _ = self.0.store_u32(APPLIED, applied.into());
    }

    /// Whether it is. It never is where some change of the list may not have been noted.
    #[must_use]
    pub fn is_applied(self) -> bool {
        self.0.load_u32(APPLIED) == Ok(1) && self.0.load_u32(WHOLE) == Ok(1)
    }

    /// Carries out a change. A process that takes over from a killed one may do so again: twice is
    /// the same as once. False: there is no room for a further group.
    pub(super) fn change(self, change: Change) -> bool {
        let group = word(&change.group);
        let (count, found) = (self.count(), self.position(group));
        match (change.joins, found) {
            (true, Some(_)) | (false, None) => true,
            (true, None) if count == GROUPS_MAX => false,
            (true, None) => {
                // It counts when it is there.
                let _ = self.0.store_u64(LIST + count * ENTRY, group);
                self.0.store_u32(COUNT, count as u32 + 1).is_ok()
            }
            (false, Some(at)) => {
                // Until the count is there, the last one is there twice.
                let last = self.at(count - 1).unwrap_or_default();
                let _ = self.0.store_u64(LIST + at * ENTRY, last);
                let _ = self.0.store_u32(COUNT, count as u32 - 1);
                // That a killed process has left twice.
                self.position(group).is_none() || self.change(change)
            }
        }
    }

    /// Whether a frame that begins with this header is to be heard: it is for no group, for all, or
    /// for one of these.
    pub(super) fn hears(self, header: &[u8]) -> bool {
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

    fn groups() -> Groups {
        let memory = Area::anonymous(abi::PAGE).unwrap().span();
        let groups = Groups::over(memory.sub(0, Groups::BYTES).unwrap());
        groups.begin();
        groups
    }

    fn group(n: u8) -> [u8; 6] {
        [1, 0, 0x5e, 0, 0, n]
    }

    fn change(n: u8, joins: bool) -> Change {
        let group = group(n);
        Change { group, joins }
    }

    #[test]
    fn netif_28_memory_of_nobody_hears_everything() {
        let memory = Area::anonymous(abi::PAGE).unwrap().span();
        for memory in [memory, Span::EMPTY] {
            let groups = Groups::over(memory);
            groups.apply(true);
            assert!(!groups.is_applied(), "its list may lack some");
        }
        groups().apply(true);
        assert!(!groups().is_applied());
    }

    #[test]
    fn netif_28_stations_and_broadcasts_are_always_heard() {
        let groups = groups();
        assert!(groups.hears(&[0xff; 14]));
        assert!(groups.hears(&[2; 14]));
        assert!(!groups.hears(&[3; 14]));
        assert!(!groups.hears(&group(1)));
        assert!(groups.hears(&[1, 2]), "no address at all");
    }

    #[test]
    fn netif_28_there_is_a_limit() {
        let groups = groups();
        let limit = GROUPS_MAX as u8;
        assert!((0..limit).all(|n| groups.change(change(n, true))));
        assert!(!groups.change(change(limit, true)));
        assert!(groups.change(change(3, true)), "it is there");
        assert!(groups.change(change(3, false)));
        assert!(groups.change(change(limit, true)));
        assert!(groups.hears(&group(limit)) && !groups.hears(&group(3)));
    }

    #[test]
    fn what_a_killed_process_left_twice_goes_at_once() {
        let groups = groups();
        (0..3).for_each(|n| assert!(groups.change(change(n, true))));
        // Killed while group 0 leaves.
        groups.0.store_u64(LIST, word(&group(2))).unwrap();
        assert!(groups.hears(&group(2)) && groups.hears(&group(1)));
        assert!(groups.change(change(2, false)));
        assert!(!groups.hears(&group(2)) && groups.hears(&group(1)));
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
                prop_assert!((0..80).all(|n| groups.hears(&group(n)) == set.contains(&n)));
            }
        }
    }
}
