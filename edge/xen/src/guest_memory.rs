//! Access to one guest's memory: for each queue, maps the rings, binds the event channels and finds
//! the journals.

use crate::control_rings::ControlOwner;
use crate::dev::{ForeignWindow, Mapped, PageRights};
use crate::grants::{GrantCopy, GrantMap};
use crate::interfaces::InterfaceId;
use crate::journals::ConnectionId;
use crate::netif::control::TakenRequest;
use crate::netif::features::{FrontendChoice, FrontendQueue, QUEUES_MAX, backend_offer};
use crate::platform::{QueueResourceList, RINGS, Xen};
use abi::{ConnId, GrantRef};
use driver::vifs::hashing::Hashing;
use driver::vifs::memory::{GuestAccess, OpenedMemory, OpenedQueue};
use runtime::ledger::Ledger;
use runtime::platform::PeerEnd;
use shmem::Span;
use std::io;
use std::rc::Rc;
use vif::events::NotifiedRings;
use vif::grants::GrantMechanism;
use vif::netback::ACCESSES_MAX;
use vif::netif::{BackRecord, FrontRecord};

/// Access to one guest's memory.
#[derive(Debug)]
pub struct XenGuestAccess {
    /// This domain.
    pub xen: Rc<Xen>,
    /// The guest's interface.
    pub conn: ConnId,
}

impl XenGuestAccess {
    /// Maps the pages of both rings of queue `number`.
    fn map(&self, domain: u16, number: usize, queue: &FrontendQueue) -> io::Result<Vec<Mapped>> {
        let first = (self.conn.0 as usize * QUEUES_MAX + number) * RINGS;
        let places = (first..first + RINGS).map(|at| self.xen.window.part(at, 1));
        let rings = queue.rings.iter().zip(places);
        let map = |(gref, place): (&GrantRef, Option<ForeignWindow>)| {
            let place = place.ok_or(io::ErrorKind::OutOfMemory)?;
            let grefs = std::iter::once(*gref);
            self.xen
                .gntdev
                .map(domain, grefs, place, PageRights::ReadWrite)
        };
        rings.map(map).collect()
    }

    /// Opens queue `number`. Adds everything that must be released with the queue to `held`, even
    /// on failure.
    fn open_queue(
        &self,
        of: &Connecting,
        number: usize,
        queue: &FrontendQueue,
        ledger: &Rc<Ledger>,
        held: &mut ConnectionResources,
    ) -> Result<OpenedQueue, String> {
        let (xen, domain) = (&self.xen, of.key.domain);
        let maps = self.map(domain, number, queue);
        let maps =
            maps.map_err(|why| format!("a ring of domain {domain} cannot be mapped: {why}"))?;
        let places = Rc::clone(&held.places);
        let place = places.get(number).ok_or("out of queues")?;
        let words = place.notifier.connect(&xen.evtchn, domain, queue.ports)?;
        let connection = ConnectionId {
            key: of.key,
            queue: number as u32,
            rings: queue.rings.map(|gref| gref.0),
            ports: queue.ports,
        };
        let begun = xen.journals.borrow_mut().begin(connection, of.resumes);
        let kept = begun.ok_or("no journal is free")?;
        held.cells.push(kept.cell);
        if number == 0 {
            held.chosen = Some((kept.hashing, kept.request));
        }
        place.groups.set((number == 0).then_some(kept.groups));
        // The previous process may have exited after publishing responses and before notifying the
        // guest.
        place.notifier.ring(NotifiedRings::BOTH);
        let rings = maps.iter().map(Mapped::span);
        let ring_pages = rings.chain([words]).collect();
        held.maps.extend(maps);
        let gntdev = Rc::clone(&xen.gntdev);
        let mapped = xen.mapped_pages.map_or(Span::EMPTY, ForeignWindow::span);
        let copy = GrantCopy::new(gntdev, domain, place.staging, mapped, Rc::clone(ledger));
        let pages = (self.conn.0 as usize * QUEUES_MAX + number) * ACCESSES_MAX;
        let window = xen.mapped_pages.map(|all| all.part(pages, ACCESSES_MAX));
        let mechanism: Box<dyn GrantMechanism> = match window {
            None => Box::new(copy),
            Some(window) => Box::new(GrantMap::new(copy, window.ok_or("out of queues")?)),
        };
        Ok(OpenedQueue {
            mechanism,
            pages: ring_pages,
            journals: Some(kept.journals),
        })
    }

    /// Serves the control ring, if the guest has one.
    fn open_control_ring(
        &self,
        of: &Connecting,
        chosen: &FrontendChoice,
        held: &ConnectionResources,
    ) -> Result<(), String> {
        let Some((page, (hashing, taken))) = chosen.control.zip(held.chosen) else {
            return Ok(());
        };
        let xen = &self.xen;
        let owner = ControlOwner {
            domain: of.key.domain,
            queues: chosen.queues.len() as u32,
            hashing,
            taken,
        };
        let room = xen.control_memory(self.conn).ok_or("out of memory")?;
        let rings = &xen.control_rings;
        rings.open(self.conn, page, owner, room, &xen.gntdev, &xen.evtchn)
    }
}

/// An interface that is about to be connected.
struct Connecting {
    key: InterfaceId,
    resumes: bool,
    /// Whether its guest receives only the groups that it has requested.
    chooses_groups: bool,
}

impl GuestAccess for XenGuestAccess {
    fn record(&self, _: bool) -> BackRecord {
        backend_offer(self.xen.offloads)
    }

    fn open(
        &mut self,
        _: &PeerEnd,
        _: &FrontRecord,
        ledger: &Rc<Ledger>,
    ) -> Result<OpenedMemory, String> {
        let (of, chosen) = {
            let interfaces = self.xen.interfaces.borrow();
            let served = interfaces
                .get(self.conn)
                .ok_or("the interface no longer exists")?;
            let chosen = served
                .chosen
                .as_ref()
                .ok_or("the guest has written no nodes to the xenstore")?;
            let of = Connecting {
                key: served.key,
                resumes: served.resumes,
                chooses_groups: served.chooses_groups,
            };
            (of, chosen.clone())
        };
        let mut held = ConnectionResources {
            xen: Rc::clone(&self.xen),
            places: self
                .xen
                .queue_resources(self.conn)
                .map_err(|why| why.to_string())?,
            conn: self.conn,
            chosen: None,
            cells: Vec::new(),
            maps: Vec::new(),
        };
        let opened = (0..)
            .zip(&chosen.queues)
            .map(|(number, queue)| self.open_queue(&of, number, queue, ledger, &mut held));
        let mut opened = opened.collect::<Result<Vec<_>, _>>()?.into_iter();
        let groups = held.places.first().and_then(|place| place.groups.get());
        if let Some(groups) = groups {
            groups.apply(of.chooses_groups);
        }
        let hashing = held.chosen.map(|(hashing, _)| hashing);
        self.open_control_ring(&of, &chosen, &held)?;
        Ok(OpenedMemory {
            first: opened.next().ok_or("the guest has no queue")?,
            others: opened.collect(),
            groups,
            hashing,
            held: Box::new(held),
        })
    }
}

/// Resources that end with a connection.
#[derive(Debug)]
struct ConnectionResources {
    xen: Rc<Xen>,
    conn: ConnId,
    /// The stored flow steering of the guest, and the last request of its control ring.
    chosen: Option<(Hashing, TakenRequest)>,
    places: QueueResourceList,
    cells: Vec<usize>,
    maps: Vec<Mapped>,
}

impl Drop for ConnectionResources {
    fn drop(&mut self) {
        self.xen.control_rings.end(self.conn);
        self.maps.clear();
        for place in self.places.iter() {
            place.notifier.disconnect();
            place.groups.set(None);
        }
        let mut journals = self.xen.journals.borrow_mut();
        self.cells.iter().for_each(|cell| journals.end(*cell));
    }
}
