//! Lifecycle of a table: its granter creates it, its user binds it, each ends its half, and the
//! monitor ends the half of a domain that dies.

use super::device_pages::DevicePages;
use super::entries::{CurrentGrant, pieces_max};
use super::registry::CountedTables;
use super::table::{GrantTableState, UserSlots};
use crate::grant::window::WindowSlot;
use crate::space::{AddressSpace, SpaceError, map_into};
use abi::counted::{ENTRIES_MAX, Translation, table_slots};
use abi::hypercall::BindOp;
use abi::{ConnId, DomId, GrantStatus, Handle, Slot};
use std::os::fd::AsFd;
use std::sync::Arc;

/// Maximum number of tables per connection: the current one, and the previous one, which the user
/// may still hold.
const TABLES_PER_CONNECTION: usize = 2;

impl CountedTables {
    /// Creates the granter's half of a table for its connection `conn`, whose other end is `user`.
    ///
    /// # Errors
    /// Returns `BadDomain` if an end is dead. Returns `NoSpace` for more entries than the granter's
    /// grant table has, or too many tables for this connection.
    pub fn create_table(
        &self,
        (granter, conn): (DomId, ConnId),
        user: DomId,
        entries: u32,
    ) -> Result<Handle, GrantStatus> {
        let (memory, window_slots) = {
            let accounts = self.grants.lock();
            let user = accounts.alive(user).ok_or(GrantStatus::BadDomain)?;
            let granter = accounts.alive(granter).ok_or(GrantStatus::BadDomain)?;
            (Arc::clone(&granter.memory), user.window.slot_count())
        };
        if entries == 0 || entries > memory.grant_entries.min(ENTRIES_MAX) {
            return Err(GrantStatus::NoSpace);
        }
        let handle = {
            let registry = self.registry();
            let same = |t: &&Arc<GrantTableState>| t.granter == granter && t.conn == conn;
            if registry.tables.values().filter(same).count() >= TABLES_PER_CONNECTION {
                return Err(GrantStatus::NoSpace);
            }
            self.grants.next_handle()?
        };
        let slots = entries + table_slots(entries);
        let pieces_max = pieces_max(slots, window_slots, self.mappings);
        let size = (entries, pieces_max);
        let table = GrantTableState::create(handle, (granter, conn), user, size, memory)
            .map_err(|_| GrantStatus::NoSpace)?;
        self.registry().tables.insert(handle, Arc::new(table));
        Ok(handle)
    }

    /// Binds the user's half: maps the table's pages and its sub-tables into the user's window.
    ///
    /// # Errors
    /// Returns `BadHandle` if the domain is not the user of this table, or the table is already
    /// bound. Returns `BadSlot` if a slot does not exist or is not free. Returns `NoSpace` if the
    /// address space rejects the mapping.
    pub fn bind(&self, user: DomId, op: &BindOp) -> Result<(), GrantStatus> {
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
        let bound = UserSlots {
            first: op.first.0,
            tables: op.tables.0,
        };
        self.reserve(&table, bound)?;
        let mut maps: Vec<_> = table.own_pages(bound).collect();
        for (index, _, granted) in table.state().entries.granted() {
            maps.push(table.page(bound.first, index, granted));
        }
        let (own, frames) = (table.own_memory(), table.frames_memory());
        let (rw, ro) = (table.region.fd(), table.region_readonly.as_fd());
        let done = self.grants.change(user, |space| {
            space.add_memory(own, rw, ro)?;
            let mapped = map_into(space, frames, table.memory.frames_fds(), &maps);
            if let Err(SpaceError::Refused(_)) = mapped {
                space.remove_memory(own)?;
            }
            mapped
        });
        if done.is_err() {
            self.unreserve(&table, bound, true);
            return Err(GrantStatus::NoSpace);
        }
        table.state().bound = Some(bound);
        Ok(())
    }

    /// Ends the caller's half of a table. If the caller is the granter, revokes all grants by
    /// force; if it is the user, unmaps the pages.
    ///
    /// # Errors
    /// Returns `BadHandle` if the table does not exist, or the caller has already ended its half or
    /// never had one.
    pub fn end_table(&self, caller: DomId, handle: Handle) -> Result<(), GrantStatus> {
        let table = self.table(handle).ok_or(GrantStatus::BadHandle)?;
        let _op = table.op();
        if table.granter == caller && !table.state().granter_done {
            self.end_granter_half(&table);
        } else if table.user == caller && !table.state().user_done {
            self.end_user_half(&table);
        } else {
            return Err(GrantStatus::BadHandle);
        }
        Ok(())
    }

    /// Returns the number of times that the end of a table by its granter interrupts a living user.
    #[must_use]
    pub fn cost_of_end(&self, granter: DomId, handle: Handle) -> u32 {
        let table = self.table(handle);
        let table = table.filter(|t| t.granter == granter && self.is_mapped(t));
        table.map_or(0, |table| {
            let state = table.state();
            let of_device = state.shared.as_ref().map_or(0, DevicePages::pages);
            // An empty table counts as one piece, but its end interrupts no processor.
            match state.entries.granted().next() {
                Some(_) => state.entries.pieces().saturating_add(of_device),
                None => 0,
            }
        })
    }

    /// Ends a dead domain's part in every table. Its process must have exited.
    pub fn tear_down(&self, id: DomId) {
        let tables: Vec<_> = {
            let mut registry = self.registry();
            registry.quarantines.remove(&id);
            registry.tables.values().cloned().collect()
        };
        for table in tables {
            let _op = table.op();
            if table.is_shared_with(id) {
                self.end_share(&table);
            }
            if table.granter == id && !table.state().granter_done {
                self.end_granter_half(&table);
            } else if table.user == id {
                self.finish_user_half(&table);
            }
        }
    }

    /// Ends the granter's half of a table. The caller holds `op`.
    fn end_granter_half(&self, table: &Arc<GrantTableState>) {
        self.revoke_all(table);
        self.finish_granter_half(table);
    }

    /// Marks the granter's half as ended, after all its grants were revoked. The caller holds `op`.
    pub(super) fn finish_granter_half(&self, table: &Arc<GrantTableState>) {
        self.end_share(table);
        if table.state().bound.is_some() {
            // The last page is unmapped, so remove the granter's memory, even if the user keeps the
            // table.
            let frames = table.frames_memory();
            let closed = self.grants.change(table.user, |space| {
                space.remove_memory(frames).map_err(SpaceError::fatal)
            });
            if closed.is_ok() {
                self.grants.lock().release_memory(table.granter);
            } else {
                self.finish_user_half(table);
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

    /// Ends the user's half of a table. The caller holds `op`.
    fn end_user_half(&self, table: &Arc<GrantTableState>) {
        let Some(bound) = table.state().bound else {
            self.finish_user_half(table);
            return;
        };
        let mut slots: Vec<Slot> = table.own_pages(bound).map(|page| page.slot).collect();
        for (index, ..) in table.state().entries.granted() {
            slots.push(Slot(bound.first + index));
            table.publish(index, Translation::INVALID);
        }
        // If the pages cannot be unmapped, the user is killed.
        let granter_done = table.state().granter_done;
        let remove = |space: &mut dyn AddressSpace| {
            space.unmap(&slots)?;
            if !granter_done {
                space.remove_memory(table.frames_memory())?;
            }
            space.remove_memory(table.own_memory())
        };
        let _ = self
            .grants
            .change(table.user, |space| remove(space).map_err(SpaceError::fatal));
        self.finish_user_half(table);
    }

    /// Marks the user's half as ended. The table is no longer in the user's address space, or that
    /// address space no longer exists. The caller holds `op`.
    pub(super) fn finish_user_half(&self, table: &Arc<GrantTableState>) {
        self.end_share(table);
        let (left, bound, over) = {
            let mut state = table.state();
            let left = state.entries.revoke_all();
            state.user_done = true;
            (left, state.bound.take(), state.granter_done)
        };
        // A device may still have pinned pages of these grants.
        for CurrentGrant { frame, .. } in left {
            if self.pins.release(table.granter, frame) {
                self.exchange_frame(table, frame);
            }
        }
        {
            let mut registry = self.registry();
            if let Some(quarantine) = registry.quarantines.get_mut(&table.user) {
                quarantine.forget(table.handle);
            }
        }
        if let Some(bound) = bound {
            // The end of the granter's half has already released the granter's memory.
            self.unreserve(table, bound, !over);
        }
        if over {
            self.forget(table);
        }
    }

    /// Returns whether a table is bound by a user that is not known to be dead.
    pub(super) fn is_mapped(&self, table: &GrantTableState) -> bool {
        self.grants.lock().alive(table.user).is_some() && table.state().bound.is_some()
    }

    /// Reserves the slots that a table needs in the user's window, and counts the user as a holder
    /// of the granter's memory.
    fn reserve(&self, table: &GrantTableState, bound: UserSlots) -> Result<(), GrantStatus> {
        let mut accounts = self.grants.lock();
        let ranges = ranges(table, bound).ok_or(GrantStatus::BadSlot)?;
        if accounts.alive(table.user).is_none() || accounts.alive(table.granter).is_none() {
            return Err(GrantStatus::BadDomain);
        }
        if !accounts.reserve(table.user, WindowSlot::Table(table.handle), &ranges) {
            return Err(GrantStatus::BadSlot);
        }
        accounts
            .hold_memory(table.granter)
            .ok_or(GrantStatus::BadDomain)?;
        Ok(())
    }

    fn unreserve(&self, table: &GrantTableState, bound: UserSlots, release: bool) {
        let mut accounts = self.grants.lock();
        accounts.unreserve(table.user, &ranges(table, bound).unwrap_or_default());
        if release {
            accounts.release_memory(table.granter);
        }
    }
}

/// Returns the slots of a table's pages and of its sub-tables.
fn ranges(table: &GrantTableState, bound: UserSlots) -> Option<[std::ops::Range<u32>; 2]> {
    let range = |from: u32, slots: u32| Some(from..from.checked_add(slots)?);
    Some([
        range(bound.first, table.entries)?,
        range(bound.tables, table_slots(table.entries))?,
    ])
}
