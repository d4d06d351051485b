//! The books of classic grants: every domain's entries in use, and pages of others that it has
//! mapped or copies.
//!
//! They are locked after the accounts, and changed only while these are locked too: who is alive
//! stays so meanwhile.

use crate::entry::{self, Active, PinnedGrant, Purpose};
use crate::pages::Pages;
use abi::classic::GrantEntry;
use abi::{DomId, GrantRef, GrantStatus, Slot};
use monitor::grant::{Account, Accounts, Grants, WindowSlot};
use shmem::Span;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One domain's part.
#[derive(Debug)]
pub(crate) struct Part {
    /// By entry of its table.
    pub(crate) active: Vec<Active>,
    /// Entries of `active` in use. While there are any its account is held.
    pub(crate) pinned: u32,
    /// Pages of others in its window.
    pub(crate) pages: Pages,
    /// Pins of its copies under way.
    pub(crate) copying: u32,
    /// It is dead, and uses nothing of others any more.
    gone: bool,
}

/// All domains' parts: by id, each from its first use of or by others on.
#[derive(Debug, Default)]
pub(crate) struct Parts(Vec<Option<Part>>);

impl Parts {
    pub(crate) fn get(&self, id: DomId) -> Option<&Part> {
        self.0.get(usize::from(id.0))?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: DomId) -> Option<&mut Part> {
        self.0.get_mut(usize::from(id.0))?.as_mut()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (DomId, &Part)> {
        let all = self.0.iter().enumerate();
        all.filter_map(|(id, part)| Some((DomId(id as u16), part.as_ref()?)))
    }

    /// The part of a domain, whose account this is.
    pub(crate) fn open(&mut self, id: DomId, account: &Account) -> Option<&mut Part> {
        let at = usize::from(id.0);
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        let part = self.0.get_mut(at)?;
        Some(part.get_or_insert_with(|| Part {
            active: vec![Active::default(); account.memory.grant_entries as usize],
            pinned: 0,
            pages: Pages::new(account.window.slot_count()),
            copying: 0,
            gone: false,
        }))
    }

    fn close_if_over(&mut self, id: DomId) {
        let is_over = self
            .get(id)
            .is_some_and(|part| part.gone && part.pinned == 0);
        if is_over && let Some(place) = self.0.get_mut(usize::from(id.0)) {
            *place = None;
        }
    }
}

/// The books behind their lock.
#[derive(Debug, Default)]
pub(crate) struct Books(Mutex<Parts>);

impl Books {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a domain has a part in them.
    pub(crate) fn names(&self, id: DomId) -> bool {
        self.parts().get(id).is_some()
    }
}

/// What a batch of classic grants needs.
#[derive(Clone, Copy)]
pub(crate) struct Bookkeeping<'a> {
    pub(crate) grants: &'a Grants,
    pub(crate) books: &'a Books,
}

impl<'a> Bookkeeping<'a> {
    /// Locks accounts and books.
    pub(crate) fn lock(self) -> Locked<'a> {
        let accounts = self.grants.lock();
        let parts = self.books.parts();
        Locked { accounts, parts }
    }
}

/// Accounts and books while both are locked.
pub(crate) struct Locked<'a> {
    pub(crate) accounts: MutexGuard<'a, Accounts>,
    pub(crate) parts: MutexGuard<'a, Parts>,
}

impl Locked<'_> {
    /// Begins a use of a grant: checks it, marks the entry, and returns what was granted.
    pub(crate) fn pin(
        &mut self,
        user: DomId,
        granter: DomId,
        gref: GrantRef,
        write: bool,
        purpose: Purpose,
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

    /// Ends a use of a grant; the last one clears the entry's in-use flags, and takes the part of
    /// a dead granter with it.
    pub(crate) fn unpin(&mut self, pin: PinnedGrant, purpose: Purpose) {
        let account = self.accounts.account(pin.granter);
        let entry = account.and_then(|account| entry::of(&account.memory, pin.index));
        let Some(part) = self.parts.get_mut(pin.granter) else {
            return;
        };
        let Some(active) = part.active.get_mut(pin.index as usize) else {
            return;
        };
        let count = active.count(purpose, pin.write);
        // Every pin is ended once (the window's slots and the copies' lists see to that); the
        // audit would show it if not.
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
            // Release: who sees the flags gone may take the page for something else, and must
            // not see our accesses afterwards.
            entry.fetch_and(!u64::from(ended), Ordering::AcqRel);
        }
        if is_last {
            self.parts.close_if_over(pin.granter);
            self.accounts.release_memory(pin.granter);
        }
    }

    /// The page behind a pin.
    pub(crate) fn page(&self, pin: PinnedGrant) -> Option<Span> {
        self.accounts.account(pin.granter)?.memory.frame(pin.frame)
    }

    /// The part of a domain whose account is open.
    pub(crate) fn part(&mut self, id: DomId) -> Option<&mut Part> {
        let account = self.accounts.account(id)?;
        self.parts.open(id, account)
    }

    /// Puts a grant that is about to be mapped into a slot.
    ///
    /// # Errors
    /// `BadSlot`: it is not free, and the use of the grant has ended.
    pub(crate) fn take(
        &mut self,
        id: DomId,
        slot: Slot,
        pin: PinnedGrant,
    ) -> Result<(), GrantStatus> {
        if !(self.accounts).reserve(id, WindowSlot::Page, &[only(slot)]) {
            self.unpin(pin, Purpose::Map);
            return Err(GrantStatus::BadSlot);
        }
        if let Some(part) = self.part(id) {
            part.pages.take(slot, pin);
        }
        Ok(())
    }

    /// Frees a slot that was taken.
    pub(crate) fn free(&mut self, id: DomId, slot: Slot) {
        if let Some(window) = self.accounts.window(id) {
            window.unreserve(&[only(slot)]);
        }
        if let Some(part) = self.parts.get_mut(id) {
            part.pages.free(slot);
        }
    }

    /// Releases up to `budget` slots of a dead domain's window, from `from` on; returns where to
    /// go on, or none when all are free. Its process is gone: nothing can touch the pages.
    pub(crate) fn release(&mut self, id: DomId, from: u32, budget: u32) -> Option<u32> {
        let (pins, next) = self.parts.get_mut(id)?.pages.clear(from, budget);
        for (slot, pin) in pins {
            if let Some(window) = self.accounts.window(id) {
                window.unreserve(&[only(slot)]);
            }
            self.unpin(pin, Purpose::Map);
        }
        next
    }

    /// All of a dead domain's uses have ended: its part goes as soon as no domain uses its grants.
    pub(crate) fn clear(&mut self, id: DomId) {
        if let Some(part) = self.parts.get_mut(id) {
            part.gone = true;
        }
        self.parts.close_if_over(id);
    }
}

/// A slot alone; none, if it is no window's.
pub(crate) fn only(slot: Slot) -> std::ops::Range<u32> {
    slot.0..slot.0.saturating_add(1)
}
