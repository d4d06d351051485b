//! Access to a guest's memory: the grant mechanism, and the pages of the rings.

use crate::grants::GranterWindow;
use crate::grants::counted::CountedGrants;
use crate::vifs::hashing::Hashing;
use abi::Slot;
use config::domain::{DriverConfig, GrantMode, Offloads, RingFormat, VifConfig};
use config::lro::Meta;
use runtime::call::Calls;
use runtime::ledger::Ledger;
use runtime::platform::{PeerEnd, Platform};
use shmem::{Area, Span};
use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;
use vif::grants::GrantMechanism;
use vif::netback::MulticastFilter;
use vif::netif::{BackRecord, Features, FrontRecord, MAX_SLOTS};
use vif::ring::Journal;

/// Common parameters of all guest ports.
#[derive(Clone, Debug)]
pub struct VifSettings {
    /// The system of this domain.
    pub platform: Rc<dyn Platform>,
    /// The hypercalls of this domain, for grants.
    pub calls: Rc<RefCell<Calls>>,
    /// This domain's own frames.
    pub frames: Area,
    /// Grant mechanism.
    pub grants: GrantMode,
    /// Maximum features offered to guests.
    pub offloads: Offloads,
    /// log2 of the largest ring offered to guests, in pages.
    pub ring_order: u8,
    /// Ring format, if guests accept it.
    pub ring_format: RingFormat,
    /// Place of the segment size of a packet to a guest.
    pub meta: Meta,
}

/// Accessible memory of a guest.
#[derive(Debug)]
pub struct OpenedMemory {
    /// Its first or only queue.
    pub first: OpenedQueue,
    /// Further ones, of two ring pages each.
    pub others: Vec<OpenedQueue>,
    /// Its multicast filter, if offered.
    pub groups: Option<MulticastFilter>,
    /// Its flow steering, if offered.
    pub hashing: Option<Hashing>,
    /// Unmaps the pages when it is dropped. The mechanisms must be dropped first.
    pub held: Box<dyn Debug>,
}

/// The memory of one queue.
#[derive(Debug)]
pub struct OpenedQueue {
    /// The grant mechanism.
    pub mechanism: Box<dyn GrantMechanism>,
    /// Pages of both rings and of the event channel, as the guest's record lists them.
    pub pages: Vec<Span>,
    /// Journals of the ring from the guest and of the ring to it, if a backend takes over from a
    /// dead one.
    pub journals: Option<[Journal; 2]>,
}

impl OpenedMemory {
    /// Returns a guest with one queue, whose rings no other backend has served.
    #[must_use]
    pub fn new(mechanism: Box<dyn GrantMechanism>, pages: Vec<Span>, held: Box<dyn Debug>) -> Self {
        let first = OpenedQueue {
            mechanism,
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

/// Access to one guest's memory. No method is called per packet; [`GrantMechanism`] has the methods
/// for that.
pub trait GuestAccess: Debug {
    /// Returns the record for the guest. `has_queue` states whether it has a dedicated queue.
    fn record(&self, has_queue: bool) -> BackRecord;

    /// Sets up the grant mechanism, charged to `ledger`, and maps the pages of both rings and of
    /// the event channel.
    ///
    /// # Errors
    /// The missing feature of the guest or the system, as text.
    fn open(
        &mut self,
        peer: &PeerEnd,
        front: &FrontRecord,
        ledger: &Rc<Ledger>,
    ) -> Result<OpenedMemory, String>;
}

/// One guest's part of the grant window.
#[derive(Debug)]
pub struct GuestMemory {
    shared: VifSettings,
    /// Slot of entry 0 of its table.
    first: Slot,
    /// Number of entries.
    slots: u32,
    /// First slot of the sub-tables of its grants.
    tables: Slot,
}

impl VifSettings {
    /// Creates the parameters from the configuration. `frames` are all of this domain's own frames.
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

    /// Returns the part of the window from slot `first` on that belongs to the guest `peer`.
    #[must_use]
    pub fn window_of(
        &self,
        peer: &PeerEnd,
        (first, slots): (Slot, u32),
        ledger: &Rc<Ledger>,
    ) -> GranterWindow {
        GranterWindow {
            calls: Rc::clone(&self.calls),
            domain: peer.domain,
            window: self.platform.window(),
            first,
            slots,
            ledger: Rc::clone(ledger),
        }
    }

    /// Returns the record for a guest, with or without a dedicated queue.
    #[must_use]
    pub fn record(&self, has_queue: bool) -> BackRecord {
        let base = match self.offloads {
            Offloads::None => Features::PLAIN,
            Offloads::Checksum => Features::CHECKSUM,
            Offloads::Tso => Features::ALL,
        };
        let offers = [
            (self.grants.has_tables(), Features::COUNTED_GRANTS),
            (self.meta == Meta::Response, Features::RX_META),
            (
                self.ring_format == RingFormat::Native,
                Features::NATIVE_RINGS,
            ),
            // A device returns buffers in the order in which it receives frames.
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

impl GuestAccess for GuestMemory {
    fn record(&self, has_queue: bool) -> BackRecord {
        self.shared.record(has_queue)
    }

    fn open(
        &mut self,
        peer: &PeerEnd,
        front: &FrontRecord,
        ledger: &Rc<Ledger>,
    ) -> Result<OpenedMemory, String> {
        let slots = (self.first, self.slots);
        let guest = self.shared.window_of(peer, slots, ledger);
        match self.shared.grants {
            GrantMode::Counted => self.open_counted::<true>(guest, front),
            GrantMode::Unchecked => self.open_counted::<false>(guest, front),
            _ => Err("this program of the driver domain lacks the grant mechanism".into()),
        }
    }
}

impl GuestMemory {
    /// Returns the part for the guest behind `vif`.
    #[must_use]
    pub fn new(vif: &VifConfig, shared: &VifSettings) -> Self {
        Self {
            shared: shared.clone(),
            first: Slot(vif.first_slot),
            slots: vif.slots,
            tables: Slot(vif.tables_slot),
        }
    }

    fn open_counted<const COUNTED: bool>(
        &self,
        guest: GranterWindow,
        front: &FrontRecord,
    ) -> Result<OpenedMemory, String> {
        let mut grants = CountedGrants::<COUNTED>::bind(guest, front.table, self.tables)
            .map_err(|why| format!("the guest's grant table cannot be bound: {}", why.name()))?;
        let pages: Result<Vec<_>, _> = front.references().map(|gref| grants.keep(gref)).collect();
        let pages = pages.map_err(|why| format!("a ring cannot be used: {}", why.name()))?;
        Ok(OpenedMemory::new(Box::new(grants), pages, Box::new(())))
    }
}
