//! The table of grants that stay (Ram's thesis, 4.4.1): which pages outside the pool are granted,
//! and how many requests use each.
//!
//! A set-associative table: a page's number chooses a set of [`SET`] entries, which are one cache
//! line. Neighbouring pages have neighbouring entries where they can, because those are one mapping
//! of the driver domain's, and mappings are few. An entry is a page's number and a count. A page
//! that is there is used again, and costs nothing; one that is not takes the first free entry of
//! its set, or that of the first page whose count is 0, whose grant is revoked for it. The entry's
//! place is what its grant is made by, so the driver domain has one place for each entry, whatever
//! page is there.

use super::table::GrantError;
use abi::GrantRef;

/// Entries that a page may be in: those of one cache line.
pub(super) const SET: u32 = 8;

/// Makes and ends the grants that a table keeps account of.
pub(super) trait PageGrants {
    /// Grants page `page` by entry number `entry`.
    fn grant(&mut self, entry: u32, page: u32) -> Result<GrantRef, GrantError>;

    /// Takes a page back that no request uses; whether it could. If not, it stays granted.
    fn revoke(&mut self, gref: GrantRef) -> bool;
}

/// What a table of grants that stay has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracking {
    /// Uses of pages that were granted already.
    pub reused: u64,
    /// Pages that were granted anew.
    pub entered: u64,
    /// Pages whose grants were revoked to make room for others.
    pub left: u64,
    /// Times that a page could not leave, because the driver domain was using it.
    pub held_back: u64,
    /// Times that a page could not be granted: all entries of its set were used, or the monitor
    /// refused it.
    pub refused: u64,
    /// Frames that were copied into the pool, because their pages could not be granted.
    pub copied: u64,
}

impl std::ops::AddAssign for Tracking {
    fn add_assign(&mut self, other: Self) {
        self.reused += other.reused;
        self.entered += other.entered;
        self.left += other.left;
        self.held_back += other.held_back;
        self.refused += other.refused;
        self.copied += other.copied;
    }
}

/// An entry: 8 bytes, so that a set is a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    page: u32,
    /// Requests that use the page and are not answered yet.
    count: u32,
}

/// The page of an entry without one.
const FREE: u32 = u32::MAX;

/// The table.
#[derive(Debug)]
pub(super) struct TrackTable {
    entries: Vec<Entry>,
    /// The grants of the entries that have a page.
    grefs: Vec<GrantRef>,
    sets: u32,
    pub(super) tracking: Tracking,
}

impl TrackTable {
    /// A table of `entries` entries, rounded up to whole sets.
    pub(super) fn new(entries: u32) -> Self {
        let sets = entries.div_ceil(SET).clamp(1, u32::from(u16::MAX) / SET);
        let free = Entry {
            page: FREE,
            count: 0,
        };
        Self {
            entries: vec![free; (sets * SET) as usize],
            grefs: vec![GrantRef(0); (sets * SET) as usize],
            sets,
            tracking: Tracking::default(),
        }
    }

    /// Pages that are granted.
    pub(super) fn granted(&self) -> usize {
        self.entries.iter().filter(|e| e.page != FREE).count()
    }

    /// Entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The first entry of a page's set.
    fn set(&self, page: u32) -> usize {
        (page / SET % self.sets * SET) as usize
    }

    /// Counts a use of page `page`, which is granted first if it is not: its entry, until
    /// [`TrackTable::put`]. None: it could not be granted now.
    pub(super) fn take(
        &mut self,
        page: u32,
        pages: &mut dyn PageGrants,
    ) -> Option<(u16, GrantRef)> {
        let first = self.set(page);
        let set = self.entries.get(first..first + SET as usize)?;
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
                self.tracking.entered += 1;
                Some(at)
            }
            Err(_) => {
                self.tracking.refused += 1;
                None
            }
        }
    }

    /// The first free entry of a set, or the first that nothing uses, which is free then.
    fn vacate(&mut self, first: usize, pages: &mut dyn PageGrants) -> Option<usize> {
        let set = first..first + SET as usize;
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
                self.tracking.left += 1;
                return Some(at);
            }
            self.tracking.held_back += 1;
        }
        None
    }

    /// A use of an entry's page has ended. It stays granted.
    pub(super) fn put(&mut self, at: u16) {
        if let Some(entry) = self.entries.get_mut(usize::from(at)) {
            entry.count = entry.count.saturating_sub(1);
        }
    }

    /// Every grant that there is. No entry has a page any more.
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

    /// A monitor: what is granted, by reference, and which of them the driver domain uses beyond
    /// its answer.
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
        /// The answer to the request that waits, of all, at this place.
        Put(prop::sample::Index),
        /// From now on the driver domain does not let go of this page.
        Stick(Option<u32>),
        /// From now on the monitor refuses, or does not.
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
        /// Against a model: which requests are under way. A page in use is granted, by the
        /// reference that its request has; no more are granted than there are entries; a page that
        /// is there costs no grant; what is refused had no room.
        #[test]
        fn pages_in_use_stay_and_others_make_room(ops in prop::collection::vec(op(), 1..400)) {
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
                                let in_set = |at: u32| (set..set + SET).contains(&at);
                                let used = |at: u32, page: u32| {
                                    monitor.stuck == Some(page)
                                        || under_way.iter().any(|own| u32::from(own.0) == at)
                                };
                                let full = monitor.granted.values()
                                    .filter(|(page, at)| in_set(*at) && used(*at, *page)).count();
                                prop_assert!(monitor.refuses || full == SET as usize);
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
    fn a_row_of_pages_as_long_as_the_table_fits_and_neighbours_are_neighbours() {
        let (mut table, mut monitor) = (TrackTable::new(512), Monitor::default());
        for page in 1024..1536 {
            let (at, _) = table.take(page, &mut monitor).unwrap();
            assert_eq!(u32::from(at), page - 1024);
            table.put(at);
        }
        assert_eq!((table.granted(), table.tracking.left), (512, 0));
    }

    /// The first entry of a set makes room; the others keep their pages.
    #[test]
    fn of_a_file_twice_as_long_as_the_table_a_part_stays() {
        let (mut table, mut monitor) = (TrackTable::new(64), Monitor::default());
        for round in 1..5 {
            for page in 0..128 {
                let (at, _) = table.take(page, &mut monitor).unwrap();
                table.put(at);
            }
            // Of 16 pages of a set 7 stay, and 9 take turns.
            let anew = 8 * (16 + (round - 1) * 9);
            assert_eq!(table.tracking.entered, anew, "{round}");
        }
    }

    #[test]
    fn a_table_is_of_whole_sets() {
        for (asked, entries) in [(0, 8), (1, 8), (8, 8), (9, 16), (1000, 1000)] {
            assert_eq!(TrackTable::new(asked).len(), entries);
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
