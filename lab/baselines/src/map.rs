//! `GNTTABOP_map_grant_ref` and `GNTTABOP_unmap_grant_ref`: maps granted pages in a window and
//! unmaps them.

use crate::entry::{PinPurpose, PinnedGrant};
use crate::usage::{Locked, UsageTables, only};
use abi::classic::{MapOp, UnmapOp};
use abi::{DomId, GrantStatus, Slot};
use monitor::grant::GrantAccounts;
use monitor::space::{AddressSpace, PageMap, SpaceError};
use std::collections::BTreeMap;

/// A granter's memory in an address space.
#[derive(Debug, Default)]
struct GranterMemory {
    /// Its pages in the window.
    pages: u32,
    /// True if the granter is dead. The descriptor is closed when the last page is unmapped.
    doomed: bool,
}

/// Maps and unmaps pages for one caller, in its worker. The buffers are reused.
#[derive(Debug)]
pub(crate) struct Mapper {
    caller: DomId,
    known: BTreeMap<DomId, GranterMemory>,
    /// Index, slot and pin of each operation of the current batch. Empty between batches.
    pinned: Vec<(usize, Slot, PinnedGrant)>,
    maps: Vec<PageMap>,
    slots: Vec<Slot>,
}

impl Mapper {
    /// Creates a mapper without mappings.
    pub(crate) fn new(caller: DomId) -> Self {
        Self {
            caller,
            known: BTreeMap::new(),
            pinned: Vec::new(),
            maps: Vec::new(),
            slots: Vec::new(),
        }
    }

    /// Maps a batch and stores one status per operation in `status`. An invalid operation does not
    /// affect the others. If the address space cannot be changed, no page is mapped, and the valid
    /// operations have the status [`GrantStatus::NoSpace`].
    ///
    /// # Errors
    /// [`SpaceError::Lost`]: the caller must be killed and then torn down. The pins remain until
    /// then.
    pub(crate) fn map(
        &mut self,
        keeping: UsageTables<'_>,
        space: &mut dyn AddressSpace,
        ops: &[MapOp],
        status: &mut Vec<GrantStatus>,
    ) -> Result<(), SpaceError> {
        status.clear();
        status.resize(ops.len(), GrantStatus::GeneralError);
        {
            let mut locked = keeping.lock();
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
        let done = match self.map_pinned(keeping, space) {
            Err(lost @ SpaceError::Lost(_)) => return Err(lost),
            Err(SpaceError::Refused(_)) => false,
            Ok(()) => true,
        };
        let mut locked = keeping.lock();
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
                if let Some(known) = self.known.get_mut(&pin.granter) {
                    known.pages += 1;
                }
            } else {
                locked.free(self.caller, slot);
                locked.unpin(pin, PinPurpose::Map);
            }
        }
        Ok(())
    }

    /// Maps the batch's pages in the window. The address space already knows the granters'
    /// memories.
    fn map_pinned(
        &mut self,
        keeping: UsageTables<'_>,
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
            self.learn(keeping, space, pin.granter)?;
            self.maps.push(PageMap {
                slot,
                memory: u32::from(pin.granter.0),
                frame: pin.frame,
                writable: pin.write,
            });
        }
        space.map(&self.maps)
    }

    /// Passes a granter's memory to the address space, unless it already has it.
    fn learn(
        &mut self,
        UsageTables { grants, .. }: UsageTables<'_>,
        space: &mut dyn AddressSpace,
        granter: DomId,
    ) -> Result<(), SpaceError> {
        if self.known.contains_key(&granter) {
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
                self.known.insert(granter, GranterMemory::default());
                Ok(())
            }
            Err(why) => {
                grants.lock().release_memory(granter);
                Err(why)
            }
        }
    }

    /// Unmaps a batch and stores one status per operation in `status`. When this function returns,
    /// no access through an unmapped slot is possible.
    ///
    /// # Errors
    /// On any error the caller must be killed and then torn down. The pins remain until then.
    pub(crate) fn unmap(
        &mut self,
        keeping: UsageTables<'_>,
        space: &mut dyn AddressSpace,
        ops: &[UnmapOp],
        status: &mut Vec<GrantStatus>,
    ) -> Result<(), SpaceError> {
        status.clear();
        status.resize(ops.len(), GrantStatus::GeneralError);
        self.slots.clear();
        {
            let mut locked = keeping.lock();
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
            let mut locked = keeping.lock();
            for (at, slot, pin) in self.pinned.drain(..) {
                locked.free(self.caller, slot);
                locked.unpin(pin, PinPurpose::Map);
                if let Some(known) = self.known.get_mut(&pin.granter) {
                    known.pages = known.pages.saturating_sub(1);
                }
                if let Some(status) = status.get_mut(at) {
                    *status = GrantStatus::Okay;
                }
            }
        }
        self.forget_doomed(keeping.grants, space)
    }

    /// Handles the death of a granter. Its memory leaves this address space as soon as none of its
    /// pages is mapped.
    ///
    /// # Errors
    /// See [`Mapper::unmap`].
    pub(crate) fn granter_died(
        &mut self,
        grants: &GrantAccounts,
        space: &mut dyn AddressSpace,
        granter: DomId,
    ) -> Result<(), SpaceError> {
        if let Some(known) = self.known.get_mut(&granter) {
            known.doomed = true;
        }
        self.forget_doomed(grants, space)
    }

    fn forget_doomed(
        &mut self,
        grants: &GrantAccounts,
        space: &mut dyn AddressSpace,
    ) -> Result<(), SpaceError> {
        while let Some(granter) = self
            .known
            .iter()
            .find_map(|(&id, known)| (known.doomed && known.pages == 0).then_some(id))
        {
            space.remove_memory(u32::from(granter.0))?;
            self.known.remove(&granter);
            grants.lock().release_memory(granter);
        }
        Ok(())
    }

    /// Ends every mapping of the caller, in steps, and then its usage. The caller's
    /// process and agent have exited.
    pub(crate) fn tear_down(&mut self, keeping: UsageTables<'_>) {
        /// Slots released each time that the lock is held.
        const BUDGET: u32 = 512;
        let mut from = Some(0);
        while let Some(at) = from {
            from = keeping.lock().release(self.caller, at, BUDGET);
        }
        for (granter, _) in std::mem::take(&mut self.known) {
            keeping.grants.lock().release_memory(granter);
        }
        keeping.lock().clear(self.caller);
    }
}

/// Checks one map operation, pins the page, and reserves the slot.
fn reserve(locked: &mut Locked<'_>, caller: DomId, op: &MapOp) -> Result<PinnedGrant, GrantStatus> {
    let account = locked.accounts.account(caller);
    let account = account.ok_or(GrantStatus::BadDomain)?;
    if !account.window.is_free(&only(op.slot)) {
        return Err(GrantStatus::BadSlot);
    }
    let pin = locked.pin(caller, op.domain, op.gref, !op.readonly, PinPurpose::Map)?;
    locked.take(caller, op.slot, pin)?;
    Ok(pin)
}
