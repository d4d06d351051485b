//! Control rings of guests: maps and binds them, and serves them between the driver's turns.

use crate::dev::{
    CopySegment, Evtchn, EvtchnPort, ForeignWindow, Gntdev, GrantedRange, Mapped, PageRights,
};
use crate::netif::control::{ControlRing, ReadGranted, TakenRequest};
use crate::netif::features::ControlPage;
use abi::{ConnId, GrantStatus};
use driver::vifs::hashing::Hashing;
use shmem::Span;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use vif::ring::{Format, GrantedRingPages};

/// The owner of a control ring, and what its requests change.
#[derive(Debug)]
pub struct ControlOwner {
    /// The guest.
    pub domain: u16,
    /// Number of queues of its interface.
    pub queues: u32,
    /// Its flow steering.
    pub hashing: Hashing,
    /// The last request taken from the ring.
    pub taken: TakenRequest,
}

/// Memory for a control ring and for bytes that the guest passes.
#[derive(Clone, Copy, Debug)]
pub struct ControlMemory {
    /// A page.
    pub window: ForeignWindow,
    /// A page of this process that nothing else uses.
    pub staging: Span,
}

/// All control rings.
#[derive(Debug, Default)]
pub struct ControlRings(RefCell<BTreeMap<u32, BoundControlRing>>);

impl ControlRings {
    /// Begins to serve the control ring of an interface.
    ///
    /// # Errors
    ///
    /// Returns the reason as text, for the log, if the guest has not granted the ring or offered
    /// the event channel that its nodes name.
    pub fn open(
        &self,
        conn: ConnId,
        page: ControlPage,
        of: ControlOwner,
        room: ControlMemory,
        gntdev: &Rc<Gntdev>,
        evtchn: &Rc<Evtchn>,
    ) -> Result<(), String> {
        let domain = of.domain;
        let grefs = std::iter::once(page.ring);
        let map = gntdev.map(domain, grefs, room.window, PageRights::ReadWrite);
        let map = map.map_err(|why| {
            format!("the control ring of domain {domain} cannot be mapped: {why}")
        })?;
        let pages = GrantedRingPages::new(Format::Xen, &[map.span()], Span::EMPTY);
        let pages = pages.map_err(|why| why.to_string())?;
        let port = evtchn.bind(domain, page.port).map_err(|why| {
            format!("the control ring's event channel of domain {domain} cannot be bound: {why}")
        })?;
        let mut bound = BoundControlRing {
            ring: ControlRing::new(pages, of.taken),
            port,
            granted: GrantedRing {
                gntdev: Rc::clone(gntdev),
                domain,
                staging: room.staging,
            },
            of,
            _map: map,
        };
        // The previous process may have exited after publishing an answer and before notifying the
        // guest, and no later event would repeat that notification.
        bound.port.notify();
        bound.serve();
        self.0.borrow_mut().insert(conn.0, bound);
        Ok(())
    }

    /// Ends an interface's control ring.
    pub fn end(&self, conn: ConnId) {
        self.0.borrow_mut().remove(&conn.0);
    }

    /// Returns whether a request is pending in any control ring.
    pub fn have_work(&self) -> bool {
        self.0.borrow().values().any(|bound| bound.ring.has_work())
    }

    /// Serves all pending requests.
    pub fn serve(&self) {
        for bound in self.0.borrow_mut().values_mut() {
            if bound.ring.has_work() {
                bound.serve();
            }
        }
    }
}

/// A mapped and bound control ring.
#[derive(Debug)]
struct BoundControlRing {
    ring: ControlRing,
    port: EvtchnPort,
    granted: GrantedRing,
    of: ControlOwner,
    /// The mapping of the ring, which lasts as long as this value.
    _map: Mapped,
}

impl BoundControlRing {
    fn serve(&mut self) {
        let ControlOwner {
            hashing, queues, ..
        } = self.of;
        if self.ring.serve(hashing, queues, &self.granted) {
            self.port.notify();
        }
    }
}

/// Read access to pages that one guest has granted.
#[derive(Debug)]
struct GrantedRing {
    gntdev: Rc<Gntdev>,
    domain: u16,
    staging: Span,
}

impl ReadGranted for GrantedRing {
    fn fetch(&self, gref: u32, bytes: &mut [u8]) -> bool {
        let from = GrantedRange {
            domain: self.domain,
            gref,
            offset: 0,
        };
        let to = self.staging.sub(0, bytes.len());
        let segment = to.and_then(|to| CopySegment::to_local(from, to));
        let (Some(to), Some(segment)) = (to, segment) else {
            return false;
        };
        let mut segments = [segment];
        self.gntdev.copy(&mut segments);
        let [segment] = segments;
        segment.copied().status() == GrantStatus::Okay && to.read(bytes).is_ok()
    }
}
