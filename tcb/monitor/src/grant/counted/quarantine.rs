//! Quarantine: entries that were revoked by force while in use, the collateral that they cost the
//! user, and how long revocations wait for a full quarantine.
//!
//! If each revocation had a separate time limit, a user could delay one after the other by ending a
//! use shortly before each limit. So each user has one *wait budget* for all revocations that wait
//! for it. The budget decreases while any of them waits, and refills slowly.

use super::table::GrantTableState;
use abi::Handle;
use shmem::grant_use;
use std::collections::BTreeSet;
use std::time::Duration;

/// The wait budget refills at 1/`REFILL_DIVISOR` of the elapsed time. So in the long run, a user
/// can waste at most this share of its granters' time.
const REFILL_DIVISOR: u64 = 100;

/// The total time for which revocations may wait for one user.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitBudget {
    full_ns: u64,
    remaining_ns: u64,
    /// Time up to which waits and refills are accounted.
    until_ns: u64,
}

impl WaitBudget {
    fn new(full: Duration, now_ns: u64) -> Self {
        let full_ns = u64::try_from(full.as_nanos()).unwrap_or(u64::MAX);
        Self {
            full_ns,
            remaining_ns: full_ns,
            until_ns: now_ns,
        }
    }

    /// Charges a wait from `since_ns` to `now_ns`; overlapping waits count once. Returns whether
    /// waiting may continue.
    pub(super) fn charge(&mut self, since_ns: u64, now_ns: u64) -> bool {
        let passed_ns = now_ns.saturating_sub(self.until_ns);
        let waited_ns = now_ns.saturating_sub(since_ns.max(self.until_ns));
        let refilled_ns = (passed_ns - waited_ns) / REFILL_DIVISOR;
        let remaining_ns = self
            .remaining_ns
            .saturating_add(refilled_ns)
            .min(self.full_ns);
        self.remaining_ns = remaining_ns.saturating_sub(waited_ns);
        self.until_ns = self.until_ns.max(now_ns);
        self.remaining_ns > 0
    }
}

/// Entries that were revoked by force while one user used them.
#[derive(Debug)]
pub(super) struct Quarantine {
    /// The maximum number of entries.
    collateral: u32,
    entries: BTreeSet<(Handle, u32)>,
    pub(super) wait_budget: WaitBudget,
}

impl Quarantine {
    pub(super) fn new(collateral: u32, wait_budget: Duration, now_ns: u64) -> Self {
        Self {
            collateral,
            entries: BTreeSet::new(),
            wait_budget: WaitBudget::new(wait_budget, now_ns),
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
        let free = |entries: &BTreeSet<_>| (self.collateral as usize).saturating_sub(entries.len());
        if free(&self.entries) < entering.len() {
            self.entries.retain(is_used);
        }
        let (admitted, rest) = entering.split_at(free(&self.entries).min(entering.len()));
        self.entries
            .extend(admitted.iter().map(|&index| (table, index)));
        rest
    }

    /// Removes an entry if its uses have ended. Returns false if it remains in quarantine.
    pub(super) fn try_leave(&mut self, table: &GrantTableState, index: u32) -> bool {
        let key = (table.handle, index);
        !self.entries.contains(&key) || is_idle(table, index) && self.entries.remove(&key)
    }

    /// Removes all entries of a table whose user's half has ended.
    pub(super) fn forget(&mut self, table: Handle) {
        self.entries.retain(|(handle, _)| *handle != table);
    }
}

pub(super) fn is_idle(table: &GrantTableState, index: u32) -> bool {
    table
        .words(index)
        .is_none_or(|words| grant_use::is_unused(words.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn wait_budget() -> WaitBudget {
        WaitBudget::new(Duration::from_millis(100), 0)
    }

    #[test]
    fn repeated_waits_are_bounded_in_sum() {
        let mut wait_budget = wait_budget();
        assert!(wait_budget.charge(0, 60 * MS));
        // A hundredth of the time between the two waits has been refilled.
        assert!(wait_budget.charge(160 * MS, 200 * MS));
        assert_eq!(wait_budget.remaining_ns, MS);
        assert!(!wait_budget.charge(200 * MS, 201 * MS));
    }

    #[test]
    fn overlapping_waits_count_once() {
        let mut wait_budget = wait_budget();
        for now in 1..100 {
            for _ in 0..64 {
                assert!(wait_budget.charge((now - 1) * MS, now * MS), "{now} ms");
            }
        }
        assert!(!wait_budget.charge(99 * MS, 100 * MS));
    }

    #[test]
    fn budget_refills_up_to_its_initial_value() {
        let mut wait_budget = wait_budget();
        assert!(!wait_budget.charge(0, 500 * MS));
        assert!(wait_budget.charge(5_500 * MS, 5_501 * MS));
        assert_eq!(wait_budget.remaining_ns, 49 * MS);
        assert!(wait_budget.charge(u64::MAX - MS, u64::MAX));
        assert_eq!(wait_budget.remaining_ns, 99 * MS);
    }

    #[test]
    fn a_backward_clock_is_ignored() {
        let mut wait_budget = wait_budget();
        assert!(wait_budget.charge(0, 50 * MS));
        assert!(wait_budget.charge(40 * MS, 45 * MS));
        assert_eq!(wait_budget.remaining_ns, 50 * MS);
    }

    #[test]
    fn zero_budget_permits_no_wait() {
        let mut wait_budget = WaitBudget::new(Duration::ZERO, 0);
        assert!(!wait_budget.charge(0, 0));
    }
}
