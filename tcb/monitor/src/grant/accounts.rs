//! Every domain's account: its memory, the entries of its grant table that are in use, its window.
//!
//! This is what all mechanisms share. Classic grants pin and unpin entries; counted grants and
//! exchanges only ask for a domain's memory and for slots of its window.

use super::entry::{Active, PinnedGrant, Purpose, capture, entry_of};
use super::window::{Window, WindowSlot};
use crate::device::{self, DeviceMap};
use crate::memory::Memory;
use abi::grant::GrantEntry;
use abi::{DomId, GrantRef, GrantStatus, Slot};
use shmem::Span;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All accounts behind their lock.
#[derive(Debug, Default)]
pub struct Grants(Mutex<Accounts>);

impl Grants {
    /// Locks the accounts. Only bookkeeping happens under this lock.
    pub fn lock(&self) -> MutexGuard<'_, Accounts> {
        // A panic in here ends the process (`panic = abort`); in tests the state is still sound,
        // for every step leaves it so.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One domain's account.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) memory: Arc<Memory>,
    /// No new use of its grants once it is dead.
    pub(crate) alive: bool,
    /// Its own uses of others' grants have all ended; set once, after its death.
    pub(crate) cleared: bool,
    pub(crate) active: Vec<Active>,
    /// Entries of `active` in use.
    pub(crate) pinned: u32,
    /// Address spaces that hold a descriptor of its frames.
    pub(crate) holders: u32,
    pub(crate) window: Window,
    /// Pins of its copies under way.
    pub(crate) copying: u32,
}

impl Account {
    /// The stored form of an entry.
    pub(crate) fn entry(&self, index: u32) -> Option<&'static AtomicU64> {
        if index >= self.memory.grant_entries() {
            return None;
        }
        entry_of(self.memory.info().span(), index)
    }

    fn over(&self) -> bool {
        self.cleared && self.pinned == 0 && self.holders == 0
    }
}

/// All domains' accounts.
#[derive(Debug, Default)]
pub struct Accounts {
    /// By domain id; one that has an account is given to no other domain.
    accounts: Vec<Option<Account>>,
}

impl Accounts {
    /// Opens a domain's account.
    pub fn insert(&mut self, id: DomId, memory: Arc<Memory>, window_slots: u32) {
        let at = usize::from(id.0);
        if self.accounts.len() <= at {
            self.accounts.resize_with(at + 1, || None);
        }
        let active = vec![Active::default(); memory.grant_entries() as usize];
        if let Some(place) = self.accounts.get_mut(at) {
            *place = Some(Account {
                memory,
                alive: true,
                cleared: false,
                active,
                pinned: 0,
                holders: 0,
                window: Window::new(window_slots),
                copying: 0,
            });
        }
    }

    pub(crate) fn account(&self, id: DomId) -> Option<&Account> {
        self.accounts.get(usize::from(id.0))?.as_ref()
    }

    /// The account of a domain whose grants may be used.
    pub(crate) fn alive(&self, id: DomId) -> Option<&Account> {
        self.account(id).filter(|account| account.alive)
    }

    pub(crate) fn account_mut(&mut self, id: DomId) -> Option<&mut Account> {
        self.accounts.get_mut(usize::from(id.0))?.as_mut()
    }

    /// The window of a domain whose account is open.
    pub(crate) fn window(&mut self, id: DomId) -> Option<&mut Window> {
        self.account_mut(id).map(|account| &mut account.window)
    }

    /// Frees a slot of a domain's window that held a pinned grant.
    pub(crate) fn free_slot(&mut self, id: DomId, slot: Slot) {
        if let Some(window) = self.window(id) {
            window.free(slot);
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (DomId, &Account)> {
        self.accounts
            .iter()
            .enumerate()
            .filter_map(|(id, account)| Some((DomId(id as u16), account.as_ref()?)))
    }

    /// Whether a domain's account is still open.
    #[must_use]
    pub fn knows(&self, id: DomId) -> bool {
        self.account(id).is_some()
    }

    /// Whether a domain's account is open, and its death not known.
    #[must_use]
    pub fn is_alive(&self, id: DomId) -> bool {
        self.alive(id).is_some()
    }

    /// Begins a use of a grant: checks it, marks the entry, and returns what was granted.
    pub(crate) fn pin(
        &mut self,
        user: DomId,
        granter: DomId,
        gref: GrantRef,
        write: bool,
        purpose: Purpose,
    ) -> Result<PinnedGrant, GrantStatus> {
        let account = self
            .account_mut(granter)
            .filter(|a| a.alive)
            .ok_or(GrantStatus::BadDomain)?;
        let index = gref.index();
        let entry = account.entry(index).ok_or(GrantStatus::BadRef)?;
        if gref.generation() != 0 {
            return Err(GrantStatus::BadRef);
        }
        let frame_count = account.memory.frame_count();
        let active = account
            .active
            .get_mut(index as usize)
            .ok_or(GrantStatus::BadRef)?;
        let fresh = !active.in_use();
        if fresh {
            let captured = capture(entry, user, write, frame_count)?;
            *active = Active {
                frame: captured.frame(),
                user: user.0,
                readonly: captured.readonly(),
                ..Active::default()
            };
        } else {
            if active.user != user.0 {
                return Err(GrantStatus::BadRef);
            }
            if write && active.readonly {
                return Err(GrantStatus::PermissionDenied);
            }
            if write && !active.written() {
                entry.fetch_or(u64::from(GrantEntry::WRITING), Ordering::AcqRel);
            }
        }
        let count = active.count(purpose, write);
        *count = count.checked_add(1).ok_or(GrantStatus::NoSpace)?;
        let frame = active.frame;
        if fresh {
            account.pinned += 1;
        }
        Ok(PinnedGrant {
            granter,
            index,
            frame,
            write,
        })
    }

    /// Ends a use of a grant; the last one clears the entry's in-use flags, and takes the account
    /// of a dead granter with it.
    pub(crate) fn unpin(&mut self, pin: PinnedGrant, purpose: Purpose) {
        let Some(account) = self.account_mut(pin.granter) else {
            return;
        };
        let entry = account.entry(pin.index);
        let Some(active) = account.active.get_mut(pin.index as usize) else {
            return;
        };
        let count = active.count(purpose, pin.write);
        // Every pin is ended once (the window's slots and the copies' lists see to that); the
        // audit would show it if not.
        *count = count.saturating_sub(1);
        let ended = if !active.in_use() {
            account.pinned = account.pinned.saturating_sub(1);
            GrantEntry::READING | GrantEntry::WRITING
        } else if !active.written() {
            GrantEntry::WRITING
        } else {
            0
        };
        if let Some(entry) = entry.filter(|_| ended != 0) {
            // Release: who sees the flags gone may take the page for something else, and must
            // not see our accesses afterwards.
            entry.fetch_and(!u64::from(ended), Ordering::AcqRel);
        }
        self.close_if_over(pin.granter);
    }

    /// The page behind a pin.
    pub(crate) fn page(&self, pin: PinnedGrant) -> Option<Span> {
        self.account(pin.granter)?.memory.frame(pin.frame)
    }

    /// Hands out a granter's memory to an address space that is about to map it.
    pub(crate) fn hold_memory(&mut self, granter: DomId) -> Option<Arc<Memory>> {
        let account = self.account_mut(granter)?;
        account.holders += 1;
        Some(Arc::clone(&account.memory))
    }

    /// An address space has given up its descriptor of a granter's memory.
    pub(crate) fn release_memory(&mut self, granter: DomId) {
        if let Some(account) = self.account_mut(granter) {
            account.holders = account.holders.saturating_sub(1);
        }
        self.close_if_over(granter);
    }

    /// Takes free slots of a domain's window for what they are to hold: see [`Window::reserve`].
    pub(crate) fn reserve(&mut self, id: DomId, holds: WindowSlot, ranges: &[Range<u32>]) -> bool {
        self.window(id)
            .is_some_and(|window| window.reserve(holds, ranges))
    }

    /// Frees slots that a table, an exchange or a device had.
    pub(crate) fn unreserve(&mut self, id: DomId, ranges: &[Range<u32>]) {
        if let Some(window) = self.window(id) {
            window.unreserve(ranges);
        }
    }

    /// Takes the slots that show a device of a domain's. Whether all of them are there and free.
    pub fn reserve_device(&mut self, id: DomId, number: u64, pages: &[DeviceMap]) -> bool {
        let ends = |part: &DeviceMap| part.slot.0.checked_add(part.pages).is_some();
        pages.iter().all(ends)
            && self.reserve(id, WindowSlot::Device(number), &device::slots(pages))
    }

    /// Gives them back.
    pub fn unreserve_device(&mut self, id: DomId, pages: &[DeviceMap]) {
        self.unreserve(id, &device::slots(pages));
    }

    /// A domain is dead or about to be: no new use of its grants begins.
    pub fn fence(&mut self, id: DomId) {
        if let Some(account) = self.account_mut(id) {
            account.alive = false;
        }
    }

    /// Releases up to `budget` slots of a dead domain's window, from `from` on; returns where to
    /// go on, or none when all are free. Its process is gone: nothing can touch the pages.
    pub(crate) fn release(&mut self, id: DomId, from: u32, budget: u32) -> Option<u32> {
        let (pins, next) = self.window(id)?.clear(from, budget);
        for pin in pins {
            self.unpin(pin, Purpose::Map);
        }
        next
    }

    /// All of a dead domain's uses have ended: its account goes as soon as no domain uses its
    /// grants.
    pub(crate) fn clear(&mut self, id: DomId) {
        if let Some(account) = self.account_mut(id) {
            account.alive = false;
            account.cleared = true;
        }
        self.close_if_over(id);
    }

    fn close_if_over(&mut self, id: DomId) {
        if self.account(id).is_some_and(Account::over)
            && let Some(place) = self.accounts.get_mut(usize::from(id.0))
        {
            *place = None;
        }
    }
}
