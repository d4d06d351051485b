//! Grant mechanism `map`: pages are mapped for one batch, used, and unmapped.

use super::access::{Guest, copy_mapped};
use abi::classic::{MapOp, UnmapOp};
use abi::{GrantRef, GrantStatus, Slot};
use nic::Frame;
use runtime::ledger::Hop;
use vif::grants::{CopyOut, GrantAccess, Grants};

/// The mechanism, for one guest.
#[derive(Debug)]
pub struct MapGrants {
    guest: Guest,
    /// By entry: whether it is in this batch.
    mapped: Vec<bool>,
    batch: Vec<MapOp>,
    unmaps: Vec<UnmapOp>,
    /// Pages to which a device writes. Separate from the batch, because frames may be written to
    /// the same guest meanwhile.
    posted: Vec<UnmapOp>,
    status: Vec<GrantStatus>,
}

impl MapGrants {
    /// Creates the mechanism without mappings.
    #[must_use]
    pub fn new(guest: Guest) -> Self {
        let mapped = vec![false; guest.slots as usize];
        Self {
            guest,
            mapped,
            batch: Vec::new(),
            unmaps: Vec::new(),
            posted: Vec::new(),
            status: Vec::new(),
        }
    }

    fn map(&mut self, grefs: impl Iterator<Item = GrantRef>, readonly: bool) {
        self.batch.clear();
        for gref in grefs {
            if let Some(slot) = self.guest.slot(gref)
                && let Some(mapped) = self.mapped.get_mut(gref.index() as usize)
                && !*mapped
            {
                *mapped = true;
                self.batch.push(MapOp {
                    domain: self.guest.domain,
                    gref,
                    slot,
                    readonly,
                });
            }
        }
        self.status.clear();
        if !self.batch.is_empty() {
            self.guest
                .call(|calls| calls.map(&self.batch, &mut self.status));
        }
        self.unmaps.clear();
        for (op, status) in self.batch.iter().zip(&self.status) {
            if *status == GrantStatus::Okay {
                self.unmaps.push(UnmapOp { slot: op.slot });
            } else if let Some(mapped) = self.mapped.get_mut(op.gref.index() as usize) {
                *mapped = false;
            }
        }
    }

    fn unmap(&mut self) {
        for op in &self.batch {
            if let Some(mapped) = self.mapped.get_mut(op.gref.index() as usize) {
                *mapped = false;
            }
        }
        self.batch.clear();
        self.status.clear();
        if !self.unmaps.is_empty() {
            self.guest
                .call(|calls| calls.unmap(&self.unmaps, &mut self.status));
        }
        self.unmaps.clear();
    }

    fn begin(&mut self, accesses: &mut [GrantAccess], readonly: bool) {
        let before = self.guest.ledger.enter(Hop::Grant);
        self.map(accesses.iter().map(|access| access.gref), readonly);
        for access in accesses {
            let slot = self.usable(access.gref);
            access.result = self.guest.place(access, slot);
        }
        self.guest.ledger.enter(before);
    }

    fn usable(&self, gref: GrantRef) -> Result<Slot, GrantStatus> {
        match self.mapped.get(gref.index() as usize) {
            Some(true) => self.guest.slot(gref).ok_or(GrantStatus::BadRef),
            _ => Err(GrantStatus::BadRef),
        }
    }
}

impl Drop for MapGrants {
    fn drop(&mut self) {
        self.unmap();
        self.post_end();
    }
}

impl Grants for MapGrants {
    fn read_begin(&mut self, accesses: &mut [GrantAccess]) {
        self.begin(accesses, true);
        accesses.iter().for_each(GrantAccess::prefetch);
    }

    fn read_end(&mut self) {
        let before = self.guest.ledger.enter(Hop::Grant);
        self.unmap();
        self.guest.ledger.enter(before);
    }

    fn post_begin(&mut self, accesses: &mut [GrantAccess]) {
        self.begin(accesses, false);
        self.batch.clear();
        self.posted.append(&mut self.unmaps);
    }

    fn post_end(&mut self) {
        let before = self.guest.ledger.enter(Hop::Grant);
        for op in &self.posted {
            let entry = (op.slot.0 - self.guest.first.0) as usize;
            if let Some(mapped) = self.mapped.get_mut(entry) {
                *mapped = false;
            }
        }
        if !self.posted.is_empty() {
            self.guest
                .call(|calls| calls.unmap(&self.posted, &mut self.status));
        }
        self.posted.clear();
        self.guest.ledger.enter(before);
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        let before = self.guest.ledger.enter(Hop::Grant);
        // The driver never writes to a guest while it reads from the same one, because the bridge
        // sends no frame back to its ingress port.
        self.map(copies.iter().map(|op| op.gref), false);
        self.guest.ledger.enter(Hop::Copy);
        copy_mapped(&self.guest, copies, frames, |gref| self.usable(gref));
        self.guest.ledger.enter(Hop::Grant);
        self.unmap();
        self.guest.ledger.enter(before);
    }
}
