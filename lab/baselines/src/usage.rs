//! Usage of classic grants: for each domain, the entries in use, and the pages of other domains
//! that it maps or copies.
//!
//! A thread locks the usage after the accounts. The usage changes only while both are locked, so no
//! domain can die during a change.

use crate::entry::{self, Active, PinPurpose, PinnedGrant};
use crate::pages::Pages;
use abi::classic::GrantEntry;
use abi::{DomId, GrantRef, GrantStatus, Slot};
use monitor::grant::{Account, Accounts, GrantAccounts, WindowSlot};
use shmem::Span;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The usage of one domain.
#[derive(Debug)]
pub(crate) struct DomainUsage {
    /// Record of each entry of the domain's table, by index.
    pub(crate) active: Vec<Active>,
    /// Number of entries in use. While it is above 0, the account remains open.
    pub(crate) pinned: u32,
    /// Pages of other domains in this domain's window.
    pub(crate) pages: Pages,
    /// Number of pins of copies in progress.
    pub(crate) copying: u32,
    /// Whether the domain is dead and no longer uses pages of other domains.
    is_dead: bool,
}

/// Usage of all domains, by id. A domain's usage is created when the domain first uses a page of
/// another domain, or when another domain first uses one of its pages.
#[derive(Debug, Default)]
pub(crate) struct Parts(Vec<Option<DomainUsage>>);

impl Parts {
    pub(crate) fn get(&self, id: DomId) -> Option<&DomainUsage> {
        self.0.get(usize::from(id.0))?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: DomId) -> Option<&mut DomainUsage> {
        self.0.get_mut(usize::from(id.0))?.as_mut()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (DomId, &DomainUsage)> {
        let all = self.0.iter().enumerate();
        all.filter_map(|(id, part)| Some((DomId(id as u16), part.as_ref()?)))
    }

    /// Returns the usage of a domain. If necessary, creates it from the domain's account.
    pub(crate) fn open(&mut self, id: DomId, account: &Account) -> Option<&mut DomainUsage> {
        let at = usize::from(id.0);
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        let part = self.0.get_mut(at)?;
        Some(part.get_or_insert_with(|| DomainUsage {
            active: vec![Active::default(); account.memory.grant_entries as usize],
            pinned: 0,
            pages: Pages::new(account.window.slot_count()),
            copying: 0,
            is_dead: false,
        }))
    }

    fn remove_if_unused(&mut self, id: DomId) {
        let is_unused = self
            .get(id)
            .is_some_and(|part| part.is_dead && part.pinned == 0);
        if is_unused && let Some(place) = self.0.get_mut(usize::from(id.0)) {
            *place = None;
        }
    }
}

/// The usage of all domains behind a lock.
#[derive(Debug, Default)]
pub(crate) struct GrantUsage(Mutex<Parts>);

impl GrantUsage {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a domain has a usage record.
    pub(crate) fn refers_to(&self, id: DomId) -> bool {
        self.parts().get(id).is_some()
    }
}

/// The accounts and the usage. Each batch of classic grants locks both.
#[derive(Clone, Copy)]
pub(crate) struct UsageTables<'a> {
    pub(crate) grants: &'a GrantAccounts,
    pub(crate) usage: &'a GrantUsage,
}

impl<'a> UsageTables<'a> {
    /// Locks the accounts and the usage.
    pub(crate) fn lock(self) -> Locked<'a> {
        let accounts = self.grants.lock();
        let parts = self.usage.parts();
        Locked { accounts, parts }
    }
}

/// The accounts and the usage, both locked.
pub(crate) struct Locked<'a> {
    pub(crate) accounts: MutexGuard<'a, Accounts>,
    pub(crate) parts: MutexGuard<'a, Parts>,
}

impl Locked<'_> {
    /// Begins a use of a grant. Checks the entry, marks it as in use, and returns the pin.
    pub(crate) fn pin(
        &mut self,
        user: DomId,
        granter: DomId,
        gref: GrantRef,
        write: bool,
        purpose: PinPurpose,
    ) -> Result<PinnedGrant, GrantStatus> {
        let account = self.accounts.alive(granter);
        let account = account.ok_or(GrantStatus::BadDomain)?;
        let memory = &account.memory;
        let index = gref.index();
        let entry = entry::of(memory, index).ok_or(GrantStatus::BadRef)?;
        if gref.generation() != 0 {
            return Err(GrantStatus::BadRef);
        }
        let part = self.parts.get(granter);
        let used = part.and_then(|part| part.active.get(index as usize));
        let used = used.filter(|active| active.in_use()).copied();
        let now = match used {
            Some(active) if active.user != user.0 => return Err(GrantStatus::BadRef),
            Some(active) if write && active.readonly => return Err(GrantStatus::PermissionDenied),
            Some(active) => {
                if write && !active.written() {
                    entry.fetch_or(u64::from(GrantEntry::WRITING), Ordering::AcqRel);
                }
                active
            }
            None => {
                let captured = entry::capture(entry, user, write, memory.frame_count)?;
                Active {
                    frame: captured.frame(),
                    user: user.0,
                    readonly: captured.readonly(),
                    ..Active::default()
                }
            }
        };
        let part = self.parts.open(granter, account);
        let part = part.ok_or(GrantStatus::NoSpace)?;
        let active = part.active.get_mut(index as usize);
        let active = active.ok_or(GrantStatus::BadRef)?;
        *active = now;
        let count = active.count(purpose, write);
        *count = count.checked_add(1).ok_or(GrantStatus::NoSpace)?;
        if used.is_none() {
            part.pinned += 1;
            if part.pinned == 1 {
                self.accounts.hold_memory(granter);
            }
        }
        Ok(PinnedGrant {
            granter,
            index,
            frame: now.frame,
            write,
        })
    }

    /// Ends a use of a grant. The end of the last use clears the entry's in-use flags, and removes
    /// the granter's usage if the granter is dead.
    pub(crate) fn unpin(&mut self, pin: PinnedGrant, purpose: PinPurpose) {
        let account = self.accounts.account(pin.granter);
        let entry = account.and_then(|account| entry::of(&account.memory, pin.index));
        let Some(part) = self.parts.get_mut(pin.granter) else {
            return;
        };
        let Some(active) = part.active.get_mut(pin.index as usize) else {
            return;
        };
        let count = active.count(purpose, pin.write);
        // Each pin ends exactly once, because one window slot or one list of copies owns it. The
        // audit would detect an error.
        *count = count.saturating_sub(1);
        let ended = if !active.in_use() {
            part.pinned = part.pinned.saturating_sub(1);
            GrantEntry::READING | GrantEntry::WRITING
        } else if !active.written() {
            GrantEntry::WRITING
        } else {
            0
        };
        let is_last = !active.in_use() && part.pinned == 0;
        if let Some(entry) = entry.filter(|_| ended != 0) {
            // Release ordering: a granter that reads cleared flags may reuse the page, so the
            // monitor's accesses must precede the change of the flags.
            entry.fetch_and(!u64::from(ended), Ordering::AcqRel);
        }
        if is_last {
            self.parts.remove_if_unused(pin.granter);
            self.accounts.release_memory(pin.granter);
        }
    }

    /// Returns the page of a pinned grant.
    pub(crate) fn page(&self, pin: PinnedGrant) -> Option<Span> {
        self.accounts.account(pin.granter)?.memory.frame(pin.frame)
    }

    /// Returns the usage of a domain with an open account.
    pub(crate) fn part(&mut self, id: DomId) -> Option<&mut DomainUsage> {
        let account = self.accounts.account(id)?;
        self.parts.open(id, account)
    }

    /// Reserves a slot for the page of a pinned grant, which the caller maps next.
    ///
    /// # Errors
    /// Returns `BadSlot` if the slot is not free. This function then ends the use of the grant.
    pub(crate) fn take(
        &mut self,
        id: DomId,
        slot: Slot,
        pin: PinnedGrant,
    ) -> Result<(), GrantStatus> {
        if !(self.accounts).reserve(id, WindowSlot::Page, &[single_slot(slot)]) {
            self.unpin(pin, PinPurpose::Map);
            return Err(GrantStatus::BadSlot);
        }
        if let Some(part) = self.part(id) {
            part.pages.take(slot, pin);
        }
        Ok(())
    }

    /// Frees a reserved slot.
    pub(crate) fn free(&mut self, id: DomId, slot: Slot) {
        if let Some(window) = self.accounts.window(id) {
            window.unreserve(&[single_slot(slot)]);
        }
        if let Some(part) = self.parts.get_mut(id) {
            part.pages.free(slot);
        }
    }

    /// Releases about `budget` slots of a dead domain's window, starting at slot `from`. Returns
    /// the slot at which to continue, or `None` if all slots are free. The domain's process has
    /// exited, so it cannot access the pages.
    pub(crate) fn release(&mut self, id: DomId, from: u32, budget: u32) -> Option<u32> {
        let (pins, next) = self.parts.get_mut(id)?.pages.clear(from, budget);
        for (slot, pin) in pins {
            if let Some(window) = self.accounts.window(id) {
                window.unreserve(&[single_slot(slot)]);
            }
            self.unpin(pin, PinPurpose::Map);
        }
        next
    }

    /// Records that a dead domain no longer uses any page. Its usage record is removed as soon as
    /// no domain uses its grants.
    pub(crate) fn clear(&mut self, id: DomId) {
        if let Some(part) = self.parts.get_mut(id) {
            part.is_dead = true;
        }
        self.parts.remove_if_unused(id);
    }
}

/// Returns the range of one slot, or an empty range if the slot number is too large for any window.
pub(crate) fn single_slot(slot: Slot) -> std::ops::Range<u32> {
    slot.0..slot.0.saturating_add(1)
}
