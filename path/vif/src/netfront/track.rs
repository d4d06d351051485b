//! The table of reusable grants (Ram's thesis, 4.4.1): granted pages outside the pool, with the
//! number of requests that use each.
//!
//! The table is set-associative: a page's number selects a set of [`SET_ENTRIES`] entries, which
//! share a cache line. Adjacent pages get adjacent entries where possible, because the driver
//! domain can then map them together, and the number of mappings is limited. An entry holds a
//! page's number and a count. Reusing a granted page costs nothing. A new page takes the first free
//! entry of its set, or else the first whose count is 0, after the grant of the page there has been
//! revoked. The entry's index selects its grant reference, so the driver domain has one slot per
//! entry, whatever its page.

use super::table::GrantError;
use abi::GrantRef;

/// Entries of a set, which fill one cache line.
pub(super) const SET_ENTRIES: u32 = 8;

/// The mechanism that makes and ends the grants of a table.
pub(super) trait PageGrants {
    /// Grants page `page` by entry number `entry`.
    fn grant(&mut self, entry: u32, page: u32) -> Result<GrantRef, GrantError>;

    /// Revokes an unused page; returns whether it did. If not, the page stays granted.
    fn revoke(&mut self, gref: GrantRef) -> bool;
}

/// Counters of a table of reusable grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracking {
    /// Uses of pages that were already granted.
    pub reused: u64,
    /// New grants of pages.
    pub granted: u64,
    /// Pages revoked to free their entries.
    pub revoked: u64,
    /// Revocations that failed because the driver domain was using the page.
    pub failed_revocations: u64,
    /// Grants that failed because all entries of the set were in use, or because the monitor
    /// rejected the page.
    pub refused: u64,
    /// Frames copied into the pool because their pages could not be granted.
    pub copied: u64,
}

impl std::ops::AddAssign for Tracking {
    fn add_assign(&mut self, other: Self) {
        self.reused += other.reused;
        self.granted += other.granted;
        self.revoked += other.revoked;
        self.failed_revocations += other.failed_revocations;
        self.refused += other.refused;
        self.copied += other.copied;
    }
}

/// An entry: 8 bytes, so that a set fills a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    page: u32,
    /// Requests in flight that use the page.
    count: u32,
}

/// Page number of a free entry.
const FREE: u32 = u32::MAX;

/// The table.
#[derive(Debug)]
pub(super) struct TrackTable {
    entries: Vec<Entry>,
    /// Grants of the entries that have a page.
    grefs: Vec<GrantRef>,
    sets: u32,
    pub(super) tracking: Tracking,
}

impl TrackTable {
    /// Creates a table of `entries` entries, rounded up to whole sets.
    pub(super) fn new(entries: u32) -> Self {
        let sets = entries
            .div_ceil(SET_ENTRIES)
            .clamp(1, u32::from(u16::MAX) / SET_ENTRIES);
        let free = Entry {
            page: FREE,
            count: 0,
        };
        Self {
            entries: vec![free; (sets * SET_ENTRIES) as usize],
            grefs: vec![GrantRef(0); (sets * SET_ENTRIES) as usize],
            sets,
            tracking: Tracking::default(),
        }
    }

    /// Returns the number of granted pages.
    pub(super) fn granted(&self) -> usize {
        self.entries.iter().filter(|e| e.page != FREE).count()
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the first entry of a page's set.
    fn set(&self, page: u32) -> usize {
        (page / SET_ENTRIES % self.sets * SET_ENTRIES) as usize
    }

    /// Counts a use of page `page`, which it grants if necessary, and returns its entry. The use
    /// lasts until [`TrackTable::put`]. Returns `None` if the page cannot be granted now.
    pub(super) fn take(
        &mut self,
        page: u32,
        pages: &mut dyn PageGrants,
    ) -> Option<(u16, GrantRef)> {
        let first = self.set(page);
        let set = self.entries.get(first..first + SET_ENTRIES as usize)?;
        let at = match set.iter().position(|entry| entry.page == page) {
            Some(within) => {
                self.tracking.reused += 1;
                first + within
            }
            None => self.enter(page, first, pages)?,
        };
        let entry = self.entries.get_mut(at)?;
        entry.count = entry.count.saturating_add(1);
        Some((at as u16, *self.grefs.get(at)?))
    }

    /// Grants a page that is not in its set, which begins at entry `first`.
    fn enter(&mut self, page: u32, first: usize, pages: &mut dyn PageGrants) -> Option<usize> {
        let Some(at) = self.vacate(first, pages) else {
            self.tracking.refused += 1;
            return None;
        };
        match pages.grant(at as u32, page) {
            Ok(gref) => {
                *self.entries.get_mut(at)? = Entry { page, count: 0 };
                *self.grefs.get_mut(at)? = gref;
                self.tracking.granted += 1;
                Some(at)
            }
            Err(_) => {
                self.tracking.refused += 1;
                None
            }
        }
    }

    /// Returns the first free entry of a set, or frees the first unused one.
    fn vacate(&mut self, first: usize, pages: &mut dyn PageGrants) -> Option<usize> {
        let set = first..first + SET_ENTRIES as usize;
        let entries = self.entries.get_mut(set.clone())?;
        if let Some(within) = entries.iter().position(|entry| entry.page == FREE) {
            return Some(first + within);
        }
        let grefs = self.grefs.get(set)?;
        for ((at, entry), gref) in (first..).zip(entries).zip(grefs) {
            if entry.count != 0 {
                continue;
            }
            if pages.revoke(*gref) {
                entry.page = FREE;
                self.tracking.revoked += 1;
                return Some(at);
            }
            self.tracking.failed_revocations += 1;
        }
        None
    }

    /// Ends a use of an entry's page, which stays granted.
    pub(super) fn put(&mut self, at: u16) {
        if let Some(entry) = self.entries.get_mut(usize::from(at)) {
            entry.count = entry.count.saturating_sub(1);
        }
    }

    /// Removes all pages and returns their grants.
    pub(super) fn take_grants(&mut self) -> Vec<GrantRef> {
        let all = self.entries.iter_mut().zip(&self.grefs);
        let granted = all.filter(|(entry, _)| entry.page != FREE);
        granted
            .map(|(entry, &gref)| {
                entry.page = FREE;
                gref
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A mock monitor: the granted pages by reference, and the pages that the driver domain still
    /// holds after its response.
    #[derive(Debug, Default)]
    struct Monitor {
        granted: BTreeMap<u32, (u32, u32)>,
        stuck: Option<u32>,
        refuses: bool,
        made: u32,
    }

    impl PageGrants for Monitor {
        fn grant(&mut self, entry: u32, page: u32) -> Result<GrantRef, GrantError> {
            if self.refuses {
                return Err(GrantError::Full);
            }
            let taken = |(other, at): &(u32, u32)| *other == page || *at == entry;
            assert!(!self.granted.values().any(taken), "granted twice");
            self.made += 1;
            self.granted.insert(self.made, (page, entry));
            Ok(GrantRef(self.made))
        }

        fn revoke(&mut self, gref: GrantRef) -> bool {
            let (page, _) = self.granted[&gref.0];
            if self.stuck == Some(page) {
                return false;
            }
            self.granted.remove(&gref.0).is_some()
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        /// A request for this page.
        Take(u32),
        /// The response to the waiting request at this position.
        Put(prop::sample::Index),
        /// The driver domain holds this page from now on.
        Stick(Option<u32>),
        /// Whether the monitor rejects grants from now on.
        Refuse(bool),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (0..90u32).prop_map(Op::Take),
            5 => any::<prop::sample::Index>().prop_map(Op::Put),
            1 => prop::option::of(0..90u32).prop_map(Op::Stick),
            1 => any::<bool>().prop_map(Op::Refuse),
        ]
    }

    proptest! {
        /// Compares the table with a model of the requests in flight: a page in use stays granted
        /// by its request's reference; no more pages are granted than entries exist; a granted page
        /// is not granted again; a rejected page had no free entry.
        #[test]
        fn pages_in_use_stay_and_idle_ones_are_evicted(ops in prop::collection::vec(op(), 1..400)) {
            let (mut table, mut monitor) = (TrackTable::new(32), Monitor::default());
            let mut under_way: Vec<(u16, GrantRef, u32)> = Vec::new();
            for op in ops {
                match op {
                    Op::Take(page) => {
                        let there = monitor.granted.values().any(|(other, _)| *other == page);
                        let (made, before) = (monitor.made, table.tracking);
                        match table.take(page, &mut monitor) {
                            Some((at, gref)) => {
                                prop_assert_eq!(monitor.granted[&gref.0], (page, u32::from(at)));
                                prop_assert_eq!(monitor.made - made, u32::from(!there));
                                let reused = table.tracking.reused - before.reused;
                                prop_assert_eq!(reused, u64::from(there));
                                under_way.push((at, gref, page));
                            }
                            None => {
                                prop_assert!(!there, "it was granted");
                                let set = table.set(page) as u32;
                                let in_set = |at: u32| (set..set + SET_ENTRIES).contains(&at);
                                let used = |at: u32, page: u32| {
                                    monitor.stuck == Some(page)
                                        || under_way.iter().any(|own| u32::from(own.0) == at)
                                };
                                let full = monitor.granted.values()
                                    .filter(|(page, at)| in_set(*at) && used(*at, *page)).count();
                                prop_assert!(monitor.refuses || full == SET_ENTRIES as usize);
                            }
                        }
                    }
                    Op::Put(which) => {
                        if !under_way.is_empty() {
                            let own = under_way.swap_remove(which.index(under_way.len()));
                            table.put(own.0);
                        }
                    }
                    Op::Stick(page) => monitor.stuck = page,
                    Op::Refuse(refuses) => monitor.refuses = refuses,
                }
                for (at, gref, page) in &under_way {
                    let granted = monitor.granted.get(&gref.0);
                    prop_assert_eq!(granted, Some(&(*page, u32::from(*at))));
                }
                prop_assert_eq!(monitor.granted.len(), table.granted());
                prop_assert!(table.granted() <= table.len());
            }
            let mut left: Vec<u32> = table.take_grants().iter().map(|gref| gref.0).collect();
            left.sort_unstable();
            let granted: Vec<u32> = monitor.granted.keys().copied().collect();
            prop_assert_eq!((left, table.granted()), (granted, 0));
        }
    }

    #[test]
    fn contiguous_pages_fill_table_in_order() {
        let (mut table, mut monitor) = (TrackTable::new(512), Monitor::default());
        for page in 1024..1536 {
            let (at, _) = table.take(page, &mut monitor).unwrap();
            assert_eq!(u32::from(at), page - 1024);
            table.put(at);
        }
        assert_eq!((table.granted(), table.tracking.revoked), (512, 0));
    }

    /// The first entry of a set is replaced again and again; the others keep their pages.
    #[test]
    fn part_of_an_oversized_file_stays_granted() {
        let (mut table, mut monitor) = (TrackTable::new(64), Monitor::default());
        for round in 1..5 {
            for page in 0..128 {
                let (at, _) = table.take(page, &mut monitor).unwrap();
                table.put(at);
            }
            // Each set has 16 pages for 8 entries: 7 pages stay, and 9 replace each other.
            let anew = 8 * (16 + (round - 1) * 9);
            assert_eq!(table.tracking.granted, anew, "{round}");
        }
    }

    #[test]
    fn table_consists_of_whole_sets() {
        for (wanted, entries) in [(0, 8), (1, 8), (8, 8), (9, 16), (1000, 1000)] {
            assert_eq!(TrackTable::new(wanted).len(), entries);
        }
        let mut table = TrackTable::new(1);
        let mut monitor = Monitor::default();
        for page in [0, u32::MAX - 1, 5, 6] {
            assert!(table.take(page, &mut monitor).is_some());
        }
        assert_eq!(
            TrackTable::new(u32::MAX).len(),
            65_528,
            "entries are 16 bits"
        );
    }
}
