//! Xen as the driver sees it: connections in the xenstore, doorbells that are event channels,
//! guests that come and go.
//!
//! A stock frontend grants no page for the words of an event channel (RING-11 to RING-13), so each
//! interface has one of this domain's own. The frontend's end of it always says that it sleeps:
//! each notification rings, and how many there are the rings' event indices decide alone, as
//! Xen's protocol has it.

use crate::dev::{Evtchn, Gntdev, Mapped, Port, Window};
use crate::grants::{GrantCopy, Staging};
use crate::interfaces::{INTERFACES_MAX, Interface, Interfaces, News};
use crate::journals::{Connection, Journals};
use crate::netif::features::offered;
use crate::store::XenBus;
use abi::{ConnId, DomId, PAGE, XenbusState};
use config::domain::{Offloads, VifConfig};
use driver::guests::{Change, Guests};
use driver::vifs::memory::{Mechanism, Opened, Reach};
use runtime::ledger::Ledger;
use runtime::platform::{Doorbell, NO_RECORD, Peer, Platform, Record};
use shmem::{Area, Span};
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use vif::events::WORD_STRIDE;
use vif::netif::{BackRecord, FrontRecord};

/// Rings of an interface, of a page each.
const RINGS: usize = 2;
/// The word of an event channel that says that the frontend sleeps.
const FRONT_ARMED: usize = 3 * WORD_STRIDE;

/// Xen, for one driver domain.
#[derive(Debug)]
pub struct Xen {
    interfaces: RefCell<Interfaces<XenBus>>,
    journals: RefCell<Journals>,
    gntdev: Rc<Gntdev>,
    evtchn: Rc<Evtchn>,
    /// Where rings appear, two pages a connection.
    window: Window,
    /// By connection.
    places: RefCell<Vec<Place>>,
    /// By number, until they are attached.
    devices: RefCell<Vec<Option<OwnedFd>>>,
    /// Nothing appears there: rings lie in a window of this module's.
    nowhere: Area,
    offloads: Offloads,
}

/// What a connection keeps from one guest to the next.
#[derive(Clone, Debug)]
struct Place {
    staging: Staging,
    bell: Rc<Bell>,
}

/// How a frontend is notified.
#[derive(Debug)]
struct Bell {
    /// The words of the event channel.
    words: Span,
    port: RefCell<Option<Port>>,
}

impl Bell {
    fn ring(&self) {
        // Notifying took it away.
        let _ = self.words.store_u32(FRONT_ARMED, 1);
        if let Some(port) = &*self.port.borrow() {
            port.notify();
        }
    }
}

/// The doorbell of one connection.
#[derive(Debug)]
struct XenDoorbell(Rc<Bell>);

impl Doorbell for XenDoorbell {
    fn ring(&self) {
        self.0.ring();
    }
}

impl Xen {
    /// The domain that this process runs in, whose guests are offered at most `offloads`.
    /// `devices` are what it attaches.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(
        interfaces: Interfaces<XenBus>,
        journals: Journals,
        gntdev: Gntdev,
        evtchn: Rc<Evtchn>,
        devices: Vec<OwnedFd>,
        offloads: Offloads,
    ) -> io::Result<Self> {
        Ok(Self {
            interfaces: RefCell::new(interfaces),
            journals: RefCell::new(journals),
            gntdev: Rc::new(gntdev),
            evtchn,
            window: Window::new(INTERFACES_MAX * RINGS)?,
            places: RefCell::default(),
            devices: RefCell::new(devices.into_iter().map(Some).collect()),
            nowhere: Area::anonymous(PAGE)?,
            offloads,
        })
    }

    /// Whether guests have come or gone that [`Guests::changes`] has not told about.
    pub(crate) fn has_news(&self) -> bool {
        self.interfaces.borrow().has_news()
    }

    /// What connection `conn` keeps.
    fn place(&self, conn: ConnId) -> io::Result<Place> {
        let mut places = self.places.borrow_mut();
        let number = conn.0 as usize;
        while places.len() <= number {
            places.push(Place {
                staging: Staging::new()?,
                bell: Rc::new(Bell {
                    words: Area::anonymous(PAGE)?.span(),
                    port: RefCell::new(None),
                }),
            });
        }
        let place = places.get(number).cloned();
        place.ok_or_else(|| io::ErrorKind::NotFound.into())
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
        Ok(Box::new(XenDoorbell(self.place(conn)?.bell)))
    }

    fn window(&self) -> Area {
        self.nowhere
    }

    fn attach(&self, device: u32) -> io::Result<OwnedFd> {
        let mut devices = self.devices.borrow_mut();
        let device = devices.get_mut(device as usize).and_then(Option::take);
        device.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn tell_all(&self, _: u32, all: &[[u64; 2]]) -> Vec<io::Result<u64>> {
        let refused = || Err(io::ErrorKind::Unsupported.into());
        all.iter().map(|_| refused()).collect()
    }

    fn end(&self, _: u32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn ready(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The guests of a driver domain.
#[derive(Debug)]
pub struct XenGuests(pub Rc<Xen>);

impl Guests for XenGuests {
    fn changes(&mut self) -> Vec<Change> {
        let mut interfaces = self.0.interfaces.borrow_mut();
        if let Err(error) = interfaces.look() {
            eprintln!("{error}");
        }
        let mut changes = Vec::new();
        while let Some(news) = interfaces.news() {
            match news {
                News::Gone(conn) => changes.push(Change::Gone(conn)),
                News::Came(conn) => {
                    let Some(served) = interfaces.get(conn) else {
                        continue;
                    };
                    changes.push(Change::Came {
                        vif: Box::new(vif_config(conn, served)),
                        reach: Box::new(XenReach {
                            xen: Rc::clone(&self.0),
                            conn,
                        }),
                    });
                }
            }
        }
        changes
    }

    fn refused(&mut self, conn: ConnId, why: &str) {
        if let Err(error) = self.0.interfaces.borrow_mut().refuse(conn, why) {
            eprintln!("{error}");
        }
    }

    fn reach(&self, _: &VifConfig) -> Result<Box<dyn Reach>, String> {
        Err("guests come by the xenstore".into())
    }
}

/// An interface as the driver has it in its configuration.
fn vif_config(conn: ConnId, served: &Interface) -> VifConfig {
    let name = format!("{}.{}", served.key.domain, served.key.device);
    VifConfig {
        addresses: served.settings.addresses.clone(),
        rate_mbps: served.settings.rate_mbps,
        ..VifConfig::new(conn.0, name, served.settings.mac)
    }
}

/// How one guest's memory is reached.
#[derive(Debug)]
struct XenReach {
    xen: Rc<Xen>,
    conn: ConnId,
}

impl XenReach {
    /// The pages of both rings, mapped.
    fn map(&self, domain: u16, front: &FrontRecord) -> io::Result<Vec<Mapped>> {
        let first = self.conn.0 as usize * RINGS;
        let grefs = front.tx_ring.iter().chain(&front.rx_ring);
        let places = (first..first + RINGS).map(|at| self.xen.window.part(at, 1));
        grefs
            .zip(places)
            .map(|(gref, place)| {
                let place = place.ok_or(io::ErrorKind::OutOfMemory)?;
                self.xen.gntdev.map(domain, gref.0, place)
            })
            .collect()
    }
}

impl Reach for XenReach {
    fn record(&self, _: bool) -> BackRecord {
        offered(self.xen.offloads)
    }

    fn open(
        &mut self,
        peer: &Peer,
        front: &FrontRecord,
        ledger: &Rc<Ledger>,
    ) -> Result<Opened, String> {
        let xen = &self.xen;
        let (key, port, resumes) = {
            let interfaces = xen.interfaces.borrow();
            let served = interfaces
                .get(self.conn)
                .ok_or("the interface is no more")?;
            let chosen = served
                .chosen
                .as_ref()
                .ok_or("the guest has chosen nothing")?;
            (served.key, chosen.port, served.resumes)
        };
        let domain = peer.domain.0;
        let maps = self.map(domain, front);
        let maps =
            maps.map_err(|why| format!("a ring of domain {domain} cannot be mapped: {why}"))?;
        let place = xen.place(self.conn).map_err(|why| why.to_string())?;
        let channel = xen.evtchn.bind(domain, port).map_err(|why| {
            format!("the event channel of domain {domain}, port {port}, cannot be bound: {why}")
        })?;
        let bell = place.bell;
        let words = bell.words;
        words.fill(0).map_err(|_| "out of memory")?;
        bell.port.replace(Some(channel));
        let mut rings = front.references();
        let connection = Connection {
            key,
            rings: [rings.next(), rings.next()].map(|gref| gref.map_or(0, |gref| gref.0)),
            port,
        };
        drop(rings);
        let begun = xen.journals.borrow_mut().begin(connection, resumes);
        let (cell, journals) = begun.ok_or("there is no journal left")?;
        // The end of the one before may have been between showing responses and telling of them.
        bell.ring();
        let rings = maps.iter().map(Mapped::span);
        let pages = rings.chain([words]).collect();
        let gntdev = Rc::clone(&xen.gntdev);
        let mechanism = GrantCopy::new(gntdev, domain, place.staging, Rc::clone(ledger));
        Ok(Opened {
            mechanism: Mechanism(Box::new(mechanism)),
            pages,
            held: Box::new(Held {
                xen: Rc::clone(xen),
                bell,
                cell,
                _maps: maps,
            }),
            journals: Some(journals),
        })
    }
}

/// What ends with a connection.
#[derive(Debug)]
struct Held {
    xen: Rc<Xen>,
    bell: Rc<Bell>,
    cell: usize,
    _maps: Vec<Mapped>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.bell.port.replace(None);
        self.xen.journals.borrow_mut().end(self.cell);
    }
}
