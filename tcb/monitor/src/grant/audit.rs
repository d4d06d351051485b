//! The audit: every grant in use and every mapping, and whether the two sides of the books agree.

use super::accounts::{Accounts, Grants};
use super::counted::CountedGrants;
use super::entry::{Active, entry_of};
use super::flip::Exchanges;
use super::window::WindowSlot;
use crate::memory::Memory;
use abi::grant::GrantEntry;
use abi::{DomId, Handle};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    /// Every grant of its own that is in use.
    pub in_use: Vec<InUse>,
}

/// One grant in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InUse {
    /// Which entry.
    pub index: u32,
    /// The granting domain's frame.
    pub frame: u32,
    /// Who uses it.
    pub by: DomId,
    /// Mappings of it.
    pub mappings: u32,
    /// Whether any use may write.
    pub writable: bool,
}

impl Grants {
    /// Takes the audit: every open account, and the number of uses, mappings, accounts and
    /// descriptors that have no counterpart (0, or the monitor has a bug).
    #[must_use]
    pub fn audit(
        &self,
        counted: &CountedGrants,
        exchanges: &Exchanges,
    ) -> (BTreeMap<DomId, GrantAudit>, u64) {
        let accounts = self.lock();
        let (exchanged, strays) = exchanges.audit();
        let mut parts = counted.audit();
        let knows = |handle| counted.knows(handle) || exchanges.knows(handle);
        let leaked = leaked(&accounts) + slots_without_table(&accounts, knows) + strays;
        let mut audits = BTreeMap::new();
        let mut memories: Vec<(DomId, Arc<Memory>, BTreeSet<u32>)> = Vec::new();
        for (id, account) in accounts.all() {
            let part = parts.remove(&id).unwrap_or_default();
            let by_slots = account.window.pins();
            let mut mapped = part.mapped;
            mapped.extend(by_slots.map(|pin| (pin.granter, pin.frame)));
            let in_use = account
                .active
                .iter()
                .enumerate()
                .filter(|(_, a)| a.in_use());
            let own_exchanged = exchanged.get(&id).copied().unwrap_or(0);
            audits.insert(
                id,
                GrantAudit {
                    alive: account.alive,
                    owned: account.memory.frame_count() + own_exchanged,
                    granted: 0,
                    collateral_used: part.collateral_used,
                    mapped: mapped.len() as u32,
                    in_use: in_use
                        .map(|(index, active)| in_use_of(index, active))
                        .collect(),
                },
            );
            memories.push((id, Arc::clone(&account.memory), part.granted));
        }
        drop(accounts);
        // The tables of the domains are theirs to change at any time; reading them needs no lock.
        for (id, memory, mut frames) in memories {
            if let Some(audit) = audits.get_mut(&id) {
                frames.extend(offered(&memory));
                frames.extend(audit.in_use.iter().map(|g| g.frame));
                audit.granted = frames.len() as u32;
            }
        }
        (audits, leaked)
    }
}

/// Frames that a domain's table offers to somebody.
fn offered(memory: &Memory) -> impl Iterator<Item = u32> {
    let info = memory.info().span();
    let frame_count = memory.frame_count();
    (0..memory.grant_entries())
        .filter_map(move |n| Some(GrantEntry(entry_of(info, n)?.load(Ordering::Relaxed))))
        .filter(move |entry| entry.permits() && entry.frame() < frame_count)
        .map(GrantEntry::frame)
}

fn in_use_of(index: usize, active: &Active) -> InUse {
    InUse {
        index: index as u32,
        frame: active.frame,
        by: DomId(active.user),
        mappings: active.maps_read.saturating_add(active.maps_write),
        writable: active.written(),
    }
}

/// Window slots that belong to a table or an exchange that does not exist.
fn slots_without_table(accounts: &Accounts, knows: impl Fn(Handle) -> bool) -> u64 {
    let mut wrong = 0;
    for (_, account) in accounts.all() {
        // A table's slots lie together: it is looked up once for each part of its two ranges.
        let parts = account.window.parts();
        for run in parts.flat_map(|part| part.chunk_by(|a, b| a == b)) {
            if let Some(WindowSlot::Table(handle)) = run.first()
                && !knows(*handle)
            {
                wrong += run.len() as u64;
            }
        }
    }
    wrong
}

/// Compares what granters' entries say with what users' windows and copies say.
fn leaked(accounts: &Accounts) -> u64 {
    // Uses by window slots: (granter, entry, user) → readers, writers.
    let mut by_windows: BTreeMap<(DomId, u32, DomId), [u32; 2]> = BTreeMap::new();
    let mut copying: BTreeMap<DomId, u32> = BTreeMap::new();
    let mut wrong = 0;
    for (user, account) in accounts.all() {
        let mut taken = 0;
        for pin in account.window.pins() {
            taken += 1;
            let uses = by_windows
                .entry((pin.granter, pin.index, user))
                .or_default();
            let [readers, writers] = uses;
            *(if pin.write { writers } else { readers }) += 1;
            let active = accounts
                .account(pin.granter)
                .and_then(|granter| granter.active.get(pin.index as usize))
                .copied()
                .unwrap_or_default();
            wrong += u64::from(active.user != user.0 || active.frame != pin.frame);
        }
        wrong += u64::from(account.window.taken.abs_diff(taken));
        copying.insert(user, account.copying);
    }
    for (granter, account) in accounts.all() {
        let mut pinned = 0;
        for (index, active) in account
            .active
            .iter()
            .enumerate()
            .filter(|(_, a)| a.in_use())
        {
            pinned += 1;
            let user = DomId(active.user);
            let [readers, writers] = by_windows
                .remove(&(granter, index as u32, user))
                .unwrap_or_default();
            wrong += u64::from(active.maps_read.abs_diff(readers));
            wrong += u64::from(active.maps_write.abs_diff(writers));
            let copies = active.copies_read.saturating_add(active.copies_write);
            match copying.get_mut(&user) {
                Some(left) if *left >= copies => *left -= copies,
                _ => wrong += u64::from(copies),
            }
        }
        wrong += u64::from(account.pinned.abs_diff(pinned));
        // An account without any use left should have been closed.
        wrong += u64::from(account.cleared && account.pinned == 0 && account.holders == 0);
    }
    // Window slots whose grant is not in use, and copies that no grant knows of.
    let unmatched = by_windows.values().flatten().chain(copying.values());
    wrong + unmatched.map(|&n| u64::from(n)).sum::<u64>()
}

#[cfg(test)]
mod tests;
