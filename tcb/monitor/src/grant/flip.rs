//! Pages that change hands: `GNTTABOP_transfer`, the page flipping of Xen 2.
//!
//! ```text
//!   an exchange: one memory of the monitor's, of which n pages are the granter's and n the user's
//!
//!   granter's window   first … first + n − 1 ┐ each slot shows one page,
//!   user's window      first … first + n − 1 ┘ each page is shown by one slot
//!
//!   a transfer   a slot of the user's and one of the granter's: what they show changes places,
//!                and what the user gets is zero
//! ```
//!
//! The granter says which of its slots accepts a page by an entry of its classic table, which is good
//! for one transfer. Between two transfers the kernel keeps either end from the other's pages; both
//! ends' agents are at work in one. An exchange belongs to one connection, so a page never gets from
//! guest to guest, and what is left of a dead end goes back to the kernel.
//!
//! Locks are those of the new mechanism, with which exchanges share handles: an exchange's `op` is
//! held while agents work, its `state` for bookkeeping alone.

use super::Grants;
use super::new::NewGrants;
use super::table::{Tables, WindowSlot, commit};
use crate::space::{PageMap, SpaceError, enter};
use abi::hypercall::{Bind, Transfer};
use abi::{ConnId, DomId, GrantEntry, GrantStatus, Handle, PAGE, Slot};
use shmem::Region;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::slice::from_ref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Exchanges for one connection that may exist at a time: the one before may have its user still.
const EXCHANGES_PER_CONNECTION: usize = 2;

/// One of the two.
#[derive(Debug)]
struct End {
    domain: DomId,
    /// Its slots; none: it has not got its pages yet, or has given them up.
    slots: Range<u32>,
    /// It has no use for them any more.
    done: bool,
    /// The pages that are its own: what each slot shows.
    pages: Vec<u32>,
}

impl End {
    fn new(domain: DomId, pages: Range<u32>) -> Self {
        Self {
            domain,
            slots: 0..0,
            done: false,
            pages: pages.collect(),
        }
    }

    fn page(&mut self, slot: Slot) -> Option<&mut u32> {
        let place = slot.0.checked_sub(self.slots.start);
        let place = place.filter(|_| self.slots.contains(&slot.0))?;
        self.pages.get_mut(place as usize)
    }
}

/// A transfer under way.
struct Moving {
    op: usize,
    entry: &'static AtomicU64,
    /// The granter's slot.
    to: Slot,
    /// The user's.
    from: Slot,
}

#[derive(Debug)]
struct State {
    granter: End,
    user: End,
}

impl State {
    /// A domain's end, if it has not done with it.
    fn end(&mut self, of: DomId) -> Option<&mut End> {
        let ends = [&mut self.granter, &mut self.user];
        ends.into_iter().find(|end| end.domain == of && !end.done)
    }
}

/// Pages that change hands, of one connection.
#[derive(Debug)]
pub(super) struct Exchange {
    handle: Handle,
    granter: DomId,
    conn: ConnId,
    count: u32,
    region: Region,
    region_readonly: OwnedFd,
    op: Mutex<()>,
    state: Mutex<State>,
}

impl Exchange {
    fn create(
        handle: Handle,
        (granter, conn): (DomId, ConnId),
        user: DomId,
        count: u32,
    ) -> io::Result<Self> {
        let region = Region::create(&format!("exchange-{handle}"), 2 * count as usize * PAGE)?;
        Ok(Self {
            handle,
            granter,
            conn,
            count,
            region_readonly: region.readonly_fd()?,
            region,
            op: Mutex::default(),
            state: Mutex::new(State {
                granter: End::new(granter, 0..count),
                user: End::new(user, count..2 * count),
            }),
        })
    }

    fn op(&self) -> MutexGuard<'_, ()> {
        self.op.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How an end sees the pages at these of its slots.
    fn maps(&self, end: &mut End, slots: impl Iterator<Item = Slot>) -> Vec<PageMap> {
        let map = |slot| {
            Some(PageMap {
                slot,
                memory: self.handle.memory(),
                frame: *end.page(slot)?,
                writable: true,
            })
        };
        slots.filter_map(map).collect()
    }

    /// Pages that each end has, and how many are nobody's or of several.
    pub(super) fn audit(&self) -> ([(DomId, u32); 2], u64) {
        let state = self.state();
        let owned = [&state.granter, &state.user].map(|end| (end.domain, end.slots.len() as u32));
        let mut pages = [&*state.granter.pages, &state.user.pages].concat();
        pages.sort_unstable();
        pages.dedup();
        (
            owned,
            u64::from(2 * self.count).abs_diff(pages.len() as u64),
        )
    }
}

impl NewGrants {
    /// The granter's half of an exchange of `count` pages: they enter its window from slot `first` on.
    ///
    /// # Errors
    /// `BadDomain`: an end is dead. `BadSlot`: a slot is not there or not free. `NoSpace`: too many
    /// exchanges for this connection, no memory, or the address space refuses.
    pub fn create_exchange(
        &self,
        grants: &Grants,
        (granter, conn): (DomId, ConnId),
        user: DomId,
        (count, first): (u32, Slot),
    ) -> Result<Handle, GrantStatus> {
        {
            let tables = grants.lock();
            tables.alive(user).ok_or(GrantStatus::BadDomain)?;
            let own = tables.alive(granter).ok_or(GrantStatus::BadDomain)?;
            if count == 0 || count as usize > own.window.len() {
                return Err(GrantStatus::BadSlot);
            }
        }
        let exchange = {
            let mut registry = self.registry();
            let same = |e: &&Arc<Exchange>| e.granter == granter && e.conn == conn;
            if registry.exchanges.values().filter(same).count() >= EXCHANGES_PER_CONNECTION {
                return Err(GrantStatus::NoSpace);
            }
            let handle = registry.next_handle()?;
            let made = Exchange::create(handle, (granter, conn), user, count);
            let exchange = Arc::new(made.map_err(|_| GrantStatus::NoSpace)?);
            registry.exchanges.insert(handle, Arc::clone(&exchange));
            exchange
        };
        let _op = exchange.op();
        let shown = self.show(grants, &exchange, granter, first);
        if shown.is_err() {
            self.end_is_gone(grants, &exchange, granter);
        }
        shown.map(|()| exchange.handle)
    }

    /// The user's half; as [`NewGrants::bind`], which comes here.
    pub(super) fn bind_exchange(
        &self,
        grants: &Grants,
        exchange: &Exchange,
        user: DomId,
        op: &Bind,
    ) -> Result<(), GrantStatus> {
        let _op = exchange.op();
        {
            let State { granter, user: own } = &*exchange.state();
            let is_user = own.domain == user && !own.done && own.slots.is_empty();
            let same = granter.domain == op.granter && exchange.count == op.entries;
            if !is_user || !same || granter.done {
                return Err(GrantStatus::BadHandle);
            }
        }
        self.show(grants, exchange, user, op.first)
    }

    /// Lets an end have its pages, from slot `first` on.
    fn show(
        &self,
        grants: &Grants,
        exchange: &Exchange,
        of: DomId,
        first: Slot,
    ) -> Result<(), GrantStatus> {
        let last = first.0.checked_add(exchange.count);
        let slots = first.0..last.ok_or(GrantStatus::BadSlot)?;
        let holds = WindowSlot::Table(exchange.handle);
        if !grants.lock().reserve(of, holds, from_ref(&slots)) {
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
        let done = self.on(of, |space| {
            enter(space, exchange.handle.memory(), fds, &maps)
        });
        if done.is_err() {
            if let Some(end) = exchange.state().end(of) {
                end.slots = 0..0;
            }
            grants.lock().unreserve(of, from_ref(&slots));
        }
        done.map_err(|_| GrantStatus::NoSpace)
    }

    /// Gives pages away and gets as many; one status per operation.
    ///
    /// Statuses: `BadHandle`: no such exchange whose user the caller is, or one end has done with
    /// it. `BadDomain`: the granter is dead, or its agent did not answer: then it is. `BadSlot`: no such
    /// slot of either end's, or one that is in this batch already. `BadRef`: the entry accepts no
    /// page of the caller's. If it is the caller's agent that does not answer, the caller is dead.
    pub fn transfer(&self, grants: &Grants, caller: DomId, ops: &[Transfer]) -> Vec<GrantStatus> {
        let runs = ops.chunk_by(|a, b| a.exchange == b.exchange);
        let statuses = runs.flat_map(|run| {
            let exchange = run.first().and_then(|op| self.flipping(op.exchange));
            let done = exchange.and_then(|e| self.transfer_in(grants, &e, caller, run));
            done.unwrap_or_else(|| vec![GrantStatus::BadHandle; run.len()])
        });
        statuses.collect()
    }

    fn transfer_in(
        &self,
        grants: &Grants,
        exchange: &Exchange,
        caller: DomId,
        ops: &[Transfer],
    ) -> Option<Vec<GrantStatus>> {
        let _op = exchange.op();
        let mut statuses = vec![GrantStatus::BadDomain; ops.len()];
        let mut moving = Vec::with_capacity(ops.len());
        let (maps, _memory) = {
            let tables = grants.lock();
            let state = &mut *exchange.state();
            if state.user.domain != caller || state.user.done || state.granter.done {
                return None;
            }
            for (at, (op, status)) in ops.iter().zip(&mut statuses).enumerate() {
                match begin(&tables, state, &moving, op, at) {
                    Ok(begun) => moving.push(begun),
                    Err(why) => *status = why,
                }
            }
            let State { granter, user } = state;
            let to_granter = exchange.maps(granter, moving.iter().map(|m| m.to));
            let to_user = exchange.maps(user, moving.iter().map(|m| m.from));
            // Kept until its entries are written: the granter may die meanwhile.
            let memory = tables
                .alive(exchange.granter)
                .map(|a| Arc::clone(&a.memory));
            ((to_granter, to_user), memory)
        };
        if !moving.is_empty() {
            let done = self.carry_out(exchange.granter, caller, exchange, maps);
            // Otherwise the granter is dead: whatever the books say, nothing changes hands any more.
            for m in moving.iter().filter(|_| done.is_ok()) {
                // Release: who sees the mark sees the page.
                let mark = u64::from(GrantEntry::COMPLETED);
                m.entry.fetch_or(mark, Ordering::Release);
                if let Some(status) = statuses.get_mut(m.op) {
                    *status = GrantStatus::Okay;
                }
            }
        }
        Some(statuses)
    }

    /// Has both agents work, the granter's first: what is taken from it is zeroed when it cannot write
    /// there any more, and the user sees it afterwards. `op` is held.
    ///
    /// # Errors
    /// The granter is dead, and nothing has changed hands.
    fn carry_out(
        &self,
        granter: DomId,
        user: DomId,
        exchange: &Exchange,
        (to_granter, to_user): (Vec<PageMap>, Vec<PageMap>),
    ) -> Result<(), SpaceError> {
        self.on(granter, |space| space.replace(&to_granter))?;
        let zero = |map: &PageMap| exchange.region.page(map.frame).map(|page| page.fill(0));
        let clean = to_user.iter().all(|map| zero(map) == Some(Ok(())));
        // Whatever becomes of it: a user that cannot be changed is dead afterwards.
        let _ = self.on(user, |space| match clean {
            true => space.replace(&to_user),
            false => Err(SpaceError::Lost("a page could not be zeroed".into())),
        });
        Ok(())
    }

    /// An end has no use for an exchange any more; as [`NewGrants::end_table`], which comes here.
    pub(super) fn end_exchange(
        &self,
        grants: &Grants,
        exchange: &Exchange,
        caller: DomId,
    ) -> Result<(), GrantStatus> {
        let _op = exchange.op();
        let slots = exchange.state().end(caller).map(|end| end.slots.clone());
        let slots: Vec<_> = slots.ok_or(GrantStatus::BadHandle)?.map(Slot).collect();
        if !slots.is_empty() {
            // Whatever becomes of this: one that cannot let go is dead afterwards.
            let _ = self.on(caller, |space| {
                let gone = space.unmap(&slots);
                let gone = gone.and_then(|()| space.remove_memory(exchange.handle.memory()));
                gone.map_err(SpaceError::fatal)
            });
        }
        self.end_is_gone(grants, exchange, caller);
        Ok(())
    }

    /// A domain is dead and its process gone.
    pub(super) fn tear_down_exchanges(&self, grants: &Grants, id: DomId) {
        let all: Vec<_> = self.registry().exchanges.values().cloned().collect();
        for exchange in all {
            let _op = exchange.op();
            self.end_is_gone(grants, &exchange, id);
        }
    }

    /// Nothing of the exchange is in this end's address space any more; `op` is held.
    fn end_is_gone(&self, grants: &Grants, exchange: &Exchange, of: DomId) {
        let (slots, over) = {
            let mut state = exchange.state();
            let Some(end) = state.end(of) else { return };
            end.done = true;
            let slots = std::mem::take(&mut end.slots);
            (slots, state.granter.done && state.user.slots.is_empty())
        };
        grants.lock().unreserve(of, from_ref(&slots));
        if over {
            self.registry().exchanges.remove(&exchange.handle);
        }
    }

    /// The exchange of a handle.
    pub(super) fn flipping(&self, handle: Handle) -> Option<Arc<Exchange>> {
        self.registry().exchanges.get(&handle).cloned()
    }
}

/// Checks a transfer, uses up the entry that accepts it, and notes it in the books.
fn begin(
    tables: &Tables,
    state: &mut State,
    moving: &[Moving],
    op: &Transfer,
    at: usize,
) -> Result<Moving, GrantStatus> {
    let State { granter, user } = state;
    let account = tables.alive(granter.domain).ok_or(GrantStatus::BadDomain)?;
    let entry = account.entry(op.gref.index());
    let entry = entry.filter(|_| op.gref.generation() == 0);
    let entry = entry.ok_or(GrantStatus::BadRef)?;
    // A batch is small enough to be looked through for each of its operations.
    let from = user.domain;
    let own = user.page(op.slot);
    let own = own.filter(|_| moving.iter().all(|m| m.from != op.slot));
    let own = own.ok_or(GrantStatus::BadSlot)?;
    // An entry that names a slot which is not there is used up all the same.
    let to = commit(entry, from)?;
    let theirs = granter.page(to);
    let theirs = theirs.filter(|_| moving.iter().all(|m| m.to != to));
    std::mem::swap(theirs.ok_or(GrantStatus::BadSlot)?, own);
    Ok(Moving {
        op: at,
        entry,
        to,
        from: op.slot,
    })
}
