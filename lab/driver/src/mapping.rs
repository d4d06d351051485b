//! Grant mechanisms `map` and `persistent`: pages are mapped at the first use, and unmapped at the
//! end of the batch (`map`) or of the connection (`persistent`).

use crate::window::{self, copy_mapped};
use abi::classic::{MapOp, UnmapOp};
use abi::hypercall::HypercallKind;
use abi::{GrantRef, GrantStatus, Slot};
use driver::grants::{GranterWindow, fetch_and_copy_small_frames};
use nic::{Frame, SmallBatch};
use runtime::call::Calls;
use runtime::ledger::Hop;
use vif::grants::{CopyOut, GrantAccess, GrantMechanism};

/// State of one entry of the guest's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    Unmapped,
    ReadOnly,
    Writable,
}

/// Time for which a page remains mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MappingPeriod {
    /// Until the end of the batch that uses the page.
    Batch,
    /// Until the end of the connection.
    Connection,
}

/// The grant mechanism for one guest.
#[derive(Debug)]
pub(crate) struct MappedGrants {
    guest: GranterWindow,
    period: MappingPeriod,
    state: Vec<PageState>,
    /// Whether the monitor has denied writing to the page of each entry, for the whole connection.
    /// If this domain retried, it would map and unmap the page for every packet.
    denied: Vec<bool>,
    /// Pages to map.
    to_map: Vec<MapOp>,
    /// Read-only mappings to replace with writable ones.
    to_replace: Vec<UnmapOp>,
    /// Pages to unmap at the end of the batch.
    batch: Vec<UnmapOp>,
    /// Pages to which a device writes. They are separate from the batch, because this domain may
    /// write frames to the same guest meanwhile.
    posted: Vec<UnmapOp>,
    status: Vec<GrantStatus>,
}

impl MappedGrants {
    /// Creates the mechanism without mappings.
    #[must_use]
    pub(crate) fn new(guest: GranterWindow, period: MappingPeriod) -> Self {
        let state = vec![PageState::Unmapped; guest.slots as usize];
        Self {
            denied: vec![false; state.len()],
            guest,
            period,
            state,
            to_map: Vec::new(),
            to_replace: Vec::new(),
            batch: Vec::new(),
            posted: Vec::new(),
            status: Vec::new(),
        }
    }

    /// Queues the page of `gref` for mapping, unless it is mapped.
    fn queue(&mut self, gref: GrantRef, readonly: bool) {
        let Some(slot) = window::slot(&self.guest, gref) else {
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
            PageState::ReadOnly => self.to_replace.push(UnmapOp { slot }),
            PageState::Unmapped => {}
        }
        *state = if readonly {
            PageState::ReadOnly
        } else {
            PageState::Writable
        };
        self.to_map.push(MapOp {
            domain: self.guest.domain,
            gref,
            slot,
            readonly,
        });
    }

    /// Maps the queued pages. Marks the entries whose pages cannot be mapped.
    fn map_queued(&mut self) {
        if self.to_map.is_empty() {
            return;
        }
        window::call(&self.guest, |calls| {
            self.status.clear();
            unmap(calls, &self.to_replace, &mut self.status);
            self.to_replace.clear();
            self.status.clear();
            let (kind, to_map) = (HypercallKind::GrantMap, &self.to_map);
            calls.batches(kind, to_map, MapOp::encode, &mut self.status);
        });
        let is_persistent = self.period == MappingPeriod::Connection;
        for (map, status) in self.to_map.iter().zip(&self.status) {
            let index = map.gref.index() as usize;
            if *status == GrantStatus::Okay {
                if !is_persistent {
                    self.batch.push(UnmapOp { slot: map.slot });
                }
                continue;
            }
            if let Some(state) = self.state.get_mut(index) {
                *state = PageState::Unmapped;
            }
            if is_persistent
                && *status == GrantStatus::PermissionDenied
                && !map.readonly
                && let Some(denied) = self.denied.get_mut(index)
            {
                *denied = true;
            }
        }
        self.to_map.clear();
    }

    /// Unmaps pages.
    fn unmap(&mut self, pages: &mut Vec<UnmapOp>) {
        if pages.is_empty() {
            return;
        }
        let before = self.guest.ledger.enter(Hop::Grant);
        for op in &*pages {
            let entry = op.slot.0.wrapping_sub(self.guest.first.0) as usize;
            if let Some(state) = self.state.get_mut(entry) {
                *state = PageState::Unmapped;
            }
        }
        self.status.clear();
        window::call(&self.guest, |calls| unmap(calls, pages, &mut self.status));
        pages.clear();
        self.guest.ledger.enter(before);
    }

    /// Unmaps the pages of the batch.
    fn end_batch(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        self.unmap(&mut batch);
        self.batch = batch;
    }

    fn usable(&self, gref: GrantRef, readonly: bool) -> Result<Slot, GrantStatus> {
        let slot = window::slot(&self.guest, gref).ok_or(GrantStatus::BadRef)?;
        match self.state.get(gref.index() as usize) {
            Some(PageState::Writable) => Ok(slot),
            Some(PageState::ReadOnly) if readonly => Ok(slot),
            _ => Err(GrantStatus::BadRef),
        }
    }

    fn begin(&mut self, accesses: &mut [GrantAccess], readonly: bool) {
        let before = self.guest.ledger.enter(Hop::Grant);
        for access in &*accesses {
            self.queue(access.gref, readonly);
        }
        self.map_queued();
        for access in accesses {
            let slot = self.usable(access.gref, readonly);
            access.result = window::place(&self.guest, access, slot);
        }
        self.guest.ledger.enter(before);
    }
}

/// Unmaps pages. Appends one status per page to `status`.
pub(crate) fn unmap(calls: &mut Calls, pages: &[UnmapOp], status: &mut Vec<GrantStatus>) {
    calls.batches(HypercallKind::GrantUnmap, pages, UnmapOp::encode, status);
}

impl Drop for MappedGrants {
    fn drop(&mut self) {
        let (first, all) = (self.guest.first.0, 0..);
        let mapped = all.zip(&self.state);
        let mapped = mapped.filter(|(_, state)| **state != PageState::Unmapped);
        let slot = |(index, _): (u32, _)| Slot(first.saturating_add(index));
        let mut mapped: Vec<UnmapOp> = mapped.map(|it| UnmapOp { slot: slot(it) }).collect();
        self.unmap(&mut mapped);
    }
}

impl GrantMechanism for MappedGrants {
    fn read_begin(&mut self, accesses: &mut [GrantAccess]) {
        self.begin(accesses, true);
        accesses.iter().for_each(GrantAccess::prefetch);
    }

    fn read_end(&mut self) {
        self.end_batch();
    }

    fn post_begin(&mut self, accesses: &mut [GrantAccess]) {
        self.begin(accesses, false);
        self.posted.append(&mut self.batch);
    }

    fn post_end(&mut self) {
        let mut posted = std::mem::take(&mut self.posted);
        self.unmap(&mut posted);
        self.posted = posted;
    }

    fn in_reach(&self) -> bool {
        self.period == MappingPeriod::Connection
    }

    fn write_small_frames(
        &mut self,
        accesses: &mut [GrantAccess],
        small: &SmallBatch,
        pick: &[u32],
        prefetch: bool,
    ) {
        self.begin(accesses, false);
        fetch_and_copy_small_frames(&self.guest.ledger, accesses, small, pick, prefetch);
        self.end_batch();
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        debug_assert!(self.batch.is_empty(), "a batch of reads has not ended");
        let before = self.guest.ledger.enter(Hop::Grant);
        for op in &*copies {
            self.queue(op.gref, false);
        }
        self.map_queued();
        self.guest.ledger.enter(Hop::Copy);
        copy_mapped(&self.guest, copies, frames, |gref| self.usable(gref, false));
        self.guest.ledger.enter(Hop::Grant);
        self.end_batch();
        self.guest.ledger.enter(before);
    }
}
