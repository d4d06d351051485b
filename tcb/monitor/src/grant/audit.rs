//! The audit: how many pages each domain owns, grants and maps, and whether the records of granters
//! and users agree.

use super::accounts::{Accounts, GrantAccounts};
use super::counted::CountedTables;
use super::mechanism::{GrantAudit, Mechanism};
use super::window::WindowSlot;
use abi::{DomId, Handle};
use std::collections::BTreeMap;

impl GrantAccounts {
    /// Audits every open account. Also returns the number of slots, uses and accounts without a
    /// counterpart, which is 0 unless the monitor has a bug.
    #[must_use]
    pub fn audit(
        &self,
        counted: &CountedTables,
        mechanism: Option<&dyn Mechanism>,
    ) -> (BTreeMap<DomId, GrantAudit>, u64) {
        let mut audits = BTreeMap::new();
        let unmatched = mechanism.map_or(0, |other| other.audit(&mut audits));
        let accounts = self.lock();
        counted.audit(&mut audits);
        let is_other = |handle| mechanism.is_some_and(|other| other.has_object(handle));
        let knows = |handle| counted.has_table(handle) || is_other(handle);
        let leaked =
            unmatched + unclosed_accounts(&accounts) + slots_without_table(&accounts, knows);
        for (id, account) in accounts.all() {
            let audit = audits.entry(id).or_default();
            audit.owned += account.memory.frame_count;
        }
        audits.retain(|id, _| accounts.has_account(*id));
        (audits, leaked)
    }
}

/// Counts accounts of dead domains that should have been closed, since they have no holder.
fn unclosed_accounts(accounts: &Accounts) -> u64 {
    let all = accounts.all();
    all.filter(|(_, account)| account.is_over()).count() as u64
}

/// Counts window slots that belong to a table or exchange that does not exist.
fn slots_without_table(accounts: &Accounts, knows: impl Fn(Handle) -> bool) -> u64 {
    let held = accounts
        .all()
        .flat_map(|(_, account)| account.window.held());
    let wrong = held.filter(|(_, holds)| matches!(holds, WindowSlot::Table(h) if !knows(*h)));
    wrong.map(|(range, _)| range.len() as u64).sum()
}

#[cfg(test)]
mod tests;
