//! Xen as the driver's platform: connections in the xenstore, event channels as doorbells.

use crate::control_rings::{ControlMemory, ControlRings};
use crate::dev::{Evtchn, ForeignWindow, Gntdev};
use crate::devices::XenDevices;
use crate::grants::Staging;
use crate::hypercall_counters::HypercallCounters;
use crate::interfaces::{INTERFACES_MAX, Interfaces};
use crate::journals::Journals;
use crate::netif::features::QUEUES_MAX;
use crate::notifications::ChannelNotifier;
use crate::store::XenBus;
use abi::{ConnId, DomId, PAGE, XenbusState};
use config::domain::{DriverConfig, GrantMode, Offloads};
use runtime::platform::{ConnectRecord, Doorbell, HypercallCount, NO_RECORD, PeerEnd, Platform};
use shmem::time::monotonic_ns;
use shmem::{Area, Span};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use vif::events::NotifiedRings;
use vif::netback::{ACCESSES_MAX, MulticastFilter};
use vif::netif::BackRecord;

/// Number of rings of a queue, each of one page.
pub(crate) const RINGS: usize = 2;

/// Xen, for one driver domain.
#[derive(Debug)]
pub struct Xen {
    pub(crate) interfaces: RefCell<Interfaces<XenBus>>,
    pub(crate) journals: RefCell<Journals>,
    pub(crate) gntdev: Rc<Gntdev>,
    pub(crate) evtchn: Rc<Evtchn>,
    tally: Arc<HypercallCounters>,
    /// Window of rings: two pages per queue, [`QUEUES_MAX`] queues per connection.
    pub(crate) window: ForeignWindow,
    /// Window of mapped pages of guests, if they are mapped: [`ACCESSES_MAX`] per queue, as above.
    pub(crate) mapped_pages: Option<ForeignWindow>,
    /// Control rings of guests. Each connection's part of `window` has one more page for its
    /// control ring, behind the pages of the other rings.
    pub(crate) control_rings: ControlRings,
    /// By connection.
    places: RefCell<Vec<QueueResourceList>>,
    devices: XenDevices,
    pub(crate) offloads: Offloads,
}

/// Resources that a connection reuses from one guest to the next, by queue.
pub(crate) type QueueResourceList = Rc<[QueueResources]>;

/// Resources of a queue.
#[derive(Debug)]
pub(crate) struct QueueResources {
    /// Memory for bytes that the guest passes by its control ring.
    control: Span,
    /// The guest's multicast groups, if this is its first queue.
    pub(crate) groups: Cell<Option<MulticastFilter>>,
    pub(crate) staging: Staging,
    pub(crate) notifier: ChannelNotifier,
}

/// The doorbell of one connection.
#[derive(Debug)]
struct XenDoorbell(QueueResourceList);

impl Doorbell for XenDoorbell {
    fn ring(&self) {
        self.0
            .iter()
            .for_each(|place| place.notifier.ring(NotifiedRings::BOTH));
    }

    fn ring_for(&self, queue: usize, rings: NotifiedRings) {
        if let Some(place) = self.0.get(queue) {
            place.notifier.ring(rings);
        }
    }
}

impl Xen {
    /// Returns the platform of this process's domain, which serves guests according to `config`.
    /// `devices` are the devices to attach. Both of Xen's devices count in `hypercall_counters`.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is exhausted.
    pub fn new(
        interfaces: Interfaces<XenBus>,
        journals: Journals,
        gntdev: Gntdev,
        evtchn: Rc<Evtchn>,
        tally: Arc<HypercallCounters>,
        devices: XenDevices,
        config: &DriverConfig,
    ) -> io::Result<Self> {
        let maps = config.driver.grants == GrantMode::Map;
        let queues = INTERFACES_MAX * QUEUES_MAX;
        let mapped_pages = maps.then(|| ForeignWindow::new(queues * ACCESSES_MAX));
        Ok(Self {
            interfaces: RefCell::new(interfaces),
            journals: RefCell::new(journals),
            gntdev: Rc::new(gntdev),
            evtchn,
            tally,
            window: ForeignWindow::new(INTERFACES_MAX * (QUEUES_MAX * RINGS + 1))?,
            mapped_pages: mapped_pages.transpose()?,
            control_rings: ControlRings::default(),
            places: RefCell::default(),
            devices,
            offloads: config.driver.offloads,
        })
    }

    /// Returns whether [`Guests::changes`] has unreported changes.
    pub(crate) fn has_changes(&self) -> bool {
        self.interfaces.borrow().has_changes()
    }

    /// Returns the time until the xenstore must be read again even without an event, if it must.
    pub(crate) fn due_in_ns(&self) -> Option<u64> {
        let interfaces = self.interfaces.borrow();
        if interfaces.is_up_to_date() {
            return None;
        }
        let now_ns = monotonic_ns();
        let due = interfaces.due_ns(now_ns);
        due.map(|due| due.saturating_sub(now_ns))
    }

    /// Returns the memory of a connection's control ring.
    pub(crate) fn control_memory(&self, conn: ConnId) -> Option<ControlMemory> {
        let page = INTERFACES_MAX * QUEUES_MAX * RINGS + conn.0 as usize;
        let places = self.places.borrow();
        Some(ControlMemory {
            window: self.window.part(page, 1)?,
            staging: places.get(conn.0 as usize)?.first()?.control,
        })
    }

    /// Applies the guests' current choices of groups.
    pub(crate) fn apply_groups(&self) {
        let places = self.places.borrow();
        for (conn, served) in self.interfaces.borrow().iter() {
            let place = places
                .get(conn.0 as usize)
                .and_then(|places| places.first());
            if let Some(groups) = place.and_then(|place| place.groups.get()) {
                groups.apply(served.chooses_groups);
            }
        }
    }

    /// Returns the resources of the queues of connection `conn`.
    pub(crate) fn queue_resources(&self, conn: ConnId) -> io::Result<QueueResourceList> {
        let mut places = self.places.borrow_mut();
        let number = conn.0 as usize;
        while places.len() <= number {
            let place = |_| {
                Ok(QueueResources {
                    control: Area::anonymous(PAGE)?.span(),
                    groups: Cell::new(None),
                    staging: Staging::new()?,
                    notifier: ChannelNotifier::new()?,
                })
            };
            places.push((0..QUEUES_MAX).map(place).collect::<io::Result<_>>()?);
        }
        let places = places.get(number).cloned();
        places.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Platform for Xen {
    fn peer(&self, conn: ConnId) -> io::Result<Option<PeerEnd>> {
        let mut interfaces = self.interfaces.borrow_mut();
        let Some(state) = interfaces.published_state(conn) else {
            return Ok(None);
        };
        let Some(served) = interfaces.get(conn) else {
            return Ok(None);
        };
        let domain = DomId(served.key.domain);
        let mut peer = PeerEnd {
            domain,
            state,
            record: NO_RECORD,
        };
        if state == XenbusState::Initialised {
            match interfaces.choose(conn) {
                Ok(Some(chosen)) => peer.record = chosen.record.encode(),
                Ok(None) => return Ok(None),
                // The data path rejects a record of zeros; this logs the reason.
                Err(error) => eprintln!("domain {domain}: {error}"),
            }
        }
        Ok(Some(peer))
    }

    fn set_state(
        &self,
        conn: ConnId,
        state: XenbusState,
        record: &ConnectRecord,
    ) -> io::Result<()> {
        let offer = BackRecord::decode(record).ok();
        let mut interfaces = self.interfaces.borrow_mut();
        let set = interfaces.set(conn, state, offer.as_ref());
        set.map_err(io::Error::other)
    }

    fn doorbell(&self, conn: ConnId) -> io::Result<Box<dyn Doorbell>> {
        Ok(Box::new(XenDoorbell(self.queue_resources(conn)?)))
    }

    /// Returns the window of the rings of NICs. Rings of guests are in a window of this module.
    fn window(&self) -> Area {
        self.devices.rings()
    }

    fn attach(&self, device: u32) -> io::Result<OwnedFd> {
        self.devices.attach(device)
    }

    fn device_control_all(&self, device: u32, all: &[[u64; 2]]) -> Vec<io::Result<u64>> {
        let device_control = |words: &[u64; 2]| self.devices.device_control(device, *words);
        all.iter().map(device_control).collect()
    }

    fn hypercall_counts(&self) -> Vec<HypercallCount> {
        self.tally.counts().collect()
    }

    fn end(&self, _: u32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
