//! Ports that are guests. The handshake (`handshake`) creates and ends the link, which transfers
//! frames (`data`) by one queue or by several (`queues`), optionally with the guest's flow steering
//! ([`hashing`]).

mod data;
mod handshake;
pub mod hashing;
pub mod memory;
mod queues;

use crate::backpressure::SendingGuest;
use crate::dedicated::queue::DedicatedQueue;
use crate::egress_queue::EgressQueue;
use crate::fast_path::SmallFrameRate;
use crate::port_common::PortCommon;
use crate::resegment::Resegmenter;
use crate::traffic::PortTraffic;
use abi::{ConnId, DomId, XenbusState};
use config::domain::VifConfig;
use memory::GuestAccess;
use nic::Caps;
use queues::GuestQueues;
use runtime::ledger::Ledger;
use runtime::platform::{Doorbell, Platform};
use std::net::IpAddr;
use std::rc::Rc;
use vif::InterfaceCounters;

/// One guest's port.
#[derive(Debug)]
pub struct VifPort {
    /// Its name, for display.
    pub name: String,
    /// State that every port has.
    pub common: PortCommon,
    /// Traffic counters.
    pub traffic: PortTraffic,
    /// The guest as a sender that may wait for others' buffers.
    pub sender: SendingGuest,
    /// Number of batches that still skip the fast path.
    pub fast_path_skips: u8,
    /// Recent small frames of the guest.
    pub small_frame_rate: SmallFrameRate,
    /// Whether packets are forwarded behind the interface.
    pub forwards: bool,
    /// Frames for the guest that arrived while it was not connected.
    pub not_connected: u64,
    /// Its egress queue and rate limit.
    pub egress: EgressQueue,
    /// Why the last connection ended, as text; empty if none did.
    pub trouble: String,
    conn: ConnId,
    mac: [u8; 6],
    platform: Rc<dyn Platform>,
    ledger: Rc<Ledger>,
    access: Box<dyn GuestAccess>,
    state: XenbusState,
    /// Whether the guest was dead at the last check.
    is_abandoned: bool,
    doorbell: Option<Box<dyn Doorbell>>,
    /// Owner of that doorbell.
    frontend: Option<DomId>,
    link: Option<ConnectedVif>,
    /// Counters of earlier links.
    past: InterfaceCounters,
    room: Resegmenter,
    /// Its dedicated queue of a wire, if any.
    pub queue: Option<DedicatedQueue>,
    /// Routers of its guest.
    pub gateways: Vec<IpAddr>,
    /// Addresses to announce when it connects.
    pub announced: Vec<IpAddr>,
    /// Whether the rings have changed since they were last published.
    touched: bool,
}

/// State that exists while the guest is connected.
struct ConnectedVif {
    queues: GuestQueues,
    /// Dropped after the netbacks: fields are dropped in this order.
    held: Box<dyn std::fmt::Debug>,
}

impl std::fmt::Debug for ConnectedVif {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

/// Returns the port name of an interface.
pub(crate) fn port_name(vif: &VifConfig) -> String {
    format!("vif.{}", vif.name)
}

impl VifPort {
    /// Creates a port for a guest's interface, whose memory `access` accesses.
    #[must_use]
    pub fn new(
        vif: &VifConfig,
        platform: Rc<dyn Platform>,
        ledger: Rc<Ledger>,
        access: Box<dyn GuestAccess>,
    ) -> Self {
        let mut egress = EgressQueue::default();
        egress.set(vif.to_guest.as_ref());
        Self {
            name: port_name(vif),
            common: PortCommon::default(),
            traffic: PortTraffic::default(),
            sender: SendingGuest::default(),
            fast_path_skips: 0,
            small_frame_rate: SmallFrameRate::default(),
            forwards: vif.forwards,
            not_connected: 0,
            egress,
            trouble: String::new(),
            conn: ConnId(vif.conn),
            mac: vif.mac,
            platform,
            ledger,
            access,
            state: XenbusState::Initialising,
            is_abandoned: false,
            doorbell: None,
            frontend: None,
            link: None,
            past: InterfaceCounters::default(),
            room: Resegmenter::default(),
            queue: None,
            gateways: vif.gateways.clone(),
            announced: match vif.announces {
                true => vif.addresses.clone(),
                false => Vec::new(),
            },
            touched: false,
        }
    }

    /// Returns its connection.
    #[must_use]
    pub fn conn(&self) -> ConnId {
        self.conn
    }

    /// Returns the guest's MAC.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns its state.
    #[must_use]
    pub fn state(&self) -> XenbusState {
        self.state
    }

    /// Returns whether the guest is not connected but may connect.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.state != XenbusState::Connected && !self.is_abandoned
    }

    /// Returns the counters of all links.
    #[must_use]
    pub fn counters(&self) -> InterfaceCounters {
        let mut all = self.past;
        if let Some(link) = &self.link {
            all += link.queues.counters();
        }
        all
    }

    /// Returns the number of frames made by splitting larger ones for lack of room.
    #[must_use]
    pub fn split(&self) -> u64 {
        self.room.split
    }

    /// Returns the guest's capabilities, or `None` while it is not connected.
    #[must_use]
    pub fn caps(&self) -> Option<Caps> {
        let peer = self.link.as_ref()?.queues.first().peer();
        Some(Caps {
            checksum: peer.csum && peer.ipv6_csum,
            tso: peer.gso_tcpv4 && peer.gso_tcpv6,
            max_frame: vif::netif::MAX_PACKET,
        })
    }

    /// Returns the ledger of this port's domain.
    #[must_use]
    pub fn ledger(&self) -> Rc<Ledger> {
        Rc::clone(&self.ledger)
    }
}
