//! Access to a guest's memory by the grant mechanism that the configuration selects.

use crate::copy::CopyGrants;
use crate::exchange::{Exchanges, NicPages};
use crate::flip::FlipGrants;
use crate::mapping::{MappedGrants, MappingPeriod, unmap};
use crate::window;
use abi::classic::{MapOp, UnmapOp};
use abi::hypercall::HypercallKind;
use abi::{GrantStatus, Handle, Slot};
use config::domain::{GrantMode, VifConfig};
use driver::grants::GranterWindow;
use driver::guests::Guests;
use driver::vifs::memory::{GuestAccess, GuestMemory, OpenedMemory, VifSettings};
use nic::Buffers;
use runtime::call::Calls;
use runtime::ledger::Ledger;
use runtime::platform::PeerEnd;
use shmem::Span;
use std::cell::RefCell;
use std::rc::Rc;
use vif::grants::GrantMechanism;
use vif::netif::{BackRecord, Features, FrontRecord};

/// Guests that the monitor attaches to this driver domain.
#[derive(Debug)]
pub(crate) struct LabGuests {
    shared: VifSettings,
    exchanges: Rc<RefCell<Exchanges>>,
}

impl LabGuests {
    pub(crate) fn boxed(shared: VifSettings) -> Box<dyn Guests> {
        Box::new(Self {
            shared,
            exchanges: Rc::default(),
        })
    }
}

impl Guests for LabGuests {
    fn nic_pages(&mut self) -> Option<Box<dyn Buffers>> {
        let receives = self.shared.grants == GrantMode::Flip;
        receives.then(|| Box::new(NicPages::new(Rc::clone(&self.exchanges))) as _)
    }

    fn access(&self, vif: &VifConfig, staging: Span) -> Result<Box<dyn GuestAccess>, String> {
        if self.shared.grants.has_tables() {
            return Ok(Box::new(GuestMemory::new(vif, &self.shared)));
        }
        if vif.staging_pages > 0 && staging.is_empty() {
            return Err("with grants = \"copy\", staging pages are assigned at the start".into());
        }
        Ok(Box::new(LabMemory {
            shared: self.shared.clone(),
            mac: vif.mac,
            first: Slot(vif.first_slot),
            slots: vif.slots,
            exchange: (Slot(vif.tables_slot), vif.flip_pages),
            exchanges: Rc::clone(&self.exchanges),
            staging,
        }))
    }
}

/// Access to the memory of one guest.
#[derive(Debug)]
pub(crate) struct LabMemory {
    shared: VifSettings,
    /// The guest's MAC.
    mac: [u8; 6],
    /// Slot of entry 0 of the guest's grant table.
    first: Slot,
    /// Number of entries of the table.
    slots: u32,
    /// First slot and number of the exchanged pages.
    exchange: (Slot, u32),
    /// The pages of all guests' exchanges.
    exchanges: Rc<RefCell<Exchanges>>,
    /// Staging pages of the mechanism `copy`.
    staging: Span,
}

impl GuestAccess for LabMemory {
    fn record(&self, has_queue: bool) -> BackRecord {
        let mut record = self.shared.record(has_queue);
        if self.shared.grants.exchanges_pages() {
            record.features = record.features.with(Features::RX_FLIP);
        }
        record
    }

    fn open(
        &mut self,
        peer: &PeerEnd,
        front: &FrontRecord,
        ledger: &Rc<Ledger>,
    ) -> Result<OpenedMemory, String> {
        let slots = (self.first, self.slots);
        let guest = self.shared.window_of(peer, slots, ledger);
        let mechanism = self.mechanism(&guest, front)?;
        let (held, pages) = map_rings(&guest, front)?;
        Ok(OpenedMemory::new(mechanism, pages, Box::new(held)))
    }
}

impl LabMemory {
    fn mechanism(
        &self,
        guest: &GranterWindow,
        front: &FrontRecord,
    ) -> Result<Box<dyn GrantMechanism>, String> {
        let guest = guest.clone();
        let mapped = |period| Box::new(MappedGrants::new(guest.clone(), period));
        Ok(match self.shared.grants {
            GrantMode::Flip | GrantMode::FlipCopy => {
                if !front.features.has(Features::RX_FLIP) {
                    return Err("the guest does not exchange pages".into());
                }
                let exchange = (front.table, self.exchange, Rc::clone(&self.exchanges));
                let flip = FlipGrants::bind(guest, self.mac, exchange);
                Box::new(flip.map_err(|why| {
                    format!("the guest's exchange cannot be bound: {}", why.name())
                })?)
            }
            _ if front.table != Handle(0) => {
                return Err("the guest uses a grant mechanism that was not offered".into());
            }
            GrantMode::Copy => Box::new(CopyGrants::new(guest, self.shared.frames, self.staging)),
            GrantMode::Persistent => mapped(MappingPeriod::Connection),
            _ => mapped(MappingPeriod::Batch),
        })
    }
}

/// Pages that the monitor has mapped for this domain. Dropping this unmaps them.
#[derive(Debug)]
struct MappedPages {
    calls: Rc<RefCell<Calls>>,
    slots: Vec<UnmapOp>,
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        unmap(&mut self.calls.borrow_mut(), &self.slots, &mut Vec::new());
    }
}

/// Maps the pages of both rings and of the event channel, in the order of the guest's record.
fn map_rings(
    guest: &GranterWindow,
    front: &FrontRecord,
) -> Result<(MappedPages, Vec<Span>), String> {
    let mut maps = Vec::new();
    for gref in front.references() {
        let slot = window::slot(guest, gref);
        maps.push(MapOp {
            domain: guest.domain,
            gref,
            slot: slot.ok_or("a ring's grant reference is out of range")?,
            readonly: false,
        });
    }
    let (kind, mut status) = (HypercallKind::GrantMap, Vec::new());
    guest
        .calls
        .borrow_mut()
        .batches(kind, &maps, MapOp::encode, &mut status);
    let mapped = maps.iter().zip(&status);
    let mapped = mapped.filter(|(_, status)| **status == GrantStatus::Okay);
    let mapped = MappedPages {
        calls: Rc::clone(&guest.calls),
        slots: mapped.map(|(map, _)| UnmapOp { slot: map.slot }).collect(),
    };
    if let Some(bad) = status.iter().find(|status| **status != GrantStatus::Okay) {
        return Err(format!("a ring cannot be mapped: {}", bad.name()));
    }
    let pages = maps.iter().filter_map(|map| guest.window.page(map.slot.0));
    Ok((mapped, pages.collect()))
}
