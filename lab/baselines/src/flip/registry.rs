//! All exchanges. The granter creates an exchange, the user binds it, and either of them ends it.
//! The monitor cleans up after a dead end.

use super::exchange::{Exchange, ExchangeState};
use abi::hypercall::Bind;
use abi::{ConnId, DomId, GrantStatus, Handle, Slot};
use monitor::grant::{GrantAccounts, WindowSlot};
use monitor::space::{SpaceError, enter};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::slice::from_ref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum exchanges per connection. There can be two because the user may still hold the previous
/// one.
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
    pub(crate) fn knows(&self, handle: Handle) -> bool {
        self.lock().contains_key(&handle)
    }

    /// Returns whether a domain is an end of any exchange.
    pub(crate) fn names(&self, id: DomId) -> bool {
        let all: Vec<_> = self.lock().values().cloned().collect();
        all.iter().any(|exchange| {
            let state = exchange.state();
            state.granter.domain == id || state.user.domain == id
        })
    }

    /// Returns whether a domain has created an exchange for this connection.
    pub(crate) fn is_for(&self, granter: DomId, conn: ConnId) -> bool {
        let exchanges = self.lock();
        let mut all = exchanges.values();
        all.any(|exchange| exchange.granter == granter && exchange.conn == conn)
    }

    /// Creates the granter's half of an exchange of `count` pages and maps them in its window
    /// starting at slot `first`.
    ///
    /// # Errors
    /// `BadDomain`: an end is dead. `BadSlot`: a slot does not exist or is not free. `NoSpace`: the
    /// connection has too many exchanges, memory is exhausted, or the mapping failed.
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
            let same = |e: &&Arc<Exchange>| e.granter == granter && e.conn == conn;
            if exchanges.values().filter(same).count() >= EXCHANGES_PER_CONNECTION {
                return Err(GrantStatus::NoSpace);
            }
            let handle = self.grants.next_handle()?;
            let made = Exchange::create(handle, (granter, conn), user, count);
            let exchange = Arc::new(made.map_err(|_| GrantStatus::NoSpace)?);
            exchanges.insert(handle, Arc::clone(&exchange));
            exchange
        };
        let _op = exchange.op();
        let shown = self.show(&exchange, granter, first);
        if shown.is_err() {
            self.end_is_gone(&exchange, granter);
        }
        shown.map(|()| exchange.handle)
    }

    /// Binds the user's half and maps its pages in the user's window.
    ///
    /// # Errors
    /// `BadHandle`: the domain has no such exchange, or it is already bound. `BadSlot`: a slot does
    /// not exist or is not free. `NoSpace`: the mapping failed.
    pub(crate) fn bind(&self, user: DomId, op: &Bind) -> Result<(), GrantStatus> {
        let exchange = self.exchange(op.table).ok_or(GrantStatus::BadHandle)?;
        let _op = exchange.op();
        {
            let ExchangeState { granter, user: own } = &*exchange.state();
            let is_user = own.domain == user && !own.done && own.slots.is_empty();
            let same = granter.domain == op.granter && exchange.count == op.entries;
            if !is_user || !same || granter.done {
                return Err(GrantStatus::BadHandle);
            }
        }
        self.show(&exchange, user, op.first)
    }

    /// Maps an end's pages starting at slot `first`.
    fn show(&self, exchange: &Exchange, of: DomId, first: Slot) -> Result<(), GrantStatus> {
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
        let done = self.grants.change(of, |space| {
            enter(space, exchange.handle.memory(), fds, &maps)
        });
        if done.is_err() {
            if let Some(end) = exchange.state().end(of) {
                end.slots = 0..0;
            }
            self.grants.lock().unreserve(of, from_ref(&slots));
        }
        done.map_err(|_| GrantStatus::NoSpace)
    }

    /// Releases an exchange for one end, and unmaps its pages.
    ///
    /// # Errors
    /// `BadHandle`: the domain has no such exchange.
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
        self.end_is_gone(&exchange, caller);
        Ok(())
    }

    /// Ends a dead domain's part in every exchange. Its process has exited.
    pub(crate) fn tear_down(&self, id: DomId) {
        let all: Vec<_> = self.lock().values().cloned().collect();
        for exchange in all {
            let _op = exchange.op();
            self.end_is_gone(&exchange, id);
        }
    }

    /// Records that this end's address space no longer contains pages of the exchange. The caller
    /// holds `op`.
    fn end_is_gone(&self, exchange: &Exchange, of: DomId) {
        let (slots, over) = {
            let mut state = exchange.state();
            let Some(end) = state.end(of) else { return };
            end.done = true;
            let slots = std::mem::take(&mut end.slots);
            (slots, state.granter.done && state.user.slots.is_empty())
        };
        self.grants.lock().unreserve(of, from_ref(&slots));
        if over {
            self.lock().remove(&exchange.handle);
        }
    }

    /// Returns the number of pages that each domain has through exchanges, and the number of pages
    /// that belong to neither end or to both.
    pub(crate) fn audit(&self) -> (BTreeMap<DomId, u32>, u64) {
        let all: Vec<_> = self.lock().values().cloned().collect();
        let (mut owned, mut wrong) = (BTreeMap::new(), 0);
        for exchange in all {
            let (ends, strays) = exchange.audit();
            for (id, pages) in ends {
                *owned.entry(id).or_default() += pages;
            }
            wrong += strays;
        }
        (owned, wrong)
    }
}
