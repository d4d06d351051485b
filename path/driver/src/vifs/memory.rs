//! Access to a guest's memory: sets up the grant mechanism, and maps the pages of the rings.

use crate::grants::GranterWindow;
use crate::grants::counted::CountedGrants;
use crate::vifs::hashing::Hashing;
use abi::Slot;
use config::domain::{
    DriverConfig, GrantMode, NicConfig, NicKindConfig, Offloads, RingFormat, VifConfig,
};
use config::lro::{FlushConfig, Meta};
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

/// Parameters that all guest ports share.
#[derive(Clone, Debug)]
pub struct VifSettings {
    /// The platform of this domain.
    pub platform: Rc<dyn Platform>,
    /// This domain's hypercalls, for grants.
    pub calls: Rc<RefCell<Calls>>,
    /// This domain's frames.
    pub frames: Area,
    /// The grant mechanism.
    pub grants: GrantMode,
    /// Offloads that this domain offers to guests.
    pub offloads: Offloads,
    /// Size of the largest ring offered to guests, as log2 of its pages.
    pub ring_order: u8,
    /// The ring format offered to guests.
    pub ring_format: RingFormat,
    /// The slot that carries the segment size of a packet to a guest.
    pub meta: Meta,
    /// Whether to offer every guest responses in any order.
    pub any_order: bool,
}

/// A guest's memory, ready for access.
#[derive(Debug)]
pub struct OpenedMemory {
    /// Memory of the first or only queue.
    pub first: OpenedQueue,
    /// Memory of the other queues, each with two ring pages.
    pub others: Vec<OpenedQueue>,
    /// The guest's multicast filter, if this domain offers one.
    pub groups: Option<MulticastFilter>,
    /// The guest's flow steering, if this domain offers it.
    pub hashing: Option<Hashing>,
    /// Unmaps the pages when dropped. The owner must drop the mechanisms first.
    pub held: Box<dyn Debug>,
}

/// The memory of one queue.
#[derive(Debug)]
pub struct OpenedQueue {
    /// The grant mechanism.
    pub mechanism: Box<dyn GrantMechanism>,
    /// Pages of both rings and of the event channel, in the order of the guest's record.
    pub pages: Vec<Span>,
    /// Journals of the ring from the guest and of the ring to the guest, if this backend takes over
    /// from a dead one.
    pub journals: Option<[Journal; 2]>,
}

impl OpenedMemory {
    /// Returns the memory of a guest with one queue, whose rings no other backend has served.
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

/// Access to one guest's memory. The driver calls these methods only for the handshake; per packet,
/// it calls the methods of [`GrantMechanism`].
pub trait GuestAccess: Debug {
    /// Returns the backend's record for the guest. `has_queue` states whether the guest has a
    /// dedicated queue.
    fn record(&self, has_queue: bool) -> BackRecord;

    /// Sets up the grant mechanism, which charges its time to `ledger`, and maps the pages of both
    /// rings and of the event channel.
    ///
    /// # Errors
    /// Returns the reason as text: for instance, a feature that the guest or the platform lacks.
    fn open(
        &mut self,
        peer: &PeerEnd,
        front: &FrontRecord,
        ledger: &Rc<Ledger>,
    ) -> Result<OpenedMemory, String>;
}

/// Access to one guest's memory through the guest's part of the grant window.
#[derive(Debug)]
pub struct GuestMemory {
    shared: VifSettings,
    /// Slot of entry 0 of the guest's grant table.
    first: Slot,
    /// Number of entries of the table.
    slots: u32,
    /// First slot of the table's sub-tables.
    tables: Slot,
}

impl VifSettings {
    /// Creates the parameters from the configuration. `frames` has all frames of this domain.
    #[must_use]
    pub fn new(
        platform: Rc<dyn Platform>,
        calls: Rc<RefCell<Calls>>,
        frames: Area,
        config: &DriverConfig,
    ) -> Self {
        let (meta, any_order) = response_layout(config);
        Self {
            platform,
            calls,
            frames,
            grants: config.driver.grants,
            offloads: config.driver.offloads,
            ring_order: config.ring_order,
            ring_format: config.ring_format,
            meta,
            any_order,
        }
    }

    /// Returns the guest's part of the window: `slots` slots from slot `first`.
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

    /// Returns the backend's record for a guest, with or without a dedicated queue.
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
            // A device returns buffers in the order of its frames, and large receive offload in
            // that of its aggregates, and not in posting order.
            (has_queue || self.any_order, Features::RX_ANY_ORDER),
        ];
        let offered = offers.into_iter().filter(|(is_offered, _)| *is_offered);
        BackRecord {
            features: offered.fold(base, |features, (_, more)| features.with(more)),
            max_order: self.ring_order,
            max_slots: MAX_SLOTS,
        }
    }
}

/// Returns the slot of a packet's segment size, and whether to offer responses in any order, which
/// large receive offload needs to hold frames in guests' pages: frames of a NIC's dedicated queues.
/// Unsegmented frames from a NIC need the segment size in the first response, which excludes
/// responses in any order.
fn response_layout(config: &DriverConfig) -> (Meta, bool) {
    let DriverConfig { lro, nics, .. } = config;
    let segments = |nic: &NicConfig| matches!(nic.kind, NicKindConfig::Tap { tso: true, .. });
    let mut queues = nics.iter().filter(|nic| nic.settings.vmq.is_some());
    let has_queues = queues.clone().next().is_some() && !queues.any(segments);
    let fits = has_queues && config.driver.grants.has_tables();
    let holds = fits && lro.at.physical() && lro.flush != FlushConfig::Poll;
    let meta = match lro.meta {
        Meta::Auto if holds => Meta::Request,
        Meta::Auto => Meta::Response,
        given => given,
    };
    (meta, fits && meta == Meta::Request)
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
    /// Returns the access to the memory of the guest behind `vif`.
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
        let pages: Result<Vec<_>, _> = front.references().map(|gref| grants.pin(gref)).collect();
        let pages = pages.map_err(|why| format!("a ring cannot be used: {}", why.name()))?;
        Ok(OpenedMemory::new(Box::new(grants), pages, Box::new(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::driver_config;

    #[test]
    fn holding_in_pages_needs_any_order() {
        let text = |lro: &str, nic: &str| {
            format!(
                "[lro]\n{lro}\n[[nic]]\nname = \"wire\"\n{nic}\naddresses = [\"10.0.0.1/24\"]\n\
                 [[guest]]\nname = \"a\"\n[[guest.vif]]\nendpoint = \"sink\"\n"
            )
        };
        let tap = "kind = \"tap\"\n";
        let (vmq, sim) = ("queues = \"vmq\"\n", "kind = \"sim\"\n");
        let queues = format!("{sim}{vmq}");
        let segments = format!("{tap}{vmq}offloads = \"tso\"\n");
        let (request, response) = (Meta::Request, Meta::Response);
        for (lro, nic, expected) in [
            ("", &*queues, (request, true)),
            ("flush = \"t50\"", &queues, (request, true)),
            ("flush = \"poll\"", &queues, (response, false)),
            ("at = \"virtual\"", &queues, (response, false)),
            ("meta = \"response\"", &queues, (response, false)),
            (
                "meta = \"request\"\nflush = \"poll\"",
                &queues,
                (request, true),
            ),
            ("", &segments, (response, false)),
            ("", sim, (response, false)),
            ("meta = \"request\"", sim, (request, false)),
        ] {
            let config = driver_config(&text(lro, nic));
            assert_eq!(response_layout(&config), expected, "{lro} {nic}");
        }
    }
}
