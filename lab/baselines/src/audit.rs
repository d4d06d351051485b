//! Audit of classic grants. It collects all grants in use and all mappings, and checks that the
//! usage records of granters and users agree.

use crate::entry::{self, Active};
use crate::usage::{GrantUsage, Locked, UsageTables};
use abi::DomId;
use abi::classic::GrantEntry;
use monitor::grant::{GrantAccounts, GrantAudit, InUse, WindowSlot};
use monitor::memory::SharedDomainMemory;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Adds each domain's grants and mappings to the results of other mechanisms. Returns the number of
/// uses and mappings without a counterpart.
pub(crate) fn audit(
    usage: &GrantUsage,
    grants: &GrantAccounts,
    parts: &mut BTreeMap<DomId, GrantAudit>,
) -> u64 {
    let locked = UsageTables { grants, usage }.lock();
    let leaked = leaked(&locked);
    let mut memories: Vec<(DomId, Arc<SharedDomainMemory>)> = Vec::new();
    for (id, account) in locked.accounts.all() {
        let audit = parts.entry(id).or_default();
        if let Some(part) = locked.parts.get(id) {
            let pins = part.pages.pins();
            audit
                .mapped
                .extend(pins.map(|pin| (pin.granter, pin.frame)));
            let all = part.active.iter().enumerate();
            let in_use = all.filter(|(_, active)| active.in_use());
            audit
                .in_use
                .extend(in_use.map(|(index, active)| in_use_of(index, active)));
        }
        memories.push((id, Arc::clone(&account.memory)));
    }
    drop(locked);
    // Domains can change their tables at any time, so a lock would not help.
    for (id, memory) in memories {
        if let Some(GrantAudit {
            granted, in_use, ..
        }) = parts.get_mut(&id)
        {
            granted.extend(offered(&memory));
            granted.extend(in_use.iter().map(|grant| grant.frame));
        }
    }
    leaked
}

/// Returns the frames that a domain's grant table permits other domains to access.
fn offered(memory: &SharedDomainMemory) -> impl Iterator<Item = u32> {
    let frame_count = memory.frame_count;
    (0..memory.grant_entries)
        .filter_map(|n| Some(GrantEntry(entry::of(memory, n)?.load(Ordering::Relaxed))))
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

/// Compares the entries of granters with the windows and copies of users. Returns the number of
/// differences.
fn leaked(locked: &Locked<'_>) -> u64 {
    let Locked { accounts, parts } = locked;
    // Uses by window slots: (granter, entry, user) → (readers, writers).
    let mut by_windows: BTreeMap<(DomId, u32, DomId), [u32; 2]> = BTreeMap::new();
    let mut copying: BTreeMap<DomId, u32> = BTreeMap::new();
    let mut differences = 0;
    for (user, part) in parts.all() {
        let mut taken = 0;
        for pin in part.pages.pins() {
            taken += 1;
            let uses = by_windows
                .entry((pin.granter, pin.index, user))
                .or_default();
            let [readers, writers] = uses;
            *(if pin.write { writers } else { readers }) += 1;
            let active = parts
                .get(pin.granter)
                .and_then(|granter| granter.active.get(pin.index as usize))
                .copied()
                .unwrap_or_default();
            differences += u64::from(active.user != user.0 || active.frame != pin.frame);
        }
        differences += u64::from(part.pages.taken.abs_diff(taken));
        copying.insert(user, part.copying);
    }
    for (granter, part) in parts.all() {
        let mut pinned = 0;
        let all = part.active.iter().enumerate();
        for (index, active) in all.filter(|(_, active)| active.in_use()) {
            pinned += 1;
            let user = DomId(active.user);
            let [readers, writers] = by_windows
                .remove(&(granter, index as u32, user))
                .unwrap_or_default();
            differences += u64::from(active.maps_read.abs_diff(readers));
            differences += u64::from(active.maps_write.abs_diff(writers));
            let copies = active.copies_read.saturating_add(active.copies_write);
            match copying.get_mut(&user) {
                Some(left) if *left >= copies => *left -= copies,
                _ => differences += u64::from(copies),
            }
        }
        differences += u64::from(part.pinned.abs_diff(pinned));
    }
    // Compares the windows with the accounts' records of them.
    for (user, account) in accounts.all() {
        let held = account.window.held();
        let page_slots = held.filter(|(_, holds)| *holds == WindowSlot::Page).count() as u32;
        let taken = parts.get(user).map_or(0, |part| part.pages.taken);
        differences += u64::from(taken.abs_diff(page_slots));
    }
    // The rest are window slots whose grant is not in use, and copies without a grant.
    let unmatched = by_windows.values().flatten().chain(copying.values());
    differences + unmatched.map(|&n| u64::from(n)).sum::<u64>()
}

#[cfg(test)]
mod tests;
