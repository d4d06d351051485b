//! Every domain's account: its memory, who holds it, its window, and its address space as the
//! workers of other domains reach it.
//!
//! This is what all mechanisms share: they ask for a domain's memory and for slots of its window,
//! change its address space, and make tables and exchanges under numbers of their own.

use super::window::{Window, WindowSlot};
use crate::memory::Memory;
use crate::space::{AddressSpace, SpaceError};
use abi::{DomId, GrantStatus, Handle};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An address space that is changed by the workers of several domains.
pub type SharedSpace = Arc<Mutex<dyn AddressSpace + Send>>;

/// All accounts behind their lock.
#[derive(Debug, Default)]
pub struct Grants {
    accounts: Mutex<Accounts>,
    /// The last handle that was given out.
    last: AtomicU32,
}

impl Grants {
    /// Locks the accounts. Only bookkeeping happens under this lock.
    pub fn lock(&self) -> MutexGuard<'_, Accounts> {
        // A panic in here ends the process (`panic = abort`); in tests the state is still sound,
        // for every step leaves it so.
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle that was never given out: tables and exchanges count together, since an address
    /// space knows their memory by it ([`Handle::memory`]).
    ///
    /// # Errors
    /// `NoSpace`: all of them were given out.
    pub fn next_handle(&self) -> Result<Handle, GrantStatus> {
        let next = |last: u32| last.checked_add(1);
        let last = self
            .last
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        last.map(|last| Handle(last + 1))
            .map_err(|_| GrantStatus::NoSpace)
    }

    /// Changes a domain's address space, which is locked for as long as the agent behind it works.
    /// A domain whose space does not let itself be changed is killed, and its end waited for.
    ///
    /// # Errors
    /// What `change` says; the domain is gone.
    pub fn change<T>(
        &self,
        id: DomId,
        change: impl FnOnce(&mut dyn AddressSpace) -> Result<T, SpaceError>,
    ) -> Result<T, SpaceError> {
        let space = self
            .lock()
            .account(id)
            .and_then(|account| account.space.clone());
        let space = space.ok_or_else(|| SpaceError::Lost("the domain is gone".into()))?;
        let mut space = space.lock().unwrap_or_else(PoisonError::into_inner);
        let done = change(&mut *space);
        if let Err(SpaceError::Lost(why)) = &done {
            space.destroy(why);
        }
        done
    }

    /// Kills a domain, and waits for its end.
    pub(super) fn destroy(&self, id: DomId, why: &str) {
        let _ = self.change(id, |_| Err::<(), _>(SpaceError::Lost(why.into())));
    }
}

/// One domain's account.
#[derive(Debug)]
pub struct Account {
    /// The domain's memory.
    pub memory: Arc<Memory>,
    /// No new use of its grants once it is dead.
    pub(crate) alive: bool,
    /// Its own uses of others' grants have all ended; set once, after its death.
    pub(crate) cleared: bool,
    /// Who has a descriptor of its frames, or a use for one of them.
    pub(crate) holders: u32,
    /// The domain's window.
    pub window: Window,
    /// None before its process is there, and afterwards.
    space: Option<SharedSpace>,
}

impl Account {
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
            space: None,
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

    /// A domain has started, and the workers of others reach its address space by this one; none:
    /// its process is gone.
    pub fn set_space(&mut self, id: DomId, space: Option<SharedSpace>) {
        if let Some(account) = self.account_mut(id) {
            account.space = space;
        }
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
        let window = self.window(id);
        window.is_some_and(|window| window.reserve(holds, ranges))
    }

    /// Frees slots that a table, an exchange or a device had.
    pub fn unreserve(&mut self, id: DomId, ranges: &[Range<u32>]) {
        if let Some(window) = self.window(id) {
            window.unreserve(ranges);
        }
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
