//! Persistent grants: pages are mapped at their first use and stay mapped until the connection
//! ends.

use super::access::{Guest, copy_mapped, fetch_and_copy_small_frames};
use abi::classic::{MapOp, UnmapOp};
use abi::{GrantRef, GrantStatus, Slot};
use nic::{Frame, SmallFrame};
use runtime::ledger::Hop;
use vif::grants::{CopyOut, GrantAccess, Grants};

/// State of one entry of the guest's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    Unmapped,
    ReadOnly,
    Writable,
}

/// The mechanism, for one guest.
#[derive(Debug)]
pub struct PersistentGrants {
    guest: Guest,
    state: Vec<PageState>,
    /// By entry: whether writing was denied. A retry would map and unmap the page for every packet.
    denied: Vec<bool>,
    wanted: Vec<MapOp>,
    unwanted: Vec<UnmapOp>,
    status: Vec<GrantStatus>,
}

impl PersistentGrants {
    /// Creates the mechanism without mappings.
    #[must_use]
    pub fn new(guest: Guest) -> Self {
        let state = vec![PageState::Unmapped; guest.slots as usize];
        Self {
            denied: vec![false; state.len()],
            guest,
            state,
            wanted: Vec::new(),
            unwanted: Vec::new(),
            status: Vec::new(),
        }
    }

    /// Unmaps everything.
    pub fn release(&mut self) {
        self.unwanted.clear();
        for (index, state) in self.state.iter_mut().enumerate() {
            if *state != PageState::Unmapped {
                *state = PageState::Unmapped;
                if let Some(slot) = self.guest.slot(GrantRef(index as u32)) {
                    self.unwanted.push(UnmapOp { slot });
                }
            }
        }
        self.status.clear();
        self.guest
            .call(|calls| calls.unmap(&self.unwanted, &mut self.status));
        self.unwanted.clear();
    }

    /// Queues `gref` for mapping, unless it is mapped.
    fn want(&mut self, gref: GrantRef, readonly: bool) {
        let Some(slot) = self.guest.slot(gref) else {
            return;
        };
        let Some(state) = self.state.get_mut(gref.index() as usize) else {
            return;
        };
        let denied = self.denied.get(gref.index() as usize).copied();
        match *state {
            PageState::Writable => return,
            PageState::ReadOnly if readonly => return,
            _ if !readonly && denied != Some(false) => return,
            PageState::ReadOnly => self.unwanted.push(UnmapOp { slot }),
            PageState::Unmapped => {}
        }
        *state = if readonly {
            PageState::ReadOnly
        } else {
            PageState::Writable
        };
        self.wanted.push(MapOp {
            domain: self.guest.domain,
            gref,
            slot,
            readonly,
        });
    }

    /// Maps the queued entries. Marks entries that cannot be mapped.
    fn map_wanted(&mut self) {
        if self.wanted.is_empty() {
            return;
        }
        self.guest.call(|calls| {
            self.status.clear();
            calls.unmap(&self.unwanted, &mut self.status);
            self.unwanted.clear();
            self.status.clear();
            calls.map(&self.wanted, &mut self.status);
        });
        for (map, status) in self.wanted.iter().zip(&self.status) {
            let index = map.gref.index() as usize;
            if *status != GrantStatus::Okay
                && let Some(state) = self.state.get_mut(index)
            {
                *state = PageState::Unmapped;
            }
            if *status == GrantStatus::PermissionDenied
                && !map.readonly
                && let Some(denied) = self.denied.get_mut(index)
            {
                *denied = true;
            }
        }
        self.wanted.clear();
    }

    fn usable(&self, gref: GrantRef, readonly: bool) -> Result<Slot, GrantStatus> {
        let slot = self.guest.slot(gref).ok_or(GrantStatus::BadRef)?;
        match self.state.get(gref.index() as usize) {
            Some(PageState::Writable) => Ok(slot),
            Some(PageState::ReadOnly) if readonly => Ok(slot),
            _ => Err(GrantStatus::BadRef),
        }
    }

    fn begin(&mut self, accesses: &mut [GrantAccess], readonly: bool) {
        let before = self.guest.ledger.enter(Hop::Grant);
        for access in &*accesses {
            self.want(access.gref, readonly);
        }
        self.map_wanted();
        for access in accesses {
            let slot = self.usable(access.gref, readonly);
            access.result = self.guest.place(access, slot);
        }
        self.guest.ledger.enter(before);
    }
}

impl Drop for PersistentGrants {
    fn drop(&mut self) {
        self.release();
    }
}

impl Grants for PersistentGrants {
    fn read_begin(&mut self, accesses: &mut [GrantAccess]) {
        self.begin(accesses, true);
        accesses.iter().for_each(GrantAccess::prefetch);
    }

    fn read_end(&mut self) {}

    fn post_begin(&mut self, accesses: &mut [GrantAccess]) {
        self.begin(accesses, false);
    }

    fn in_reach(&self) -> bool {
        true
    }

    fn write_small_frames(
        &mut self,
        accesses: &mut [GrantAccess],
        small: &[SmallFrame],
        pick: &[u32],
    ) {
        self.begin(accesses, false);
        fetch_and_copy_small_frames(&self.guest.ledger, accesses, small, pick);
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        let before = self.guest.ledger.enter(Hop::Grant);
        for op in &*copies {
            self.want(op.gref, false);
        }
        self.map_wanted();
        self.guest.ledger.enter(Hop::Copy);
        copy_mapped(&self.guest, copies, frames, |gref| self.usable(gref, false));
        self.guest.ledger.enter(before);
    }
}
