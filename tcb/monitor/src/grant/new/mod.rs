//! The new grant mechanism: tables that lie with the user of the grants (`abi::ngm`), so that a
//! use takes no hypercall.
//!
//! The granter's worker changes the user's address space, through the user's agent. Locks, in the
//! order in which they are taken: a table's `op` (held while an agent works), the classic tables'
//! lock, the registry, a table's `state`; all but the first for bookkeeping only.
//!
//! A revocation that is forced upon a grant in use puts the entry into *quarantine*: it is not
//! granted again before its count is 0. The quarantine of a user is its *collateral*, and bounded: each
//! entry in it stands for one frame that the granter's was exchanged for. A user whose collateral is used up is
//! killed, for it is given time to let go, and does not.

mod change;
mod table;

use super::Grants;
use super::flip::Exchange;
use super::table::WindowSlot;
use crate::pins::Pins;
use crate::space::{AddressSpace, SpaceError, enter};
use abi::hypercall::Bind;
use abi::ngm::ENTRIES_MAX;
use abi::{ConnId, DomId, GrantStatus, Handle, Slot};
use shmem::uses::EntryWords;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use table::{Bound, Table};

/// How long a user gets to end uses before a full quarantine costs its life.
const PATIENCE: Duration = Duration::from_millis(100);
/// Tables for one connection that may exist at a time: the one before may have its user still.
const TABLES_PER_CONNECTION: usize = 2;

/// An address space as the workers of other domains reach it.
pub type Space = Arc<Mutex<dyn AddressSpace + Send>>;

/// A domain that may use grants.
struct User {
    space: Space,
    collateral: u32,
    /// Entries that were revoked by force while they were in use.
    quarantine: BTreeSet<(Handle, u32)>,
}

#[derive(Default)]
pub(super) struct Registry {
    last: u32,
    tables: BTreeMap<Handle, Arc<Table>>,
    pub(super) exchanges: BTreeMap<Handle, Arc<Exchange>>,
    users: BTreeMap<DomId, User>,
}

impl Registry {
    pub(super) fn next_handle(&mut self) -> Result<Handle, GrantStatus> {
        self.last = self.last.checked_add(1).ok_or(GrantStatus::NoSpace)?;
        Ok(Handle(self.last))
    }
}

/// What has been done with grants of the new mechanism.
#[derive(Debug, Default)]
pub struct NewCounters {
    /// Grants made.
    pub created: AtomicU64,
    /// Grants revoked, forced ones included.
    pub revoked: AtomicU64,
    /// Grants revoked by force while they were in use.
    pub forced: AtomicU64,
}

/// What the audit says about one domain's part in the new mechanism.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewAudit {
    /// Frames of its own that it grants.
    pub granted: BTreeSet<u32>,
    /// Frames of others in its window.
    pub mapped: BTreeSet<(DomId, u32)>,
    /// Collateral of its own that is used.
    pub collateral_used: u32,
    /// Pages of exchanges that are its own.
    pub exchanged: u32,
}

/// All tables of the new mechanism, and all exchanges: whatever has a handle.
pub struct NewGrants {
    registry: Mutex<Registry>,
    patience: Duration,
    /// What devices have pinned.
    pub pins: Pins,
    /// What has been done, by all domains.
    pub counters: NewCounters,
}

impl std::fmt::Debug for NewGrants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewGrants").finish_non_exhaustive()
    }
}

impl Default for NewGrants {
    fn default() -> Self {
        Self::with_patience(PATIENCE)
    }
}

impl NewGrants {
    /// No tables. `patience`: how long a user whose collateral is used up gets to end uses.
    #[must_use]
    pub fn with_patience(patience: Duration) -> Self {
        Self {
            registry: Mutex::default(),
            patience,
            pins: Pins::default(),
            counters: NewCounters::default(),
        }
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A domain has started: others' workers reach its address space by `space`, and
    /// `collateral` frames may be taken from it.
    pub fn join(&self, id: DomId, space: Space, collateral: u32) {
        let quarantine = BTreeSet::new();
        self.registry().users.insert(
            id,
            User {
                space,
                collateral,
                quarantine,
            },
        );
    }

    /// The granter's half of a table for connection `conn` of its own, whose other end is `user`.
    ///
    /// # Errors
    /// `BadDomain`: an end is dead. `NoSpace`: more entries than the granter's own table has, or
    /// too many tables for this connection.
    pub fn create_table(
        &self,
        grants: &Grants,
        (granter, conn): (DomId, ConnId),
        user: DomId,
        entries: u32,
    ) -> Result<Handle, GrantStatus> {
        let memory = {
            let tables = grants.lock();
            tables.alive(user).ok_or(GrantStatus::BadDomain)?;
            let granter = tables.alive(granter).ok_or(GrantStatus::BadDomain)?;
            Arc::clone(&granter.memory)
        };
        if entries == 0 || entries > memory.grant_entries().min(ENTRIES_MAX) {
            return Err(GrantStatus::NoSpace);
        }
        let handle = {
            let mut registry = self.registry();
            let same = |t: &&Arc<Table>| t.granter == granter && t.conn == conn;
            if registry.tables.values().filter(same).count() >= TABLES_PER_CONNECTION {
                return Err(GrantStatus::NoSpace);
            }
            registry.next_handle()?
        };
        let table = Table::create(handle, (granter, conn), user, entries, memory)
            .map_err(|_| GrantStatus::NoSpace)?;
        self.registry().tables.insert(handle, Arc::new(table));
        Ok(handle)
    }

    /// The user's half: the table's pages and its sub-tables enter the user's window.
    ///
    /// # Errors
    /// `BadHandle`: no such table for this domain, or it has been bound. `BadSlot`: a slot is not
    /// there or not free. `NoSpace`: the address space refuses.
    pub fn bind(&self, grants: &Grants, user: DomId, op: &Bind) -> Result<(), GrantStatus> {
        if let Some(exchange) = self.flipping(op.table) {
            return self.bind_exchange(grants, &exchange, user, op);
        }
        let table = self
            .table(op.table)
            .filter(|t| t.user == user && t.granter == op.granter && t.entries == op.entries)
            .ok_or(GrantStatus::BadHandle)?;
        let _op = table.op();
        {
            let state = table.state();
            if state.bound.is_some() || state.user_done || state.granter_done {
                return Err(GrantStatus::BadHandle);
            }
        }
        let bound = Bound {
            first: op.first.0,
            tables: op.tables.0,
        };
        self.reserve(grants, &table, bound)?;
        let mut maps: Vec<_> = table.own_pages(bound).collect();
        for (index, entry) in table.state().entries.iter().enumerate() {
            if let Some(granted) = entry.granted {
                maps.push(table.page(bound, index as u32, granted));
            }
        }
        let (own, frames) = (table.own_memory(), table.frames_memory());
        let (rw, ro) = (table.region.fd(), table.region_readonly.as_fd());
        let done = self.on(user, |space| {
            space.add_memory(own, rw, ro)?;
            let (rw, ro) = (table.memory.frames_fd(), table.memory.frames_readonly_fd());
            let mapped = enter(space, frames, (rw, ro), &maps);
            if let Err(SpaceError::Refused(_)) = mapped {
                space.remove_memory(own)?;
            }
            mapped
        });
        if done.is_err() {
            Self::unreserve(grants, &table, bound, true);
            return Err(GrantStatus::NoSpace);
        }
        table.state().bound = Some(bound);
        Ok(())
    }

    /// One end has no use for a table any more: the granter revokes all its grants by force, the
    /// user gives up its pages.
    ///
    /// # Errors
    /// `BadHandle`: no such table of this domain.
    pub fn end_table(
        &self,
        grants: &Grants,
        caller: DomId,
        handle: Handle,
    ) -> Result<(), GrantStatus> {
        if let Some(exchange) = self.flipping(handle) {
            return self.end_exchange(grants, &exchange, caller);
        }
        let table = self.table(handle).ok_or(GrantStatus::BadHandle)?;
        let _op = table.op();
        if table.granter == caller && !table.state().granter_done {
            self.granter_ends(grants, &table);
        } else if table.user == caller && !table.state().user_done {
            self.user_ends(grants, &table);
        } else {
            return Err(GrantStatus::BadHandle);
        }
        Ok(())
    }

    /// A domain is dead and its process is gone: its part in every table and exchange ends.
    pub fn tear_down(&self, grants: &Grants, id: DomId) {
        self.tear_down_exchanges(grants, id);
        let tables: Vec<_> = {
            let mut registry = self.registry();
            registry.users.remove(&id);
            let part = |t: &&Arc<Table>| t.granter == id || t.user == id;
            registry.tables.values().filter(part).cloned().collect()
        };
        for table in tables {
            let _op = table.op();
            if table.granter == id && !table.state().granter_done {
                self.granter_ends(grants, &table);
            } else if table.user == id {
                self.user_is_gone(grants, &table);
            }
        }
    }

    /// Nothing is granted by it any more; `op` is held.
    fn granter_ends(&self, grants: &Grants, table: &Arc<Table>) {
        self.revoke_all(grants, table);
        if table.state().bound.is_some() {
            // Its memory goes with the last page, whatever the user does with the table.
            let frames = table.frames_memory();
            let closed = self.on(table.user, |space| {
                space.remove_memory(frames).map_err(SpaceError::fatal)
            });
            if closed.is_ok() {
                grants.lock().let_go(table.granter);
            } else {
                self.user_is_gone(grants, table);
            }
        }
        let over = {
            let mut state = table.state();
            state.granter_done = true;
            state.bound.is_none()
        };
        if over {
            self.forget(table);
        }
    }

    /// The user gives up its pages; `op` is held.
    fn user_ends(&self, grants: &Grants, table: &Arc<Table>) {
        let Some(bound) = table.state().bound else {
            self.user_is_gone(grants, table);
            return;
        };
        let mut slots: Vec<Slot> = table.own_pages(bound).map(|page| page.slot).collect();
        for (index, entry) in table.state().entries.iter().enumerate() {
            if entry.granted.is_some() {
                slots.push(Slot(bound.first + index as u32));
            }
            if let Some(words) = table.words(index as u32) {
                words.set_translation(0, Ordering::Release);
            }
        }
        // Whatever becomes of this: a user that cannot let go is dead afterwards.
        let granter_done = table.state().granter_done;
        let give_up = |space: &mut dyn AddressSpace| {
            space.unmap(&slots)?;
            if !granter_done {
                space.remove_memory(table.frames_memory())?;
            }
            space.remove_memory(table.own_memory())
        };
        let _ = self.on(table.user, |space| {
            give_up(space).map_err(SpaceError::fatal)
        });
        self.user_is_gone(grants, table);
    }

    /// Nothing of the table is in the user's address space any more, or there is none; `op` is
    /// held.
    fn user_is_gone(&self, grants: &Grants, table: &Arc<Table>) {
        let (left, bound, over) = {
            let mut state = table.state();
            let left = state
                .entries
                .iter_mut()
                .filter_map(|entry| entry.granted.take());
            let left: Vec<_> = left.map(|granted| granted.frame).collect();
            state.user_done = true;
            (left, state.bound.take(), state.granter_done)
        };
        // A device may have outlived the use that it was for.
        for frame in left {
            if self.pins.release(table.granter, frame)
                && let Err(error) = table.memory.exchange(frame)
            {
                self.destroy(table.user, &format!("a frame cannot be exchanged: {error}"));
            }
        }
        {
            let mut registry = self.registry();
            if let Some(user) = registry.users.get_mut(&table.user) {
                user.quarantine
                    .retain(|(handle, _)| *handle != table.handle);
            }
        }
        if let Some(bound) = bound {
            // A granter that has done with it has its memory back already.
            Self::unreserve(grants, table, bound, !over);
        }
        if over {
            self.forget(table);
        }
    }

    fn forget(&self, table: &Table) {
        self.registry().tables.remove(&table.handle);
    }

    fn table(&self, handle: Handle) -> Option<Arc<Table>> {
        self.registry().tables.get(&handle).cloned()
    }

    /// Takes the slots that a table needs out of the user's window, and a hold of the granter's
    /// memory.
    fn reserve(&self, grants: &Grants, table: &Table, bound: Bound) -> Result<(), GrantStatus> {
        let mut tables = grants.lock();
        let ranges = ranges(table, bound).ok_or(GrantStatus::BadSlot)?;
        if tables.alive(table.user).is_none() || tables.alive(table.granter).is_none() {
            return Err(GrantStatus::BadDomain);
        }
        if !tables.reserve(table.user, WindowSlot::Table(table.handle), &ranges) {
            return Err(GrantStatus::BadSlot);
        }
        tables.hold(table.granter).ok_or(GrantStatus::BadDomain)?;
        Ok(())
    }

    fn unreserve(grants: &Grants, table: &Table, bound: Bound, let_go: bool) {
        let mut tables = grants.lock();
        tables.unreserve(table.user, &ranges(table, bound).unwrap_or_default());
        if let_go {
            tables.let_go(table.granter);
        }
    }

    /// Changes a domain's address space. One that does not let itself be changed is ended, and
    /// its end waited for.
    pub(super) fn on<T>(
        &self,
        user: DomId,
        change: impl FnOnce(&mut dyn AddressSpace) -> Result<T, SpaceError>,
    ) -> Result<T, SpaceError> {
        let space = self
            .registry()
            .users
            .get(&user)
            .map(|u| Arc::clone(&u.space));
        let space = space.ok_or_else(|| SpaceError::Lost("the domain is gone".into()))?;
        let mut space = space.lock().unwrap_or_else(PoisonError::into_inner);
        let done = change(&mut *space);
        if let Err(SpaceError::Lost(why)) = &done {
            space.destroy(why);
        }
        done
    }

    /// Ends a domain, and waits for its end.
    fn destroy(&self, user: DomId, why: &str) {
        let _ = self.on(user, |_| Err::<(), _>(SpaceError::Lost(why.into())));
    }

    /// Every domain's part, for the audit, and how many pages of exchanges are nobody's or of several.
    #[must_use]
    pub fn audit(&self) -> (BTreeMap<DomId, NewAudit>, u64) {
        let mut all: BTreeMap<DomId, NewAudit> = BTreeMap::new();
        let exchanges: Vec<_> = self.registry().exchanges.values().cloned().collect();
        let mut wrong = 0;
        for exchange in exchanges {
            let (owned, strays) = exchange.audit();
            for (id, pages) in owned {
                all.entry(id).or_default().exchanged += pages;
            }
            wrong += strays;
        }
        let tables: Vec<_> = {
            let registry = self.registry();
            for (&id, user) in &registry.users {
                all.entry(id).or_default().collateral_used = user.quarantine.len() as u32;
            }
            registry.tables.values().cloned().collect()
        };
        for table in tables {
            let state = table.state();
            for granted in state.entries.iter().filter_map(|entry| entry.granted) {
                let granter = all.entry(table.granter).or_default();
                granter.granted.insert(granted.frame);
                if state.bound.is_some() {
                    let user = all.entry(table.user).or_default();
                    user.mapped.insert((table.granter, granted.frame));
                }
            }
        }
        (all, wrong)
    }

    /// Whether there is such a table or exchange.
    #[must_use]
    pub fn knows(&self, handle: Handle) -> bool {
        let registry = self.registry();
        registry.tables.contains_key(&handle) || registry.exchanges.contains_key(&handle)
    }
}

/// The slots of a table's pages and of its sub-tables.
fn ranges(table: &Table, bound: Bound) -> Option<[std::ops::Range<u32>; 2]> {
    let range = |from: u32, slots: u32| Some(from..from.checked_add(slots)?);
    Some([
        range(bound.first, table.entries)?,
        range(bound.tables, abi::ngm::table_slots(table.entries))?,
    ])
}
