//! Quarantine: entries that were revoked by force while their user used them, what they cost it,
//! and how long a revocation waits for it.
//!
//! A user that ends the use of one entry now and then could hold up revocation after revocation,
//! if each had a patience of its own. So each user has one patience for all revocations that wait
//! for it: it is spent while any waits, and comes back slowly.

use super::table::Table;
use abi::Handle;
use shmem::uses;
use std::collections::BTreeSet;
use std::time::Duration;

/// Patience comes back at this fraction of the time that passes: the share of its granters' time
/// that a user can waste in the long run.
const COMES_BACK: u64 = 100;

/// The time that revocations may wait for one user.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    full_ns: u64,
    left_ns: u64,
    /// Counted so far.
    until_ns: u64,
}

impl Patience {
    fn new(full: Duration, now_ns: u64) -> Self {
        let full_ns = u64::try_from(full.as_nanos()).unwrap_or(u64::MAX);
        Self {
            full_ns,
            left_ns: full_ns,
            until_ns: now_ns,
        }
    }

    /// Counts a wait from `since_ns` to `now_ns`; time in which several wait counts once. Returns
    /// whether waiting may go on.
    pub(super) fn waits(&mut self, since_ns: u64, now_ns: u64) -> bool {
        let passed_ns = now_ns.saturating_sub(self.until_ns);
        let waited_ns = now_ns.saturating_sub(since_ns.max(self.until_ns));
        let back_ns = (passed_ns - waited_ns) / COMES_BACK;
        let left_ns = self.left_ns.saturating_add(back_ns).min(self.full_ns);
        self.left_ns = left_ns.saturating_sub(waited_ns);
        self.until_ns = self.until_ns.max(now_ns);
        self.left_ns > 0
    }
}

/// Entries that were revoked by force while one user used them.
#[derive(Debug)]
pub(super) struct Quarantine {
    /// How many there may be.
    collateral: u32,
    entries: BTreeSet<(Handle, u32)>,
    pub(super) patience: Patience,
}

impl Quarantine {
    pub(super) fn new(collateral: u32, patience: Duration, now_ns: u64) -> Self {
        Self {
            collateral,
            entries: BTreeSet::new(),
            patience: Patience::new(patience, now_ns),
        }
    }

    /// Collateral that is used.
    pub(super) fn used(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Takes in as many entries of a table as there is room for; the others.
    pub(super) fn admit<'a>(
        &mut self,
        table: Handle,
        entering: &'a [u32],
        is_used: impl Fn(&(Handle, u32)) -> bool,
    ) -> &'a [u32] {
        let room = |entries: &BTreeSet<_>| (self.collateral as usize).saturating_sub(entries.len());
        if room(&self.entries) < entering.len() {
            self.entries.retain(is_used);
        }
        let (admitted, rest) = entering.split_at(room(&self.entries).min(entering.len()));
        self.entries
            .extend(admitted.iter().map(|&index| (table, index)));
        rest
    }

    /// Whether an entry is not in it, or can leave it.
    pub(super) fn lets_go(&mut self, table: &Table, index: u32) -> bool {
        let key = (table.handle, index);
        !self.entries.contains(&key) || is_idle(table, index) && self.entries.remove(&key)
    }

    /// A table is of no use to the user any more.
    pub(super) fn forget(&mut self, table: Handle) {
        self.entries.retain(|(handle, _)| *handle != table);
    }
}

pub(super) fn is_idle(table: &Table, index: u32) -> bool {
    table
        .words(index)
        .is_none_or(|words| uses::idle(words.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn patience() -> Patience {
        Patience::new(Duration::from_millis(100), 0)
    }

    #[test]
    fn who_waits_again_and_again_waits_no_longer_in_sum() {
        let mut patience = patience();
        assert!(patience.waits(0, 60 * MS));
        // Between the two waits some of it comes back: a hundredth.
        assert!(patience.waits(160 * MS, 200 * MS));
        assert_eq!(patience.left_ns, MS);
        assert!(!patience.waits(200 * MS, 201 * MS));
    }

    #[test]
    fn time_in_which_several_wait_counts_once() {
        let mut patience = patience();
        for now in 1..100 {
            for _ in 0..64 {
                assert!(patience.waits((now - 1) * MS, now * MS), "{now} ms");
            }
        }
        assert!(!patience.waits(99 * MS, 100 * MS));
    }

    #[test]
    fn patience_comes_back_and_never_grows_beyond_what_it_was() {
        let mut patience = patience();
        assert!(!patience.waits(0, 500 * MS));
        assert!(patience.waits(5_500 * MS, 5_501 * MS));
        assert_eq!(patience.left_ns, 49 * MS);
        assert!(patience.waits(u64::MAX - MS, u64::MAX));
        assert_eq!(patience.left_ns, 99 * MS);
    }

    #[test]
    fn a_clock_that_goes_back_costs_nothing() {
        let mut patience = patience();
        assert!(patience.waits(0, 50 * MS));
        assert!(patience.waits(40 * MS, 45 * MS));
        assert_eq!(patience.left_ns, 50 * MS);
    }

    #[test]
    fn without_patience_nobody_waits() {
        let mut patience = Patience::new(Duration::ZERO, 0);
        assert!(!patience.waits(0, 0));
    }
}
