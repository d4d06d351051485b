//! `GNTTABOP_map_grant_ref` and `GNTTABOP_unmap_grant_ref`: maps granted pages in a window, and
//! unmaps them.

use crate::entry::{PinPurpose, PinnedGrant};
use crate::usage::{Locked, UsageTables, single_slot};
use abi::classic::{MapOp, UnmapOp};
use abi::{DomId, GrantStatus, Slot};
use monitor::grant::GrantAccounts;
use monitor::space::{AddressSpace, PageMap, SpaceError};
use std::collections::BTreeMap;

/// A granter's memory in the caller's address space.
#[derive(Debug, Default)]
struct GranterMemory {
    /// Number of the granter's pages in the window.
    pages: u32,
    /// Whether the granter is dead. If so, the address space drops the granter's memory when the
    /// last page is unmapped.
    is_dead: bool,
}

/// Maps and unmaps pages for one caller, in the caller's worker. It reuses its buffers.
#[derive(Debug)]
pub(crate) struct Mapper {
    caller: DomId,
    /// Granters whose memory is in the address space.
    granters: BTreeMap<DomId, GranterMemory>,
    /// Index, slot and pin of each operation of the current batch; empty between batches.
    pinned: Vec<(usize, Slot, PinnedGrant)>,
    maps: Vec<PageMap>,
    slots: Vec<Slot>,
}

impl Mapper {
    /// Creates a mapper without mappings.
    pub(crate) fn new(caller: DomId) -> Self {
        Self {
            caller,
            granters: BTreeMap::new(),
            pinned: Vec::new(),
            maps: Vec::new(),
            slots: Vec::new(),
        }
    }

    /// Maps the pages of a batch, and stores one status per operation in `status`. An invalid
    /// operation does not affect the others. If the address space cannot be changed, no page is
    /// mapped, and all valid operations have the status [`GrantStatus::NoSpace`].
    ///
    /// # Errors
    /// Returns [`SpaceError::Lost`]: the domain must then be killed and torn down, which releases
    /// the pins.
    pub(crate) fn map(
        &mut self,
        tables: UsageTables<'_>,
        space: &mut dyn AddressSpace,
        ops: &[MapOp],
        status: &mut Vec<GrantStatus>,
    ) -> Result<(), SpaceError> {
        status.clear();
        status.resize(ops.len(), GrantStatus::GeneralError);
        {
            let mut locked = tables.lock();
            for (at, op) in ops.iter().enumerate() {
                match reserve(&mut locked, self.caller, op) {
                    Ok(pin) => self.pinned.push((at, op.slot, pin)),
                    Err(why) => {
                        if let Some(status) = status.get_mut(at) {
                            *status = why;
                        }
                    }
                }
            }
        }
        let done = match self.map_pinned(tables, space) {
            Err(lost @ SpaceError::Lost(_)) => return Err(lost),
            Err(SpaceError::Refused(_)) => false,
            Ok(()) => true,
        };
        let mut locked = tables.lock();
        for (at, slot, pin) in self.pinned.drain(..) {
            if let Some(status) = status.get_mut(at) {
                *status = if done {
                    GrantStatus::Okay
                } else {
                    GrantStatus::NoSpace
                };
            }
            if done {
                if let Some(part) = locked.part(self.caller) {
                    part.pages.map(slot, pin);
                }
                if let Some(granters) = self.granters.get_mut(&pin.granter) {
                    granters.pages += 1;
                }
            } else {
                locked.free(self.caller, slot);
                locked.unpin(pin, PinPurpose::Map);
            }
        }
        Ok(())
    }

    /// Maps the pinned pages of the batch in the window. Adds the memories of new granters to the
    /// address space first.
    fn map_pinned(
        &mut self,
        tables: UsageTables<'_>,
        space: &mut dyn AddressSpace,
    ) -> Result<(), SpaceError> {
        self.maps.clear();
        if self.pinned.is_empty() {
            return Ok(());
        }
        for at in 0..self.pinned.len() {
            let Some(&(_, slot, pin)) = self.pinned.get(at) else {
                break;
            };
            self.add_granter(tables, space, pin.granter)?;
            self.maps.push(PageMap {
                slot,
                memory: u32::from(pin.granter.0),
                frame: pin.frame,
                writable: pin.write,
            });
        }
        space.map(&self.maps)
    }

    /// Adds a granter's memory to the address space, unless the address space already has it.
    fn add_granter(
        &mut self,
        UsageTables { grants, .. }: UsageTables<'_>,
        space: &mut dyn AddressSpace,
        granter: DomId,
    ) -> Result<(), SpaceError> {
        if self.granters.contains_key(&granter) {
            return Ok(());
        }
        let memory = grants
            .lock()
            .hold_memory(granter)
            .ok_or_else(|| SpaceError::Refused("the granter has no memory".into()))?;
        let (rw, ro) = memory.frames_fds();
        let added = space.add_memory(u32::from(granter.0), rw, ro);
        match added {
            Ok(()) => {
                self.granters.insert(granter, GranterMemory::default());
                Ok(())
            }
            Err(why) => {
                grants.lock().release_memory(granter);
                Err(why)
            }
        }
    }

    /// Unmaps the pages of a batch, and stores one status per operation in `status`. When this
    /// function returns, no access through an unmapped slot is possible.
    ///
    /// # Errors
    /// On any error, the domain must be killed and torn down, which releases the pins.
    pub(crate) fn unmap(
        &mut self,
        tables: UsageTables<'_>,
        space: &mut dyn AddressSpace,
        ops: &[UnmapOp],
        status: &mut Vec<GrantStatus>,
    ) -> Result<(), SpaceError> {
        status.clear();
        status.resize(ops.len(), GrantStatus::GeneralError);
        self.slots.clear();
        {
            let mut locked = tables.lock();
            for (at, op) in ops.iter().enumerate() {
                let part = locked.part(self.caller);
                if let Some(pin) = part.and_then(|part| part.pages.begin_unmap(op.slot)) {
                    self.pinned.push((at, op.slot, pin));
                    self.slots.push(op.slot);
                } else if let Some(status) = status.get_mut(at) {
                    *status = GrantStatus::BadHandle;
                }
            }
        }
        if self.slots.is_empty() {
            return Ok(());
        }
        space.unmap(&self.slots)?;
        {
            let mut locked = tables.lock();
            for (at, slot, pin) in self.pinned.drain(..) {
                locked.free(self.caller, slot);
                locked.unpin(pin, PinPurpose::Map);
                if let Some(granters) = self.granters.get_mut(&pin.granter) {
                    granters.pages = granters.pages.saturating_sub(1);
                }
                if let Some(status) = status.get_mut(at) {
                    *status = GrantStatus::Okay;
                }
            }
        }
        self.forget_dead_granters(tables.grants, space)
    }

    /// Handles the death of a granter. Removes its memory from this address space as soon as none
    /// of its pages is mapped.
    ///
    /// # Errors
    /// See [`Mapper::unmap`].
    pub(crate) fn granter_died(
        &mut self,
        grants: &GrantAccounts,
        space: &mut dyn AddressSpace,
        granter: DomId,
    ) -> Result<(), SpaceError> {
        if let Some(granters) = self.granters.get_mut(&granter) {
            granters.is_dead = true;
        }
        self.forget_dead_granters(grants, space)
    }

    fn forget_dead_granters(
        &mut self,
        grants: &GrantAccounts,
        space: &mut dyn AddressSpace,
    ) -> Result<(), SpaceError> {
        while let Some(granter) = self
            .granters
            .iter()
            .find_map(|(&id, granters)| (granters.is_dead && granters.pages == 0).then_some(id))
        {
            space.remove_memory(u32::from(granter.0))?;
            self.granters.remove(&granter);
            grants.lock().release_memory(granter);
        }
        Ok(())
    }

    /// Ends all mappings of the caller in steps, and then its usage. The caller's process and agent
    /// have exited.
    pub(crate) fn tear_down(&mut self, tables: UsageTables<'_>) {
        /// Number of slots released while the lock is held.
        const BUDGET: u32 = 512;
        let mut from = Some(0);
        while let Some(at) = from {
            from = tables.lock().release(self.caller, at, BUDGET);
        }
        for (granter, _) in std::mem::take(&mut self.granters) {
            tables.grants.lock().release_memory(granter);
        }
        tables.lock().clear(self.caller);
    }
}

/// Checks a map operation, pins the page, and reserves the slot.
fn reserve(locked: &mut Locked<'_>, caller: DomId, op: &MapOp) -> Result<PinnedGrant, GrantStatus> {
    let account = locked.accounts.account(caller);
    let account = account.ok_or(GrantStatus::BadDomain)?;
    if !account.window.is_free(&single_slot(op.slot)) {
        return Err(GrantStatus::BadSlot);
    }
    let pin = locked.pin(caller, op.domain, op.gref, !op.readonly, PinPurpose::Map)?;
    locked.take(caller, op.slot, pin)?;
    Ok(pin)
}
