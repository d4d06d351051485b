//! How a driver domain gets at a guest's memory: the grant mechanism, and the pages of the rings.

use crate::grants::Guest;
use crate::grants::copy::Copy;
use crate::grants::counted::Counted;
use crate::grants::flip::Flip;
use crate::grants::map::Map;
use crate::grants::persistent::Persistent;
use crate::vifs::hashing::Hashing;
use abi::classic::{Map as MapOp, Unmap};
use abi::{GrantRef, GrantStatus, Handle, PAGE, Slot};
use config::domain::{DriverConfig, GrantMode, Offloads, RingFormat, VifConfig};
use config::lro::Meta;
use runtime::call::Calls;
use runtime::ledger::Ledger;
use runtime::platform::{Peer, Platform};
use shmem::{Area, Span};
use std::cell::RefCell;
use std::fmt::{self, Debug};
use std::rc::Rc;
use vif::grants::Grants;
use vif::netback::Groups;
use vif::netif::{BackRecord, Features, FrontRecord, MAX_SLOTS};
use vif::ring::Journal;

/// What every guest's port has in common.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The system that this domain runs on.
    pub platform: Rc<dyn Platform>,
    /// Its hypercalls, for grants.
    pub calls: Rc<RefCell<Calls>>,
    /// This domain's own frames.
    pub frames: Area,
    /// The grant mechanism.
    pub grants: GrantMode,
    /// The most that guests are offered.
    pub offloads: Offloads,
    /// log2 of the largest ring that guests are offered, in pages.
    pub ring_order: u8,
    /// How rings lie in their pages, if guests want them so.
    pub ring_format: RingFormat,
    /// Where the segment size of a packet to a guest travels.
    pub meta: Meta,
}

/// The part of the grant window that one guest's grants appear in.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Where entry 0 of its table appears.
    first: Slot,
    /// Entries that appear.
    slots: u32,
    /// Where the sub-tables of the new mechanism appear, or pages that change hands.
    tables: Slot,
    /// Pages that change hands.
    flips: u32,
}

/// A guest's memory that is within reach now.
#[derive(Debug)]
pub struct Opened {
    /// Its first queue, or its only one.
    pub first: OpenedQueue,
    /// Further ones, of two ring pages each.
    pub others: Vec<OpenedQueue>,
    /// What it hears, where it may choose that.
    pub groups: Option<Groups>,
    /// Which of its queues frames go to, where it may choose that.
    pub hashing: Option<Hashing>,
    /// Dropping it ends what the pages are mapped by. The mechanisms go first.
    pub held: Box<dyn Debug>,
}

/// The memory of one queue.
#[derive(Debug)]
pub struct OpenedQueue {
    /// The grant mechanism.
    pub mechanism: Mechanism,
    /// The pages of both rings and of the event channel, as the guest's record lists them.
    pub pages: Vec<Span>,
    /// The journals of the ring from the guest and of the one to it, where a backend takes over
    /// from one that is no more.
    pub journals: Option<[Journal; 2]>,
}

impl Opened {
    /// A guest with one queue, whose rings no other backend has served.
    #[must_use]
    pub fn new(mechanism: Box<dyn Grants>, pages: Vec<Span>, held: Box<dyn Debug>) -> Self {
        let first = OpenedQueue {
            mechanism: Mechanism(mechanism),
            pages,
            journals: None,
        };
        Self {
            first,
            others: Vec::new(),
            groups: None,
            hashing: None,
            held,
        }
    }
}

/// A grant mechanism, for one guest.
pub struct Mechanism(pub Box<dyn Grants>);

impl Debug for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mechanism")
    }
}

/// How this domain gets at one guest's memory. Nothing of it happens once a packet: that is
/// [`Grants`].
pub trait Reach: Debug {
    /// What the guest is offered; `has_queue`: whether it has a dedicated queue.
    fn record(&self, has_queue: bool) -> BackRecord;

    /// Sets the grant mechanism up, whose time `ledger` counts, and gets at the pages of both rings
    /// and of the event channel.
    ///
    /// # Errors
    /// What the guest or the system does not have, for people.
    fn open(
        &mut self,
        peer: &Peer,
        front: &FrontRecord,
        ledger: &Rc<Ledger>,
    ) -> Result<Opened, String>;
}

/// One guest's part of this domain's memory.
#[derive(Debug)]
pub struct GuestMemory {
    shared: Shared,
    window: Window,
    /// Pages for the copying mechanism.
    staging: Span,
}

impl Shared {
    /// As the configuration has it: `frames` are all of this domain's own.
    #[must_use]
    pub fn new(
        platform: Rc<dyn Platform>,
        calls: Rc<RefCell<Calls>>,
        frames: Area,
        config: &DriverConfig,
    ) -> Self {
        Self {
            platform,
            calls,
            frames,
            grants: config.grants,
            offloads: config.offloads,
            ring_order: config.ring_order,
            ring_format: config.ring_format,
            meta: config.lro.meta,
        }
    }

    /// What a guest is offered, which has a dedicated queue or none.
    #[must_use]
    pub fn record(&self, has_queue: bool) -> BackRecord {
        let base = match self.offloads {
            Offloads::None => Features::PLAIN,
            Offloads::Checksum => Features::CHECKSUM,
            Offloads::Tso => Features::ALL,
        };
        let offers = [
            (self.grants.has_tables(), Features::COUNTED_GRANTS),
            (self.grants == GrantMode::Flip, Features::RX_FLIP),
            (self.meta == Meta::Response, Features::RX_META),
            (
                self.ring_format == RingFormat::Native,
                Features::NATIVE_RINGS,
            ),
            // A device gives buffers back as frames come into them.
            (has_queue, Features::RX_ANY_ORDER),
        ];
        let offered = offers.into_iter().filter(|(is_offered, _)| *is_offered);
        BackRecord {
            features: offered.fold(base, |features, (_, more)| features.with(more)),
            max_order: self.ring_order,
            max_slots: MAX_SLOTS,
        }
    }
}

/// Pages that the monitor has mapped for this domain, until it is dropped.
struct MappedPages {
    calls: Rc<RefCell<Calls>>,
    slots: Vec<Unmap>,
}

impl Debug for MappedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MappedPages").field(&self.slots).finish()
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        self.calls.borrow_mut().unmap(&self.slots, &mut Vec::new());
    }
}

impl Reach for GuestMemory {
    fn record(&self, has_queue: bool) -> BackRecord {
        self.shared.record(has_queue)
    }

    fn open(
        &mut self,
        peer: &Peer,
        front: &FrontRecord,
        ledger: &Rc<Ledger>,
    ) -> Result<Opened, String> {
        let guest = self.guest(peer, ledger);
        let mechanism: Box<dyn Grants> = match self.shared.grants {
            GrantMode::Counted => return self.open_counted::<true>(guest, front),
            GrantMode::Unchecked => return self.open_counted::<false>(guest, front),
            GrantMode::Flip => return self.open_flip(guest, peer, front),
            GrantMode::Copy => Box::new(Copy::new(guest, self.shared.frames, self.staging)),
            GrantMode::Map => Box::new(Map::new(guest)),
            GrantMode::Persistent => Box::new(Persistent::new(guest)),
        };
        if front.table != Handle(0) {
            return Err("the guest grants by a mechanism that was not offered".into());
        }
        self.with_rings(peer, front, mechanism)
    }
}

impl GuestMemory {
    /// The part of the guest behind `vif`; `staging` is for the copying mechanism.
    #[must_use]
    pub fn new(vif: &VifConfig, shared: &Shared, staging: Span) -> Self {
        let window = Window {
            first: Slot(vif.first_slot),
            slots: vif.slots,
            tables: Slot(vif.tables_slot),
            flips: vif.flip_pages,
        };
        Self {
            shared: shared.clone(),
            window,
            staging,
        }
    }

    /// A mechanism, and the pages that the guest's record names, mapped.
    fn with_rings(
        &self,
        peer: &Peer,
        front: &FrontRecord,
        mechanism: Box<dyn Grants>,
    ) -> Result<Opened, String> {
        let (held, pages) = self.map_rings(peer, front)?;
        Ok(Opened::new(mechanism, pages, Box::new(held)))
    }

    fn open_counted<const COUNTED: bool>(
        &self,
        guest: Guest,
        front: &FrontRecord,
    ) -> Result<Opened, String> {
        let mut grants = Counted::<COUNTED>::bind(guest, front.table, self.window.tables)
            .map_err(|why| format!("the guest's grant table cannot be bound: {}", why.name()))?;
        let pages: Result<Vec<_>, _> = front.references().map(|gref| grants.keep(gref)).collect();
        let pages = pages.map_err(|why| format!("a ring cannot be used: {}", why.name()))?;
        Ok(Opened::new(Box::new(grants), pages, Box::new(())))
    }

    fn open_flip(&self, guest: Guest, peer: &Peer, front: &FrontRecord) -> Result<Opened, String> {
        if !front.features.has(Features::RX_FLIP) {
            return Err("the guest does not exchange pages".into());
        }
        let flip = Flip::bind(guest, front.table, self.window.tables, self.window.flips);
        let flip =
            flip.map_err(|why| format!("the guest's exchange cannot be bound: {}", why.name()))?;
        self.with_rings(peer, front, Box::new(flip))
    }

    /// Maps the pages of both rings and of the event channel, in the record's order.
    fn map_rings(
        &self,
        peer: &Peer,
        front: &FrontRecord,
    ) -> Result<(MappedPages, Vec<Span>), String> {
        let mut maps = Vec::new();
        for gref in front.references() {
            let slot = self
                .slot(gref)
                .ok_or("a ring's grant reference is out of range")?;
            maps.push(MapOp {
                domain: peer.domain,
                gref,
                slot,
                readonly: false,
            });
        }
        let mut status = Vec::new();
        self.shared.calls.borrow_mut().map(&maps, &mut status);
        let done = maps
            .iter()
            .zip(&status)
            .filter(|(_, status)| **status == GrantStatus::Okay)
            .map(|(map, _)| Unmap { slot: map.slot });
        let done = MappedPages {
            calls: Rc::clone(&self.shared.calls),
            slots: done.collect(),
        };
        if let Some(bad) = status.iter().find(|status| **status != GrantStatus::Okay) {
            return Err(format!("a ring cannot be mapped: {}", bad.name()));
        }
        let window = self.shared.platform.window();
        let pages = maps
            .iter()
            .filter_map(|map| window.at(map.slot.0 as usize * PAGE, PAGE))
            .collect();
        Ok((done, pages))
    }

    fn slot(&self, gref: GrantRef) -> Option<Slot> {
        (gref.index() < self.window.slots && gref.generation() == 0)
            .then(|| Slot(self.window.first.0 + gref.index()))
    }

    fn guest(&self, peer: &Peer, ledger: &Rc<Ledger>) -> Guest {
        Guest {
            calls: Rc::clone(&self.shared.calls),
            domain: peer.domain,
            window: self.shared.platform.window(),
            first: self.window.first,
            slots: self.window.slots,
            ledger: Rc::clone(ledger),
        }
    }
}
