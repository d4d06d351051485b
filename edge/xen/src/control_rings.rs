//! Control rings of guests that have one: mapped, bound, answered between the driver's turns.

use crate::dev::{CopySegment, Evtchn, Gntdev, Mapped, PageRights, Port, Remote, Window};
use crate::netif::control::{ControlRing, Fetch, TakenRequest};
use crate::netif::features::ControlPage;
use abi::{ConnId, GrantStatus};
use driver::vifs::hashing::Hashing;
use shmem::Span;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use vif::ring::{Format, Pages};

/// Of whom a control ring is, and what its requests are about.
#[derive(Debug)]
pub struct Owner {
    /// The guest.
    pub domain: u16,
    /// Queues of its interface.
    pub queues: u32,
    /// What it chooses.
    pub hashing: Hashing,
    /// What was taken off the ring last.
    pub taken: TakenRequest,
}

/// Where a control ring appears, and what the guest's bytes go through.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// A page.
    pub window: Window,
    /// A page of ours that nobody else uses.
    pub staging: Span,
}

/// All that there are.
#[derive(Debug, Default)]
pub struct ControlRings(RefCell<BTreeMap<u32, Bound>>);

impl ControlRings {
    /// Begins to serve the control ring of an interface.
    ///
    /// # Errors
    /// The guest does not grant or offer what it has named, for people.
    pub fn open(
        &self,
        conn: ConnId,
        page: ControlPage,
        of: Owner,
        room: Room,
        gntdev: &Rc<Gntdev>,
        evtchn: &Rc<Evtchn>,
    ) -> Result<(), String> {
        let domain = of.domain;
        let grefs = std::iter::once(page.ring);
        let map = gntdev.map(domain, grefs, room.window, PageRights::ReadWrite);
        let map = map.map_err(|why| {
            format!("the control ring of domain {domain} cannot be mapped: {why}")
        })?;
        let pages = Pages::new(Format::Xen, &[map.span()], Span::EMPTY);
        let pages = pages.map_err(|why| why.to_string())?;
        let port = evtchn.bind(domain, page.port).map_err(|why| {
            format!("the control ring's event channel of domain {domain} cannot be bound: {why}")
        })?;
        let mut bound = Bound {
            ring: ControlRing::new(pages, of.taken),
            port,
            granted: Granted {
                gntdev: Rc::clone(gntdev),
                domain,
                staging: room.staging,
            },
            of,
            _map: map,
        };
        // The end of the one before may have been between showing an answer and telling of it, and
        // nobody tells again of what is there already.
        bound.port.notify();
        bound.serve();
        self.0.borrow_mut().insert(conn.0, bound);
        Ok(())
    }

    /// An interface has ended.
    pub fn end(&self, conn: ConnId) {
        self.0.borrow_mut().remove(&conn.0);
    }

    /// Whether any of them has a request.
    pub fn have_work(&self) -> bool {
        self.0.borrow().values().any(|bound| bound.ring.has_work())
    }

    /// Answers what there is.
    pub fn serve(&self) {
        for bound in self.0.borrow_mut().values_mut() {
            if bound.ring.has_work() {
                bound.serve();
            }
        }
    }
}

/// One of them.
#[derive(Debug)]
struct Bound {
    ring: ControlRing,
    port: Port,
    granted: Granted,
    of: Owner,
    /// Unmapped with it.
    _map: Mapped,
}

impl Bound {
    fn serve(&mut self) {
        let Owner {
            hashing, queues, ..
        } = self.of;
        if self.ring.serve(hashing, queues, &self.granted) {
            self.port.notify();
        }
    }
}

/// What one guest has granted.
#[derive(Debug)]
struct Granted {
    gntdev: Rc<Gntdev>,
    domain: u16,
    staging: Span,
}

impl Fetch for Granted {
    fn fetch(&self, gref: u32, bytes: &mut [u8]) -> bool {
        let from = Remote {
            domain: self.domain,
            gref,
            offset: 0,
        };
        let to = self.staging.sub(0, bytes.len());
        let segment = to.and_then(|to| CopySegment::to_us(from, to));
        let (Some(to), Some(segment)) = (to, segment) else {
            return false;
        };
        let mut segments = [segment];
        self.gntdev.copy(&mut segments);
        let [segment] = segments;
        segment.copied().status() == GrantStatus::Okay && to.read(bytes).is_ok()
    }
}
