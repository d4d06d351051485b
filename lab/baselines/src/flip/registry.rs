//! All exchanges: how one is made by its granter, bound by its user, ended by either, and cleared
//! away when an end is dead.

use super::exchange::{Exchange, ExchangeState};
use abi::hypercall::Bind;
use abi::{ConnId, DomId, GrantStatus, Handle, Slot};
use monitor::grant::{Grants, WindowSlot};
use monitor::space::{SpaceError, enter};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::slice::from_ref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Exchanges for one connection that may exist at a time: the one before may have its user still.
const EXCHANGES_PER_CONNECTION: usize = 2;

/// All exchanges.
#[derive(Debug)]
pub(crate) struct Exchanges {
    by_handle: Mutex<BTreeMap<Handle, Arc<Exchange>>>,
    pub(crate) grants: Arc<Grants>,
}

impl Exchanges {
    /// No exchanges, between domains with these accounts.
    pub(crate) fn new(grants: Arc<Grants>) -> Self {
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

    /// The exchange of a handle.
    pub(crate) fn exchange(&self, handle: Handle) -> Option<Arc<Exchange>> {
        self.lock().get(&handle).cloned()
    }

    /// Whether there is such an exchange.
    pub(crate) fn knows(&self, handle: Handle) -> bool {
        self.lock().contains_key(&handle)
    }

    /// Whether an exchange has a domain as an end.
    pub(crate) fn names(&self, id: DomId) -> bool {
        let all: Vec<_> = self.lock().values().cloned().collect();
        all.iter().any(|exchange| {
            let state = exchange.state();
            state.granter.domain == id || state.user.domain == id
        })
    }

    /// Whether a domain has made an exchange for this connection of its own.
    pub(crate) fn is_for(&self, granter: DomId, conn: ConnId) -> bool {
        let exchanges = self.lock();
        let mut all = exchanges.values();
        all.any(|exchange| exchange.granter == granter && exchange.conn == conn)
    }

    /// The granter's half of an exchange of `count` pages: they enter its window from slot `first`
    /// on.
    ///
    /// # Errors
    /// `BadDomain`: an end is dead. `BadSlot`: a slot is not there or not free. `NoSpace`: too many
    /// exchanges for this connection, no memory, or the address space refuses.
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

    /// The user's half: its pages enter its window.
    ///
    /// # Errors
    /// `BadHandle`: no such exchange for this domain, or it has been bound. `BadSlot`: a slot is
    /// not there or not free. `NoSpace`: the address space refuses.
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

    /// Lets an end have its pages, from slot `first` on.
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

    /// An end has no use for an exchange any more, and gives its pages up.
    ///
    /// # Errors
    /// `BadHandle`: no such exchange of this domain.
    pub(crate) fn end(&self, caller: DomId, handle: Handle) -> Result<(), GrantStatus> {
        let exchange = self.exchange(handle).ok_or(GrantStatus::BadHandle)?;
        let _op = exchange.op();
        let slots = exchange.state().end(caller).map(|end| end.slots.clone());
        let slots: Vec<_> = slots.ok_or(GrantStatus::BadHandle)?.map(Slot).collect();
        if !slots.is_empty() {
            // A domain whose pages cannot be taken away is dead afterwards.
            let _ = self.grants.change(caller, |space| {
                let unmapped = space.unmap(&slots);
                let gone = unmapped.and_then(|()| space.remove_memory(exchange.handle.memory()));
                gone.map_err(SpaceError::fatal)
            });
        }
        self.end_is_gone(&exchange, caller);
        Ok(())
    }

    /// A domain is dead and its process is gone: its part in every exchange ends.
    pub(crate) fn tear_down(&self, id: DomId) {
        let all: Vec<_> = self.lock().values().cloned().collect();
        for exchange in all {
            let _op = exchange.op();
            self.end_is_gone(&exchange, id);
        }
    }

    /// Nothing of the exchange is in this end's address space any more; `op` is held.
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

    /// Pages that each domain has by exchanges, and how many belong to no end or to both.
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
