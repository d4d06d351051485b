//! A guest domain and its interfaces.

use super::capture::CaptureFiles;
use super::claims::{Claims, SourceGuard};
use super::station::{KernelPort, Station};
use crate::address::{Cidr, Mac};
use crate::domain::{BURST_BYTES, Limit, Offloads};
use crate::pdev::Pdev;
use crate::rule::{Firewall, Rule};
use std::net::IpAddr;

/// One guest domain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// CPUs that it may run on; empty: all.
    pub cpus: Vec<usize>,
    /// Microseconds of looking for work before it sleeps; none: as for the driver domain, see
    /// [`super::Driver::spin_us`].
    pub spin_us: Option<u32>,
    /// Whether it is started again when it has ended, with the driver domain's pauses.
    pub restart: bool,
    /// Its interfaces.
    pub vifs: Vec<Vif>,
}

/// One interface of a guest.
#[derive(Clone, Debug, PartialEq)]
pub struct Vif {
    /// MAC; none: one is derived.
    pub mac: Option<Mac>,
    /// What stands behind it.
    pub endpoint: Endpoint,
    /// Maximum transmission unit, bytes of IP.
    pub mtu: u32,
    /// The most that it asks the driver for.
    pub offloads: Offloads,
    /// The most that it may send, megabits of frames a second; none: no limit.
    pub rate_mbps: Option<f64>,
    /// Bytes of frames that it may send at once after a pause.
    pub burst_bytes: u32,
    /// The most that goes to it, megabits of frames a second; none: no limit.
    pub rate_to_guest_mbps: Option<f64>,
    /// Bytes of frames that may go to it at once after a pause; none: what
    /// [`Vif::limit_to_guest`] says.
    pub burst_to_guest_bytes: Option<u32>,
    /// Its share against other vifs, 1 … 1000.
    pub weight: u32,
    /// Whether the guest forwards packets that come in by it.
    pub forwards: bool,
    /// What it may claim to be.
    pub claims: Claims,
    /// The queue of an AF_XDP wire that is its alone.
    pub pdev: Option<Pdev>,
    /// Which frames may pass it: the first rule that fits decides, what none fits may.
    pub rules: Vec<Rule>,
    /// What rules mean for its queues of NICs.
    pub firewall: Firewall,
}

impl Vif {
    /// A vif with the usual values.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            mac: None,
            endpoint,
            mtu: 1500,
            offloads: Offloads::default(),
            rate_mbps: None,
            burst_bytes: BURST_BYTES,
            rate_to_guest_mbps: None,
            burst_to_guest_bytes: None,
            weight: 1,
            forwards: false,
            claims: Claims::default(),
            pdev: None,
            rules: Vec::new(),
            firewall: Firewall::default(),
        }
    }

    /// Takes over what may change while it is served, as
    /// [`VifConfig::change_to`](crate::domain::VifConfig::change_to) does where it is.
    pub(crate) fn change_to(&mut self, becomes: &Self) {
        self.rules.clone_from(&becomes.rules);
        self.rate_mbps = becomes.rate_mbps;
        self.burst_bytes = becomes.burst_bytes;
        self.rate_to_guest_mbps = becomes.rate_to_guest_mbps;
        self.burst_to_guest_bytes = becomes.burst_to_guest_bytes;
    }

    /// The limit on what goes to it, if there is one.
    ///
    /// Frames above it are dropped. A TCP that has lost many at once begins again after 200 ms or
    /// more, so a bucket that holds little makes it much slower than the rate: a tenth of a second
    /// is what it holds if nothing else is written.
    #[must_use]
    pub fn limit_to_guest(&self) -> Option<Limit> {
        let rate_mbps = self.rate_to_guest_mbps?;
        // Above what a word holds it is as much as a word holds.
        let tenth = (rate_mbps * 1e6 / 8.0 / 10.0) as u32;
        Some(Limit {
            rate_mbps,
            burst_bytes: self.burst_to_guest_bytes.unwrap_or(tenth.max(BURST_BYTES)),
        })
    }

    /// Whether ARP and neighbour discovery may claim the interface's addresses only.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        let has_addresses = !self.addresses().0.is_empty();
        self.claims.confined.unwrap_or(has_addresses)
    }

    /// Prefixes of the IP sources that the interface may use beside its addresses. `None`: it may
    /// use any. That is the default where there are neither addresses nor allowed sources, and for
    /// a router without allowed sources.
    #[must_use]
    pub fn sources(&self) -> Option<&[Cidr]> {
        let allowed = &self.claims.allowed_sources[..];
        let is_host = !self.forwards && !self.addresses().0.is_empty();
        let is_strict = match self.claims.source_guard {
            Some(guard) => guard == SourceGuard::Strict,
            None => is_host || !allowed.is_empty(),
        };
        is_strict.then_some(allowed)
    }

    /// Whether the interface may send to DHCP clients.
    #[must_use]
    pub fn serves_dhcp(&self) -> bool {
        self.claims.dhcp_server.unwrap_or(self.forwards)
    }

    /// The routers that it sends to.
    #[must_use]
    pub fn gateways(&self) -> Vec<IpAddr> {
        match &self.endpoint {
            Endpoint::Tap { port } => port.gateways(),
            Endpoint::Stack { station } => station.gateway.into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// The addresses and the default route of what is behind it, as far as they are known.
    #[must_use]
    pub fn addresses(&self) -> (&[Cidr], Option<IpAddr>) {
        match &self.endpoint {
            Endpoint::Tap { port } => (&port.addresses, port.gateway),
            Endpoint::Stack { station } => (&station.addresses, station.gateway),
            _ => (&[], None),
        }
    }
}

/// What stands behind a guest's interface.
#[derive(Clone, Debug, PartialEq)]
pub enum Endpoint {
    /// A TAP in a network namespace.
    Tap {
        /// The kernel's end; its MAC must be none or the vif's.
        port: KernelPort,
    },
    /// A TCP/IP stack inside the guest domain.
    Stack {
        /// Its addresses and programs.
        station: Station,
    },
    /// Takes every frame.
    Sink {
        /// Whether every byte is read.
        touch: bool,
    },
    /// Sends frames.
    Source {
        /// Where to.
        to: Mac,
        /// Bytes of a frame.
        size: u32,
        /// Frames a second; none: as fast as they are taken.
        rate_pps: Option<f64>,
        /// Frames under way at once; 0: as many as fit.
        window: u32,
        /// Frames in all; none: without end.
        count: Option<u64>,
        /// Whether every byte is written for every frame.
        touch: bool,
    },
    /// Sends every frame back.
    Echo,
    /// Capture files.
    Pcap(CaptureFiles),
}
