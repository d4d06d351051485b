//! The audit: who owns, grants and maps how much, and whether the two sides of the books agree.

use super::accounts::{Account, Accounts, Grants};
use super::counted::CountedGrants;
use super::mechanism::{InUse, Mechanism};
use super::window::WindowSlot;
use abi::{DomId, Handle};
use std::collections::BTreeMap;

/// What the books say about one domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantAudit {
    /// Whether others may still begin to use its grants.
    pub alive: bool,
    /// Pages that it owns: frames, and those of exchanges that are its own now.
    pub owned: u32,
    /// Distinct frames of its own that it grants to somebody, in use or not.
    pub granted: u32,
    /// Distinct frames of others in its window.
    pub mapped: u32,
    /// Frames of its collateral that are used: grants that were revoked by force while in use.
    pub collateral_used: u32,
    /// Every grant of its own that is in use by a call.
    pub in_use: Vec<InUse>,
}

impl Grants {
    /// Takes the audit: every open account, and how much in the books has no counterpart: slots,
    /// uses, accounts (0, or the monitor has a bug).
    #[must_use]
    pub fn audit(
        &self,
        counted: &CountedGrants,
        mechanism: &dyn Mechanism,
    ) -> (BTreeMap<DomId, GrantAudit>, u64) {
        let mut parts = BTreeMap::new();
        let strays = mechanism.audit(self, &mut parts);
        let accounts = self.lock();
        let mut parts = counted.audit(parts);
        let knows = |handle| counted.knows(handle) || mechanism.knows(handle);
        let leaked = strays + left_open(&accounts) + slots_without_table(&accounts, knows);
        let audit = |(id, account): (DomId, &Account)| {
            let part = parts.remove(&id).unwrap_or_default();
            let audit = GrantAudit {
                alive: account.alive,
                owned: account.memory.frame_count() + part.owned,
                granted: part.granted.len() as u32,
                mapped: part.mapped.len() as u32,
                collateral_used: part.collateral_used,
                in_use: part.in_use,
            };
            (id, audit)
        };
        (accounts.all().map(audit).collect(), leaked)
    }
}

/// Accounts that should have been closed: nobody has a use for them.
fn left_open(accounts: &Accounts) -> u64 {
    let all = accounts.all();
    all.filter(|(_, account)| account.is_over()).count() as u64
}

/// Window slots that belong to a table or an exchange that does not exist.
fn slots_without_table(accounts: &Accounts, knows: impl Fn(Handle) -> bool) -> u64 {
    let held = accounts
        .all()
        .flat_map(|(_, account)| account.window.held());
    let wrong = held.filter(|(_, holds)| matches!(holds, WindowSlot::Table(h) if !knows(*h)));
    wrong.map(|(range, _)| range.len() as u64).sum()
}

#[cfg(test)]
mod tests;
