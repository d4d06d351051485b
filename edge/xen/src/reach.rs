//! How one guest's memory is reached: its rings are mapped, its event channels are bound, its
//! journals are found, all of it for each queue.

use crate::control_rings::Owner;
use crate::dev::{Mapped, PageRights, Window};
use crate::grants::{GrantCopy, GrantMap};
use crate::interfaces::Key;
use crate::journals::Connection;
use crate::netif::control::TakenRequest;
use crate::netif::features::{Chosen, QUEUES_MAX, Queue, offered};
use crate::platform::{Places, RINGS, Xen};
use abi::{ConnId, GrantRef};
use driver::vifs::hashing::Hashing;
use driver::vifs::memory::{Mechanism, Opened, OpenedQueue, Reach};
use runtime::ledger::Ledger;
use runtime::platform::Peer;
use shmem::Span;
use std::io;
use std::rc::Rc;
use vif::events::Rings;
use vif::grants::Grants;
use vif::netback::ACCESSES_MAX;
use vif::netif::{BackRecord, FrontRecord};

/// How one guest's memory is reached.
#[derive(Debug)]
pub struct XenReach {
    /// This domain.
    pub xen: Rc<Xen>,
    /// The guest's interface.
    pub conn: ConnId,
}

impl XenReach {
    /// The pages of both rings of queue `number`, mapped.
    fn map(&self, domain: u16, number: usize, queue: &Queue) -> io::Result<Vec<Mapped>> {
        let first = (self.conn.0 as usize * QUEUES_MAX + number) * RINGS;
        let places = (first..first + RINGS).map(|at| self.xen.window.part(at, 1));
        let rings = queue.rings.iter().zip(places);
        let map = |(gref, place): (&GrantRef, Option<Window>)| {
            let place = place.ok_or(io::ErrorKind::OutOfMemory)?;
            let grefs = std::iter::once(*gref);
            self.xen
                .gntdev
                .map(domain, grefs, place, PageRights::ReadWrite)
        };
        rings.map(map).collect()
    }

    /// Opens queue `number`. What ends with it is in `held`, also if it fails.
    fn open_queue(
        &self,
        of: &Connecting,
        number: usize,
        queue: &Queue,
        ledger: &Rc<Ledger>,
        held: &mut Held,
    ) -> Result<OpenedQueue, String> {
        let (xen, domain) = (&self.xen, of.key.domain);
        let maps = self.map(domain, number, queue);
        let maps =
            maps.map_err(|why| format!("a ring of domain {domain} cannot be mapped: {why}"))?;
        let places = Rc::clone(&held.places);
        let place = places.get(number).ok_or("out of queues")?;
        let words = place.bell.connect(&xen.evtchn, domain, queue.ports)?;
        let connection = Connection {
            key: of.key,
            queue: number as u32,
            rings: queue.rings.map(|gref| gref.0),
            ports: queue.ports,
        };
        let begun = xen.journals.borrow_mut().begin(connection, of.resumes);
        let kept = begun.ok_or("there is no journal left")?;
        held.cells.push(kept.cell);
        if number == 0 {
            held.chosen = Some((kept.hashing, kept.request));
        }
        place.groups.set((number == 0).then_some(kept.groups));
        // The end of the one before may have been between showing responses and telling of them.
        place.bell.ring(Rings::BOTH);
        let rings = maps.iter().map(Mapped::span);
        let ring_pages = rings.chain([words]).collect();
        held.maps.extend(maps);
        let gntdev = Rc::clone(&xen.gntdev);
        let mapped = xen.mapped_pages.map_or(Span::EMPTY, Window::span);
        let copy = GrantCopy::new(gntdev, domain, place.staging, mapped, Rc::clone(ledger));
        let pages = (self.conn.0 as usize * QUEUES_MAX + number) * ACCESSES_MAX;
        let window = xen.mapped_pages.map(|all| all.part(pages, ACCESSES_MAX));
        let mechanism: Box<dyn Grants> = match window {
            None => Box::new(copy),
            Some(window) => Box::new(GrantMap::new(copy, window.ok_or("out of queues")?)),
        };
        Ok(OpenedQueue {
            mechanism: Mechanism(mechanism),
            pages: ring_pages,
            journals: Some(kept.journals),
        })
    }

    /// Serves the control ring, if the guest has one.
    fn open_control_ring(
        &self,
        of: &Connecting,
        chosen: &Chosen,
        held: &Held,
    ) -> Result<(), String> {
        let Some((page, (hashing, taken))) = chosen.control.zip(held.chosen) else {
            return Ok(());
        };
        let xen = &self.xen;
        let owner = Owner {
            domain: of.key.domain,
            queues: chosen.queues.len() as u32,
            hashing,
            taken,
        };
        let room = xen.control_room(self.conn).ok_or("out of memory")?;
        let rings = &xen.control_rings;
        rings.open(self.conn, page, owner, room, &xen.gntdev, &xen.evtchn)
    }
}

/// An interface that is about to be connected.
struct Connecting {
    key: Key,
    resumes: bool,
    /// Whether its guest hears only the groups that it has asked for.
    chooses_groups: bool,
}

impl Reach for XenReach {
    fn record(&self, _: bool) -> BackRecord {
        offered(self.xen.offloads)
    }

    fn open(&mut self, _: &Peer, _: &FrontRecord, ledger: &Rc<Ledger>) -> Result<Opened, String> {
        let (of, chosen) = {
            let interfaces = self.xen.interfaces.borrow();
            let served = interfaces
                .get(self.conn)
                .ok_or("the interface is no more")?;
            let chosen = served
                .chosen
                .as_ref()
                .ok_or("the guest has chosen nothing")?;
            let of = Connecting {
                key: served.key,
                resumes: served.resumes,
                chooses_groups: served.chooses_groups,
            };
            (of, chosen.clone())
        };
        let mut held = Held {
            xen: Rc::clone(&self.xen),
            places: self.xen.places(self.conn).map_err(|why| why.to_string())?,
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
        Ok(Opened {
            first: opened.next().ok_or("the guest has no queue")?,
            others: opened.collect(),
            groups,
            hashing,
            held: Box::new(held),
        })
    }
}

/// What ends with a connection.
#[derive(Debug)]
struct Held {
    xen: Rc<Xen>,
    conn: ConnId,
    /// What is kept of its guest's choice of queues.
    chosen: Option<(Hashing, TakenRequest)>,
    places: Places,
    cells: Vec<usize>,
    maps: Vec<Mapped>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.xen.control_rings.end(self.conn);
        self.maps.clear();
        for place in self.places.iter() {
            place.bell.disconnect();
            place.groups.set(None);
        }
        let mut journals = self.xen.journals.borrow_mut();
        self.cells.iter().for_each(|cell| journals.end(*cell));
    }
}
