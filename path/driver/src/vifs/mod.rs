//! Ports of guests. The handshake (`handshake`) creates and closes the link. The link transfers
//! frames (`data`) over one queue or several (`queues`), optionally with flow steering by the guest
//! ([`hashing`]).

mod announcement;
mod data;
mod handshake;
pub mod hashing;
pub mod memory;
pub mod queues;

use crate::backpressure::SendingGuest;
use crate::dedicated::queue::DedicatedQueue;
use crate::egress_queue::EgressQueue;
use crate::fast_path::SmallFrameRate;
use crate::port_common::PortCommon;
use crate::resegment::Resegmenter;
use crate::traffic::PortTraffic;
use abi::{ConnId, DomId, XenbusState};
use announcement::Announcement;
use config::domain::VifConfig;
use memory::GuestAccess;
use nic::Caps;
use queues::GuestQueues;
use runtime::ledger::Ledger;
use runtime::platform::{Doorbell, Platform};
use std::net::IpAddr;
use std::rc::Rc;
use vif::InterfaceCounters;

/// The port of one guest.
#[derive(Debug)]
pub struct VifPort {
    /// Its name, for display.
    pub name: String,
    /// State that every port has.
    pub common: PortCommon,
    /// Traffic counters.
    pub traffic: PortTraffic,
    /// The guest's backpressure state as a sender.
    pub sender: SendingGuest,
    /// Number of batches that still skip the fast path.
    pub fast_path_skips: u8,
    /// The rate at which the guest sends small frames.
    pub small_frame_rate: SmallFrameRate,
    /// Whether the guest forwards packets of other stations.
    pub forwards: bool,
    /// Number of frames dropped because the guest was not connected.
    pub not_connected: u64,
    /// The egress queue to the guest, with its rate limit.
    pub egress: EgressQueue,
    /// Reason why the last connection ended or failed, as text; empty without an error.
    pub last_error: String,
    conn: ConnId,
    mac: [u8; 6],
    platform: Rc<dyn Platform>,
    ledger: Rc<Ledger>,
    access: Box<dyn GuestAccess>,
    state: XenbusState,
    /// Whether the guest was dead when the driver last read its state.
    is_abandoned: bool,
    doorbell: Option<Box<dyn Doorbell>>,
    /// The domain to which the doorbell belongs.
    frontend: Option<DomId>,
    link: Option<ConnectedVif>,
    /// Number of links so far.
    links: u64,
    /// Sum of the counters of earlier links.
    past: InterfaceCounters,
    resegmenter: Resegmenter,
    /// The guest's dedicated queue of a wire, if any.
    pub queue: Option<DedicatedQueue>,
    /// The guest's routers.
    pub gateways: Vec<IpAddr>,
    /// The announcement of the guest's addresses.
    pub announcement: Announcement,
    /// Whether the driver has changed the rings since it last published them.
    touched: bool,
}

/// State that exists while the guest is connected.
struct ConnectedVif {
    queues: GuestQueues,
    /// Keeps the pages mapped. Rust drops it after the netbacks, in the order of the fields.
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
    /// Creates a port for a guest's interface. `access` accesses the guest's memory.
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
            forwards: vif.settings.forwards,
            not_connected: 0,
            egress,
            last_error: String::new(),
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
            links: 0,
            past: InterfaceCounters::default(),
            resegmenter: Resegmenter::default(),
            queue: None,
            gateways: vif.guard.gateways.clone(),
            announcement: Announcement::new(vif),
            touched: false,
        }
    }

    /// Returns the guest's connection.
    #[must_use]
    pub fn conn(&self) -> ConnId {
        self.conn
    }

    /// Returns the guest's MAC.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns the state of the driver's end of the connection.
    #[must_use]
    pub fn state(&self) -> XenbusState {
        self.state
    }

    /// Returns whether the guest is not connected yet, but may connect.
    #[must_use]
    pub fn may_connect(&self) -> bool {
        self.state != XenbusState::Connected && !self.is_abandoned
    }

    /// Returns the sum of the counters of all links.
    #[must_use]
    pub fn counters(&self) -> InterfaceCounters {
        let mut all = self.past;
        if let Some(link) = &self.link {
            all += link.queues.counters();
        }
        all
    }

    /// Returns the number of frames made by splitting larger frames that exceeded the guest's
    /// receive credit.
    #[must_use]
    pub fn resegmented_frames(&self) -> u64 {
        self.resegmenter.resegmented_frames
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

    /// Returns this domain's ledger.
    #[must_use]
    pub fn ledger(&self) -> Rc<Ledger> {
        Rc::clone(&self.ledger)
    }
}
