//! A user's device, which may access the pages of a table that are granted for I/O.
//!
//! The user names the device, and slots in the device's window, once. From then on the device's
//! mappings follow the table: a page is mapped when it is granted for I/O, and unmapped when it is
//! revoked. The device counts no uses. While it may access a page, the user counts one use on its
//! behalf.

use super::device_pages::DevicePages;
use super::entries::{CurrentGrant, pieces_max};
use super::registry::CountedTables;
use super::table::GrantTableState;
use crate::grant::window::WindowSlot;
use crate::space::{SpaceError, map_into};
use abi::hypercall::ShareOp;
use abi::{DomId, GrantStatus};
use std::ops::Range;

impl GrantTableState {
    /// Returns whether a domain is the device of the table.
    pub(super) fn is_shared_with(&self, id: DomId) -> bool {
        let state = self.state();
        state
            .shared
            .as_ref()
            .is_some_and(|shared| shared.device == id)
    }
}

impl CountedTables {
    /// Maps the pages of a table that are granted for I/O, now or later, into the window of
    /// `device`. A repeated call has no effect.
    ///
    /// # Errors
    /// Returns `BadHandle` if the caller has not bound this table, the table has another device, or
    /// the granter has ended it. Returns `BadDomain` if the device is the granter, or one of the
    /// two is dead. Returns `BadSlot` if a slot of the device's window does not exist or is not
    /// free. Returns `NoSpace` if the table's pages may need more mappings than the device can
    /// have, or the device's address space rejects the mappings.
    pub fn share(&self, user: DomId, device: DomId, op: &ShareOp) -> Result<(), GrantStatus> {
        let table = self.table(op.table).filter(|table| table.user == user);
        let table = table.ok_or(GrantStatus::BadHandle)?;
        // The driver domain also grants a table to its device. Without this check, that device
        // could name the driver domain here, and so take slots of its window.
        if device == table.granter {
            return Err(GrantStatus::BadDomain);
        }
        let _op = table.op();
        {
            let state = table.state();
            match &state.shared {
                Some(shared) if shared.device == device && shared.slots.start == op.first.0 => {
                    return Ok(());
                }
                None if state.bound.is_some() && !state.granter_done => {}
                _ => return Err(GrantStatus::BadHandle),
            }
        }
        let end = op.first.0.checked_add(table.entries);
        let slots = op.first.0..end.ok_or(GrantStatus::BadSlot)?;
        self.reserve_for_device(&table, device, &slots)?;
        let for_io: Vec<_> = {
            let state = table.state();
            let granted = state.entries.granted();
            let granted = granted.filter(|(.., granted)| granted.io);
            granted
                .map(|(index, _, granted)| (index, granted))
                .collect()
        };
        let page =
            |&(index, granted): &(u32, CurrentGrant)| table.page(slots.start, index, granted);
        let maps: Vec<_> = for_io.iter().map(page).collect();
        let frames = table.frames_memory();
        let mapped = self.grants.change(device, |space| {
            map_into(space, frames, table.memory.frames_fds(), &maps)
        });
        if mapped.is_err() {
            self.unreserve_for_device(&table, device, slots);
            return Err(GrantStatus::NoSpace);
        }
        table.state().shared = Some(DevicePages {
            device,
            slots,
            mapped: for_io.into_iter().map(|(index, _)| index).collect(),
        });
        Ok(())
    }

    /// Maps newly granted pages into the window of the table's device. Kills the device if that
    /// fails. The caller holds `op`.
    pub(super) fn map_for_device(&self, table: &GrantTableState, pages: &[(u32, CurrentGrant)]) {
        let (device, maps): (_, Vec<_>) = {
            let mut state = table.state();
            let Some(shared) = state.shared.as_mut().filter(|_| !pages.is_empty()) else {
                return;
            };
            shared.mapped.extend(pages.iter().map(|(index, _)| index));
            let first = shared.slots.start;
            let page = |&(index, granted): &(u32, CurrentGrant)| table.page(first, index, granted);
            (shared.device, pages.iter().map(page).collect())
        };
        let _ = self
            .grants
            .change(device, |space| space.map(&maps).map_err(SpaceError::fatal));
    }

    /// Unmaps pages from the window of the table's device. Kills the device if that fails. The
    /// caller holds `op`.
    pub(super) fn unmap_for_device(
        &self,
        table: &GrantTableState,
        indices: impl Iterator<Item = u32>,
    ) {
        let (device, slots): (_, Vec<_>) = {
            let mut state = table.state();
            let Some(shared) = &mut state.shared else {
                return;
            };
            let slots = indices.filter_map(|index| shared.remove(index)).collect();
            (shared.device, slots)
        };
        if !slots.is_empty() {
            let _ = self.grants.change(device, |space| {
                space.unmap(&slots).map_err(SpaceError::fatal)
            });
        }
    }

    /// Removes all pages and the granter's memory from the address space of the table's device. The
    /// caller holds `op`.
    pub(super) fn end_share(&self, table: &GrantTableState) {
        let Some(shared) = table.state().shared.take() else {
            return;
        };
        let slots = shared.mapped_slots();
        // If this fails, the device has been killed.
        let _ = self.grants.change(shared.device, |space| {
            space.unmap(&slots).map_err(SpaceError::fatal)?;
            let frames = table.frames_memory();
            space.remove_memory(frames).map_err(SpaceError::fatal)
        });
        self.unreserve_for_device(table, shared.device, shared.slots);
    }

    /// Reserves slots of a device's window, and counts the device as a holder of the granter's
    /// memory.
    fn reserve_for_device(
        &self,
        table: &GrantTableState,
        device: DomId,
        slots: &Range<u32>,
    ) -> Result<(), GrantStatus> {
        let mut accounts = self.grants.lock();
        let account = accounts.alive(device).ok_or(GrantStatus::BadDomain)?;
        let window_slots = account.window.slot_count();
        if accounts.alive(table.granter).is_none() {
            return Err(GrantStatus::BadDomain);
        }
        // In the worst case, each page takes a separate mapping.
        if pieces_max(table.entries, window_slots, self.mappings) < table.entries {
            return Err(GrantStatus::NoSpace);
        }
        let contents = WindowSlot::Table(table.handle);
        if !accounts.reserve(device, contents, std::slice::from_ref(slots)) {
            return Err(GrantStatus::BadSlot);
        }
        let held = accounts.hold_memory(table.granter);
        held.map(drop).ok_or(GrantStatus::BadDomain)
    }

    fn unreserve_for_device(&self, table: &GrantTableState, device: DomId, slots: Range<u32>) {
        let mut accounts = self.grants.lock();
        accounts.unreserve(device, &[slots]);
        accounts.release_memory(table.granter);
    }
}
