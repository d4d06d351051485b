//! Every domain's account: its memory and the number of that memory's holders, its window, and its
//! address space, which workers of other domains change.
//!
//! All grant mechanisms share this state: they hold a domain's memory, reserve slots of its window,
//! change its address space, and identify tables and exchanges by handles.

use super::window::{WindowSlot, WindowSlots};
use crate::memory::SharedDomainMemory;
use crate::space::{AddressSpace, SpaceError};
use abi::{DomId, GrantStatus, Handle};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An address space that the workers of several domains change.
pub type SharedSpace = Arc<Mutex<dyn AddressSpace + Send>>;

/// All accounts behind their lock.
#[derive(Debug, Default)]
pub struct GrantAccounts {
    accounts: Mutex<Accounts>,
    /// The last handle that was assigned.
    last_handle: AtomicU32,
}

impl GrantAccounts {
    /// Locks the accounts. The lock is held for bookkeeping only.
    pub fn lock(&self) -> MutexGuard<'_, Accounts> {
        // A panic under the lock aborts the process (`panic = abort`). In tests the state remains
        // usable after a panic, because every step leaves it consistent.
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a handle that was never assigned before. Tables and exchanges share one sequence of
    /// handles, because an address space identifies their memory by the handle
    /// ([`Handle::memory`]).
    ///
    /// # Errors
    /// Returns `NoSpace` if all handles have been assigned.
    pub fn next_handle(&self) -> Result<Handle, GrantStatus> {
        let next = |last_handle: u32| last_handle.checked_add(1);
        let last_handle = self
            .last_handle
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        last_handle
            .map(|last_handle| Handle(last_handle + 1))
            .map_err(|_| GrantStatus::NoSpace)
    }

    /// Changes a domain's address space under its lock, which is held while the agent works. If
    /// `change` returns [`SpaceError::Lost`], kills the domain and waits for its exit.
    ///
    /// # Errors
    /// Returns the error of `change`, or `Lost` if the domain is dead.
    pub fn change<T>(
        &self,
        id: DomId,
        change: impl FnOnce(&mut dyn AddressSpace) -> Result<T, SpaceError>,
    ) -> Result<T, SpaceError> {
        let space = self
            .lock()
            .account(id)
            .and_then(|account| account.space.clone());
        let space = space.ok_or_else(|| SpaceError::Lost("the domain has exited".into()))?;
        let mut space = space.lock().unwrap_or_else(PoisonError::into_inner);
        let done = change(&mut *space);
        if let Err(SpaceError::Lost(why)) = &done {
            space.destroy(why);
        }
        done
    }

    /// Kills a domain, and waits for its exit.
    pub(super) fn destroy(&self, id: DomId, why: &str) {
        let _ = self.change(id, |_| Err::<(), _>(SpaceError::Lost(why.into())));
    }
}

/// One domain's account.
#[derive(Debug)]
pub struct Account {
    /// The domain's memory.
    pub memory: Arc<SharedDomainMemory>,
    /// Whether the domain is alive. New uses of a dead domain's grants are rejected.
    pub(crate) alive: bool,
    /// Whether the domain no longer uses any other domain's grants. Set once, after its death.
    pub(crate) cleared: bool,
    /// The number of holders of its frames; each has or needs a descriptor of them.
    pub(crate) holders: u32,
    /// The domain's window.
    pub window: WindowSlots,
    /// `None` before its process exists and after the process has exited.
    space: Option<SharedSpace>,
}

impl Account {
    /// Returns whether the account must be closed: the domain is cleared and its memory has no
    /// holder.
    pub(crate) fn is_over(&self) -> bool {
        self.cleared && self.holders == 0
    }
}

/// All domains' accounts. The id of a domain that has an account is not reused.
#[derive(Debug, Default)]
pub struct Accounts(BTreeMap<DomId, Account>);

impl Accounts {
    /// Opens a domain's account.
    pub fn insert(&mut self, id: DomId, memory: Arc<SharedDomainMemory>, window_slots: u32) {
        let account = Account {
            memory,
            alive: true,
            cleared: false,
            holders: 0,
            window: WindowSlots::new(window_slots),
            space: None,
        };
        self.0.insert(id, account);
    }

    /// Returns a domain's account, if it is open.
    #[must_use]
    pub fn account(&self, id: DomId) -> Option<&Account> {
        self.0.get(&id)
    }

    /// Returns the account of a domain whose grants may be used.
    #[must_use]
    pub fn alive(&self, id: DomId) -> Option<&Account> {
        self.account(id).filter(|account| account.alive)
    }

    fn account_mut(&mut self, id: DomId) -> Option<&mut Account> {
        self.0.get_mut(&id)
    }

    /// Returns the window of a domain whose account is open.
    pub fn window(&mut self, id: DomId) -> Option<&mut WindowSlots> {
        self.account_mut(id).map(|account| &mut account.window)
    }

    /// Returns every open account.
    pub fn all(&self) -> impl Iterator<Item = (DomId, &Account)> {
        self.0.iter().map(|(id, account)| (*id, account))
    }

    /// Returns whether a domain's account is still open.
    #[must_use]
    pub fn has_account(&self, id: DomId) -> bool {
        self.account(id).is_some()
    }

    /// Sets a domain's address space, which other domains' workers may change; `None` once its
    /// process has exited.
    pub fn set_space(&mut self, id: DomId, space: Option<SharedSpace>) {
        if let Some(account) = self.account_mut(id) {
            account.space = space;
        }
    }

    /// Returns a granter's memory, and counts the caller as a holder of it.
    pub fn hold_memory(&mut self, granter: DomId) -> Option<Arc<SharedDomainMemory>> {
        let account = self.account_mut(granter)?;
        account.holders += 1;
        Some(Arc::clone(&account.memory))
    }

    /// Removes a holder of a granter's memory.
    pub fn release_memory(&mut self, granter: DomId) {
        if let Some(account) = self.account_mut(granter) {
            account.holders = account.holders.saturating_sub(1);
        }
        self.close_if_over(granter);
    }

    /// Reserves slots of a domain's window, all or none. Returns whether they were free.
    pub fn reserve(&mut self, id: DomId, holds: WindowSlot, ranges: &[Range<u32>]) -> bool {
        let window = self.window(id);
        window.is_some_and(|window| window.reserve(holds, ranges))
    }

    /// Frees slots that a table, an exchange or a device held.
    pub fn unreserve(&mut self, id: DomId, ranges: &[Range<u32>]) {
        if let Some(window) = self.window(id) {
            window.unreserve(ranges);
        }
    }

    /// Marks a domain as dead or dying: new uses of its grants are rejected.
    pub fn fence(&mut self, id: DomId) {
        if let Some(account) = self.account_mut(id) {
            account.alive = false;
        }
    }

    /// Records that a dead domain no longer uses any grant. Closes its account when its memory has
    /// no holder.
    pub fn clear(&mut self, id: DomId) {
        if let Some(account) = self.account_mut(id) {
            account.alive = false;
            account.cleared = true;
        }
        self.close_if_over(id);
    }

    /// Corrupts an account, for tests of the audit.
    #[cfg(test)]
    pub(super) fn corrupt(&mut self, id: DomId, change: impl FnOnce(&mut Account)) {
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
