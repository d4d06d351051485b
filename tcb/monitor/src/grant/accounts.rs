//! Every domain's account: its memory, who holds it, its window.
//!
//! This is what all mechanisms share: they ask for a domain's memory and for slots of its window.

use super::window::{Window, WindowSlot};
use crate::device::{self, DeviceMap};
use crate::memory::Memory;
use abi::DomId;
use std::collections::BTreeMap;
use std::ops::Range;
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
pub struct Account {
    pub(crate) memory: Arc<Memory>,
    /// No new use of its grants once it is dead.
    pub(crate) alive: bool,
    /// Its own uses of others' grants have all ended; set once, after its death.
    pub(crate) cleared: bool,
    /// Who has a descriptor of its frames, or a use for one of them.
    pub(crate) holders: u32,
    pub(crate) window: Window,
}

impl Account {
    /// The domain's memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The domain's window.
    #[must_use]
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Whether nobody has a use for it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.cleared && self.holders == 0
    }
}

/// All domains' accounts. A domain's id is given to no other one as long as it has an account.
#[derive(Debug, Default)]
pub struct Accounts(BTreeMap<DomId, Account>);

impl Accounts {
    /// Opens a domain's account.
    pub fn insert(&mut self, id: DomId, memory: Arc<Memory>, window_slots: u32) {
        let account = Account {
            memory,
            alive: true,
            cleared: false,
            holders: 0,
            window: Window::new(window_slots),
        };
        self.0.insert(id, account);
    }

    /// A domain's account, if it is open.
    #[must_use]
    pub fn account(&self, id: DomId) -> Option<&Account> {
        self.0.get(&id)
    }

    /// The account of a domain whose grants may be used.
    #[must_use]
    pub fn alive(&self, id: DomId) -> Option<&Account> {
        self.account(id).filter(|account| account.alive)
    }

    fn account_mut(&mut self, id: DomId) -> Option<&mut Account> {
        self.0.get_mut(&id)
    }

    /// The window of a domain whose account is open.
    pub fn window(&mut self, id: DomId) -> Option<&mut Window> {
        self.account_mut(id).map(|account| &mut account.window)
    }

    /// Every account that is open.
    pub fn all(&self) -> impl Iterator<Item = (DomId, &Account)> {
        self.0.iter().map(|(id, account)| (*id, account))
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

    /// Hands out a granter's memory to somebody who has a use for it.
    pub fn hold_memory(&mut self, granter: DomId) -> Option<Arc<Memory>> {
        let account = self.account_mut(granter)?;
        account.holders += 1;
        Some(Arc::clone(&account.memory))
    }

    /// Somebody has no use for a granter's memory any more.
    pub fn release_memory(&mut self, granter: DomId) {
        if let Some(account) = self.account_mut(granter) {
            account.holders = account.holders.saturating_sub(1);
        }
        self.close_if_over(granter);
    }

    /// Takes free slots of a domain's window for what they are to hold; all or none. Whether it
    /// could.
    pub fn reserve(&mut self, id: DomId, holds: WindowSlot, ranges: &[Range<u32>]) -> bool {
        self.window(id)
            .is_some_and(|window| window.reserve(holds, ranges))
    }

    /// Frees slots that a table, an exchange or a device had.
    pub fn unreserve(&mut self, id: DomId, ranges: &[Range<u32>]) {
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

    /// All of a dead domain's uses have ended: its account goes as soon as no domain uses its
    /// grants.
    pub fn clear(&mut self, id: DomId) {
        if let Some(account) = self.account_mut(id) {
            account.alive = false;
            account.cleared = true;
        }
        self.close_if_over(id);
    }

    /// Changes an account as no code of ours does.
    #[cfg(test)]
    pub(super) fn spoil(&mut self, id: DomId, change: impl FnOnce(&mut Account)) {
        if let Some(account) = self.account_mut(id) {
            change(account);
        }
    }

    fn close_if_over(&mut self, id: DomId) {
        if self.account(id).is_some_and(Account::is_over) {
            self.0.remove(&id);
        }
    }
}
