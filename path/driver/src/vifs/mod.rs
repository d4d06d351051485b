//! Ports that are guests: what one is. Its hand-shake (`handshake`) makes and ends the link, over
//! which its frames (`data`) go, by one queue or by several (`queues`); which of them, the guest
//! may choose ([`hashing`]).

mod data;
mod handshake;
pub mod hashing;
pub mod memory;
mod queues;

use crate::dedicated::queue::DedicatedQueue;
use crate::egress_queue::EgressQueue;
use crate::room::Room;
use crate::traffic::Traffic;
use abi::{ConnId, DomId, XenbusState};
use config::domain::VifConfig;
use memory::Reach;
use nic::Caps;
use queues::GuestQueues;
use runtime::ledger::Ledger;
use runtime::platform::{Doorbell, Platform};
use std::net::IpAddr;
use std::rc::Rc;
use vif::Counters;

/// One guest's port.
#[derive(Debug)]
pub struct VifPort {
    /// Its name, for people.
    pub name: String,
    /// What it has done.
    pub traffic: Traffic,
    /// Frames for it that came while it was not connected.
    pub not_connected: u64,
    /// Frames for it that wait, and its limit.
    pub egress: EgressQueue,
    /// What ended the connection before, for people; empty: nothing did.
    pub trouble: String,
    conn: ConnId,
    mac: [u8; 6],
    platform: Rc<dyn Platform>,
    ledger: Rc<Ledger>,
    reach: Box<dyn Reach>,
    state: XenbusState,
    /// Whether its guest was dead at the last look.
    is_abandoned: bool,
    doorbell: Option<Box<dyn Doorbell>>,
    /// Whose doorbell that is.
    frontend: Option<DomId>,
    link: Option<Link>,
    /// What links before this one have counted.
    past: Counters,
    room: Room,
    /// Its dedicated queue of a wire, if it has one.
    pub queue: Option<DedicatedQueue>,
    /// Addresses that others are told of when it is connected.
    pub announced: Vec<IpAddr>,
    /// Whether anything was done since the rings were last published.
    touched: bool,
}

/// What exists while the guest is connected.
struct Link {
    queues: GuestQueues,
    /// Dropped after the netbacks: fields go in this order.
    held: Box<dyn std::fmt::Debug>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

/// What the port of an interface is called.
pub(crate) fn port_name(vif: &VifConfig) -> String {
    format!("vif.{}", vif.name)
}

impl VifPort {
    /// A port for a guest's interface, whose memory is within `reach`.
    #[must_use]
    pub fn new(
        vif: &VifConfig,
        platform: Rc<dyn Platform>,
        ledger: Rc<Ledger>,
        reach: Box<dyn Reach>,
    ) -> Self {
        let mut egress = EgressQueue::default();
        egress.set(vif.to_guest.as_ref());
        Self {
            name: port_name(vif),
            traffic: Traffic::default(),
            not_connected: 0,
            egress,
            trouble: String::new(),
            conn: ConnId(vif.conn),
            mac: vif.mac,
            platform,
            ledger,
            reach,
            state: XenbusState::Initialising,
            is_abandoned: false,
            doorbell: None,
            frontend: None,
            link: None,
            past: Counters::default(),
            room: Room::default(),
            queue: None,
            announced: match vif.announces {
                true => vif.addresses.clone(),
                false => Vec::new(),
            },
            touched: false,
        }
    }

    /// Its connection.
    #[must_use]
    pub fn conn(&self) -> ConnId {
        self.conn
    }

    /// The guest's station address.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> XenbusState {
        self.state
    }

    /// Whether its guest is not connected, and may come.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.state != XenbusState::Connected && !self.is_abandoned
    }

    /// What was counted on all its links.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut all = self.past;
        if let Some(link) = &self.link {
            all += link.queues.counters();
        }
        all
    }

    /// Frames that were made of larger ones because the guest had too little room for these.
    #[must_use]
    pub fn split(&self) -> u64 {
        self.room.split
    }

    /// What the guest takes; none while it is not connected.
    #[must_use]
    pub fn caps(&self) -> Option<Caps> {
        let peer = self.link.as_ref()?.queues.first().peer();
        Some(Caps {
            checksum: peer.csum && peer.ipv6_csum,
            tso: peer.gso_tcpv4 && peer.gso_tcpv6,
            max_frame: vif::netif::MAX_PACKET,
        })
    }

    /// The ledger of this port's domain.
    #[must_use]
    pub fn ledger(&self) -> Rc<Ledger> {
        Rc::clone(&self.ledger)
    }
}
