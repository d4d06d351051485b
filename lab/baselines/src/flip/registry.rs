//! The registry of exchanges. The granter creates an exchange, the user binds it, and each end
//! releases it. The monitor releases the end of a dead domain.

use super::exchange::{Exchange, ExchangeState};
use abi::hypercall::BindOp;
use abi::{ConnId, DomId, GrantStatus, Handle, Slot};
use monitor::grant::{GrantAccounts, WindowSlot};
use monitor::space::{SpaceError, map_into};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::slice::from_ref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of exchanges per connection. It is two, because the user may not have released
/// the previous exchange yet.
const EXCHANGES_PER_CONNECTION: usize = 2;

/// All exchanges.
#[derive(Debug)]
pub(crate) struct Exchanges {
    by_handle: Mutex<BTreeMap<Handle, Arc<Exchange>>>,
    pub(crate) grants: Arc<GrantAccounts>,
}

impl Exchanges {
    /// Creates an empty registry for domains with these accounts.
    pub(crate) fn new(grants: Arc<GrantAccounts>) -> Self {
        Self {
            by_handle: Mutex::default(),
            grants,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Handle, Arc<Exchange>>> {
        self.by_handle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the exchange with this handle.
    pub(crate) fn exchange(&self, handle: Handle) -> Option<Arc<Exchange>> {
        self.lock().get(&handle).cloned()
    }

    /// Returns whether an exchange has this handle.
    pub(crate) fn has_exchange(&self, handle: Handle) -> bool {
        self.lock().contains_key(&handle)
    }

    /// Returns whether a domain is an end of any exchange.
    pub(crate) fn refers_to(&self, id: DomId) -> bool {
        let all: Vec<_> = self.lock().values().cloned().collect();
        all.iter().any(|exchange| {
            let state = exchange.state();
            state.granter.domain == id || state.user.domain == id
        })
    }

    /// Returns whether a domain has created an exchange for a connection.
    pub(crate) fn has_exchange_for(&self, granter: DomId, conn: ConnId) -> bool {
        let exchanges = self.lock();
        let mut all = exchanges.values();
        all.any(|exchange| exchange.granter == granter && exchange.conn == conn)
    }

    /// Creates an exchange with `count` pages per end, and maps the granter's pages in the
    /// granter's window at the slots from `first`.
    ///
    /// # Errors
    /// Returns `BadDomain` if an end is dead. Returns `BadSlot` if a slot does not exist or is not
    /// free. Returns `NoSpace` if the connection has too many exchanges, memory is exhausted, or
    /// the mapping failed.
    pub(crate) fn create(
        &self,
        (granter, conn): (DomId, ConnId),
        user: DomId,
        (count, first): (u32, Slot),
    ) -> Result<Handle, GrantStatus> {
        {
            let accounts = self.grants.lock();
            accounts.alive(user).ok_or(GrantStatus::BadDomain)?;
            let own = accounts.alive(granter).ok_or(GrantStatus::BadDomain)?;
            if count == 0 || count > own.window.slot_count() {
                return Err(GrantStatus::BadSlot);
            }
        }
        let exchange = {
            let mut exchanges = self.lock();
            let is_same = |e: &&Arc<Exchange>| e.granter == granter && e.conn == conn;
            if exchanges.values().filter(is_same).count() >= EXCHANGES_PER_CONNECTION {
                return Err(GrantStatus::NoSpace);
            }
            let handle = self.grants.next_handle()?;
            let made = Exchange::create(handle, (granter, conn), user, count);
            let exchange = Arc::new(made.map_err(|_| GrantStatus::NoSpace)?);
            exchanges.insert(handle, Arc::clone(&exchange));
            exchange
        };
        let _op = exchange.op();
        let mapped = self.map_end(&exchange, granter, first);
        if mapped.is_err() {
            self.release_end(&exchange, granter);
        }
        mapped.map(|()| exchange.handle)
    }

    /// Binds the user's end of an exchange, and maps the user's pages in the user's window.
    ///
    /// # Errors
    /// Returns `BadHandle` if the domain has no such exchange, or has already bound it. Returns
    /// `BadSlot` if a slot does not exist or is not free. Returns `NoSpace` if the mapping failed.
    pub(crate) fn bind(&self, user: DomId, op: &BindOp) -> Result<(), GrantStatus> {
        let exchange = self.exchange(op.table).ok_or(GrantStatus::BadHandle)?;
        let _op = exchange.op();
        {
            let ExchangeState { granter, user: own } = &*exchange.state();
            let is_user = own.domain == user && !own.is_released && own.slots.is_empty();
            let is_same = granter.domain == op.granter && exchange.count == op.entries;
            if !is_user || !is_same || granter.is_released {
                return Err(GrantStatus::BadHandle);
            }
        }
        self.map_end(&exchange, user, op.first)
    }

    /// Maps an end's pages in the end's window at the slots from `first`.
    fn map_end(&self, exchange: &Exchange, of: DomId, first: Slot) -> Result<(), GrantStatus> {
        let last = first.0.checked_add(exchange.count);
        let slots = first.0..last.ok_or(GrantStatus::BadSlot)?;
        let holds = WindowSlot::Table(exchange.handle);
        if !self.grants.lock().reserve(of, holds, from_ref(&slots)) {
            return Err(GrantStatus::BadSlot);
        }
        let maps = match exchange.state().end(of) {
            Some(end) => {
                end.slots = slots.clone();
                exchange.maps(end, slots.clone().map(Slot))
            }
            None => Vec::new(),
        };
        let fds = (exchange.region.fd(), exchange.region_readonly.as_fd());
        let changed = self.grants.change(of, |space| {
            map_into(space, exchange.handle.memory(), fds, &maps)
        });
        if changed.is_err() {
            if let Some(end) = exchange.state().end(of) {
                end.slots = 0..0;
            }
            self.grants.lock().unreserve(of, from_ref(&slots));
        }
        changed.map_err(|_| GrantStatus::NoSpace)
    }

    /// Releases the caller's end of an exchange, and unmaps its pages.
    ///
    /// # Errors
    /// Returns `BadHandle` if the domain has no such exchange.
    pub(crate) fn end(&self, caller: DomId, handle: Handle) -> Result<(), GrantStatus> {
        let exchange = self.exchange(handle).ok_or(GrantStatus::BadHandle)?;
        let _op = exchange.op();
        let slots = exchange.state().end(caller).map(|end| end.slots.clone());
        let slots: Vec<_> = slots.ok_or(GrantStatus::BadHandle)?.map(Slot).collect();
        if !slots.is_empty() {
            // If the pages cannot be unmapped, the domain is killed.
            let _ = self.grants.change(caller, |space| {
                let unmapped = space.unmap(&slots);
                let gone = unmapped.and_then(|()| space.remove_memory(exchange.handle.memory()));
                gone.map_err(SpaceError::fatal)
            });
        }
        self.release_end(&exchange, caller);
        Ok(())
    }

    /// Releases the ends of a dead domain, whose process has exited.
    pub(crate) fn tear_down(&self, id: DomId) {
        let all: Vec<_> = self.lock().values().cloned().collect();
        for exchange in all {
            let _op = exchange.op();
            self.release_end(&exchange, id);
        }
    }

    /// Releases an end, whose address space no longer contains pages of the exchange. Removes the
    /// exchange if neither end uses it. The caller holds `op`.
    fn release_end(&self, exchange: &Exchange, of: DomId) {
        let (slots, is_unused) = {
            let mut state = exchange.state();
            let Some(end) = state.end(of) else { return };
            end.is_released = true;
            let slots = std::mem::take(&mut end.slots);
            (
                slots,
                state.granter.is_released && state.user.slots.is_empty(),
            )
        };
        self.grants.lock().unreserve(of, from_ref(&slots));
        if is_unused {
            self.lock().remove(&exchange.handle);
        }
    }

    /// Returns the number of pages that each domain has in exchanges, and the number of pages that
    /// belong to neither end or to both ends.
    pub(crate) fn audit(&self) -> (BTreeMap<DomId, u32>, u64) {
        let all: Vec<_> = self.lock().values().cloned().collect();
        let (mut owned, mut differences) = (BTreeMap::new(), 0);
        for exchange in all {
            let (ends, strays) = exchange.audit();
            for (id, pages) in ends {
                *owned.entry(id).or_default() += pages;
            }
            differences += strays;
        }
        (owned, differences)
    }
}
