//! Quarantine: entries that were revoked by force while in use, the collateral that they cost the
//! user, and how long revocations wait for it.
//!
//! If each revocation waited separately, a user could delay one after the other by ending a use now
//! and then. So each user has one *patience* for all revocations that wait for it: it is spent
//! while any of them waits, and refills slowly.

use super::table::GrantTableState;
use abi::Handle;
use shmem::grant_use;
use std::collections::BTreeSet;
use std::time::Duration;

/// Patience refills at 1/`REFILL_DIVISOR` of the elapsed time: the share of its granters' time that
/// a user can waste in the long run.
const REFILL_DIVISOR: u64 = 100;

/// The time for which revocations may wait for one user.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    full_ns: u64,
    left_ns: u64,
    /// Time up to which it has been accounted.
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

    /// Accounts a wait from `since_ns` to `now_ns`; overlapping waits count once. Returns whether
    /// waiting may continue.
    pub(super) fn waits(&mut self, since_ns: u64, now_ns: u64) -> bool {
        let passed_ns = now_ns.saturating_sub(self.until_ns);
        let waited_ns = now_ns.saturating_sub(since_ns.max(self.until_ns));
        let back_ns = (passed_ns - waited_ns) / REFILL_DIVISOR;
        let left_ns = self.left_ns.saturating_add(back_ns).min(self.full_ns);
        self.left_ns = left_ns.saturating_sub(waited_ns);
        self.until_ns = self.until_ns.max(now_ns);
        self.left_ns > 0
    }
}

/// Entries that were revoked by force while one user used them.
#[derive(Debug)]
pub(super) struct Quarantine {
    /// The largest number of entries.
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

    /// Returns the collateral in use.
    pub(super) fn used(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Admits as many of a table's entries as fit, and returns the others.
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

    /// Returns whether an entry is not in quarantine, or can leave it now.
    pub(super) fn try_leave(&mut self, table: &GrantTableState, index: u32) -> bool {
        let key = (table.handle, index);
        !self.entries.contains(&key) || is_idle(table, index) && self.entries.remove(&key)
    }

    /// Removes a table whose user's half has ended.
    pub(super) fn forget(&mut self, table: Handle) {
        self.entries.retain(|(handle, _)| *handle != table);
    }
}

pub(super) fn is_idle(table: &GrantTableState, index: u32) -> bool {
    table
        .words(index)
        .is_none_or(|words| grant_use::idle(words.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn patience() -> Patience {
        Patience::new(Duration::from_millis(100), 0)
    }

    #[test]
    fn repeated_waits_are_bounded_in_sum() {
        let mut patience = patience();
        assert!(patience.waits(0, 60 * MS));
        // A hundredth of the time between the two waits is refilled.
        assert!(patience.waits(160 * MS, 200 * MS));
        assert_eq!(patience.left_ns, MS);
        assert!(!patience.waits(200 * MS, 201 * MS));
    }

    #[test]
    fn overlapping_waits_count_once() {
        let mut patience = patience();
        for now in 1..100 {
            for _ in 0..64 {
                assert!(patience.waits((now - 1) * MS, now * MS), "{now} ms");
            }
        }
        assert!(!patience.waits(99 * MS, 100 * MS));
    }

    #[test]
    fn patience_refills_up_to_its_initial_value() {
        let mut patience = patience();
        assert!(!patience.waits(0, 500 * MS));
        assert!(patience.waits(5_500 * MS, 5_501 * MS));
        assert_eq!(patience.left_ns, 49 * MS);
        assert!(patience.waits(u64::MAX - MS, u64::MAX));
        assert_eq!(patience.left_ns, 99 * MS);
    }

    #[test]
    fn a_backward_clock_is_ignored() {
        let mut patience = patience();
        assert!(patience.waits(0, 50 * MS));
        assert!(patience.waits(40 * MS, 45 * MS));
        assert_eq!(patience.left_ns, 50 * MS);
    }

    #[test]
    fn zero_patience_waits_not_at_all() {
        let mut patience = Patience::new(Duration::ZERO, 0);
        assert!(!patience.waits(0, 0));
    }
}
