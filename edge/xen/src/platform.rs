//! Xen as the driver sees it: connections in the xenstore, doorbells that are event channels.

use crate::bells::Bell;
use crate::control_rings::{ControlRings, Room};
use crate::dev::{Evtchn, Gntdev, Window};
use crate::devices::Devices;
use crate::grants::Staging;
use crate::interfaces::{INTERFACES_MAX, Interfaces};
use crate::journals::Journals;
use crate::netif::features::QUEUES_MAX;
use crate::store::XenBus;
use crate::tally::Tally;
use abi::{ConnId, DomId, PAGE, XenbusState};
use config::domain::{DriverConfig, GrantMode, Offloads};
use runtime::platform::{Asked, Doorbell, NO_RECORD, Peer, Platform, Record};
use shmem::{Area, Span};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use vif::events::Rings;
use vif::netback::{ACCESSES_MAX, Groups};
use vif::netif::BackRecord;

/// Rings of a queue, of a page each.
pub(crate) const RINGS: usize = 2;

/// Xen, for one driver domain.
#[derive(Debug)]
pub struct Xen {
    pub(crate) interfaces: RefCell<Interfaces<XenBus>>,
    pub(crate) journals: RefCell<Journals>,
    pub(crate) gntdev: Rc<Gntdev>,
    pub(crate) evtchn: Rc<Evtchn>,
    tally: Arc<Tally>,
    /// Where rings appear: two pages a queue, [`QUEUES_MAX`] queues a connection.
    pub(crate) window: Window,
    /// Where pages that guests send appear, if they are mapped: [`ACCESSES_MAX`] a queue, as above.
    pub(crate) mapped_pages: Option<Window>,
    /// Of those guests that have one; behind the other rings' pages each connection has one more.
    pub(crate) control_rings: ControlRings,
    /// By connection.
    places: RefCell<Vec<Places>>,
    devices: Devices,
    pub(crate) offloads: Offloads,
}

/// What a connection keeps from one guest to the next, by queue.
pub(crate) type Places = Rc<[Place]>;

/// What a queue keeps.
#[derive(Debug)]
pub(crate) struct Place {
    /// Bytes of the guest's go through it that its control ring speaks of.
    control: Span,
    /// What the guest hears, while this queue is its first.
    pub(crate) groups: Cell<Option<Groups>>,
    pub(crate) staging: Staging,
    pub(crate) bell: Bell,
}

/// The doorbell of one connection.
#[derive(Debug)]
struct XenDoorbell(Places);

impl Doorbell for XenDoorbell {
    fn ring(&self) {
        self.0.iter().for_each(|place| place.bell.ring(Rings::BOTH));
    }

    fn ring_for(&self, queue: usize, rings: Rings) {
        if let Some(place) = self.0.get(queue) {
            place.bell.ring(rings);
        }
    }
}

impl Xen {
    /// The domain that this process runs in, whose guests are served as `config` says.
    /// `devices` are what it attaches; `tally` is what both of Xen's devices count in.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(
        interfaces: Interfaces<XenBus>,
        journals: Journals,
        gntdev: Gntdev,
        evtchn: Rc<Evtchn>,
        tally: Arc<Tally>,
        devices: Devices,
        config: &DriverConfig,
    ) -> io::Result<Self> {
        let maps = config.grants == GrantMode::Map;
        let queues = INTERFACES_MAX * QUEUES_MAX;
        let mapped_pages = maps.then(|| Window::new(queues * ACCESSES_MAX));
        Ok(Self {
            interfaces: RefCell::new(interfaces),
            journals: RefCell::new(journals),
            gntdev: Rc::new(gntdev),
            evtchn,
            tally,
            window: Window::new(INTERFACES_MAX * (QUEUES_MAX * RINGS + 1))?,
            mapped_pages: mapped_pages.transpose()?,
            control_rings: ControlRings::default(),
            places: RefCell::default(),
            devices,
            offloads: config.offloads,
        })
    }

    /// Whether guests have come or gone that [`Guests::changes`] has not told about.
    pub(crate) fn has_news(&self) -> bool {
        self.interfaces.borrow().has_news()
    }

    /// Where the control ring of a connection appears.
    pub(crate) fn control_room(&self, conn: ConnId) -> Option<Room> {
        let page = INTERFACES_MAX * QUEUES_MAX * RINGS + conn.0 as usize;
        let places = self.places.borrow();
        Some(Room {
            window: self.window.part(page, 1)?,
            staging: places.get(conn.0 as usize)?.first()?.control,
        })
    }

    /// Guests have their choice of groups applied as they want it now.
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

    /// What the queues of connection `conn` keep.
    pub(crate) fn places(&self, conn: ConnId) -> io::Result<Places> {
        let mut places = self.places.borrow_mut();
        let number = conn.0 as usize;
        while places.len() <= number {
            let place = |_| {
                Ok(Place {
                    control: Area::anonymous(PAGE)?.span(),
                    groups: Cell::new(None),
                    staging: Staging::new()?,
                    bell: Bell::new()?,
                })
            };
            places.push((0..QUEUES_MAX).map(place).collect::<io::Result<_>>()?);
        }
        let places = places.get(number).cloned();
        places.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Platform for Xen {
    fn peer(&self, conn: ConnId) -> io::Result<Option<Peer>> {
        let mut interfaces = self.interfaces.borrow_mut();
        let Some(state) = interfaces.shown(conn) else {
            return Ok(None);
        };
        let Some(served) = interfaces.get(conn) else {
            return Ok(None);
        };
        let domain = DomId(served.key.domain);
        let mut peer = Peer {
            domain,
            state,
            record: NO_RECORD,
        };
        if state == XenbusState::Initialised {
            match interfaces.choose(conn) {
                Ok(Some(chosen)) => peer.record = chosen.record.encode(),
                Ok(None) => return Ok(None),
                // The path refuses a record of zeros; people want to know what was wrong.
                Err(error) => eprintln!("domain {domain}: {error}"),
            }
        }
        Ok(Some(peer))
    }

    fn set_state(&self, conn: ConnId, state: XenbusState, record: &Record) -> io::Result<()> {
        let offer = BackRecord::decode(record).ok();
        let mut interfaces = self.interfaces.borrow_mut();
        let set = interfaces.set(conn, state, offer.as_ref());
        set.map_err(io::Error::other)
    }

    fn doorbell(&self, conn: ConnId) -> io::Result<Box<dyn Doorbell>> {
        Ok(Box::new(XenDoorbell(self.places(conn)?)))
    }

    /// Guests' rings lie in a window of this module's; here are those of NICs.
    fn window(&self) -> Area {
        self.devices.rings()
    }

    fn attach(&self, device: u32) -> io::Result<OwnedFd> {
        self.devices.attach(device)
    }

    fn tell_all(&self, device: u32, all: &[[u64; 2]]) -> Vec<io::Result<u64>> {
        let tell = |words: &[u64; 2]| self.devices.tell(device, *words);
        all.iter().map(tell).collect()
    }

    fn asked(&self) -> Vec<Asked> {
        self.tally.asked().collect()
    }

    fn end(&self, _: u32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
