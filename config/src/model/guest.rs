//! A guest domain and its interfaces.

use super::capture::CaptureFiles;
use super::port_security::{PortSecurity, SourceGuard};
use super::station::KernelPort;
use super::vhost::VirtualMachine;
use crate::address::{Cidr, MacAddress};
use crate::domain::{BURST_BYTES, FrameLimit, Offloads, Source, StackConfig};
use crate::pdev::Pdev;
use crate::rule::{FirewallPlace, FirewallRule, Inbound};
use std::net::IpAddr;

/// One guest domain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GuestSection {
    /// Its name.
    pub name: String,
    /// CPUs that it may run on; empty: all.
    pub cpus: Vec<usize>,
    /// Microseconds of polling before it sleeps; `None`: as for the driver domain, see
    /// [`super::DriverSection::spin_us`].
    pub spin_us: Option<u32>,
    /// Whether the manager restarts it after it exits, with the same pauses as for the driver
    /// domain.
    pub restart: bool,
    /// Its interfaces.
    pub vifs: Vec<Vif>,
}

/// One interface of a guest.
#[derive(Clone, Debug, PartialEq)]
pub struct Vif {
    /// Its MAC; `None`: derived.
    pub mac: Option<MacAddress>,
    /// The endpoint behind it.
    pub endpoint: Endpoint,
    /// Maximum transmission unit, bytes of IP.
    pub mtu: u32,
    /// The offloads that it requests from the driver.
    pub offloads: Offloads,
    /// Limit of the traffic that it sends, megabits of frames per second; `None`: unlimited.
    pub rate_mbps: Option<f64>,
    /// Bytes of frames that it may send in one burst after a pause.
    pub burst_bytes: u32,
    /// Limit of the traffic to it, megabits of frames per second; `None`: unlimited.
    pub rate_to_guest_mbps: Option<f64>,
    /// Bytes of frames that may be delivered in one burst after a pause; `None`: see
    /// [`Vif::limit_to_guest`].
    pub burst_to_guest_bytes: Option<u32>,
    /// Its share relative to other vifs, 1 … 1000.
    pub weight: u32,
    /// Whether the guest forwards packets that it receives on this interface.
    pub forwards: bool,
    /// The identities that it may claim.
    pub security: PortSecurity,
    /// Its dedicated queue of an AF_XDP NIC.
    pub pdev: Option<Pdev>,
    /// Firewall rules: the first match decides; unmatched frames pass.
    pub rules: Vec<FirewallRule>,
    /// Effect of the rules on its queues of NICs.
    pub firewall: FirewallPlace,
    /// Whether its firewall keeps state by default.
    pub stateful: bool,
    /// Verdict of a stateful firewall on flows that other stations begin; `None`: the default.
    pub inbound: Option<Inbound>,
}

impl Vif {
    /// Returns a vif with default values.
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
            security: PortSecurity::default(),
            pdev: None,
            rules: Vec::new(),
            firewall: FirewallPlace::default(),
            stateful: false,
            inbound: None,
        }
    }

    /// Adopts the settings that may change while the interface is in use, like
    /// [`VifConfig::apply_changes`](crate::domain::VifConfig::apply_changes).
    pub(crate) fn apply_changes(&mut self, becomes: &Self) {
        self.rules.clone_from(&becomes.rules);
        (self.stateful, self.inbound) = (becomes.stateful, becomes.inbound);
        self.rate_mbps = becomes.rate_mbps;
        self.burst_bytes = becomes.burst_bytes;
        self.rate_to_guest_mbps = becomes.rate_to_guest_mbps;
        self.burst_to_guest_bytes = becomes.burst_to_guest_bytes;
    }

    /// Returns the rules that the driver domain applies: the configured ones, then the rule that a
    /// stateful firewall adds.
    #[must_use]
    pub fn all_rules(&self) -> Vec<FirewallRule> {
        let last = self
            .stateful
            .then(|| self.inbound.unwrap_or_default().rule());
        self.rules.iter().cloned().chain(last).collect()
    }

    /// Returns the limit of the traffic to it, if any.
    ///
    /// Frames above the limit wait, and are dropped if they wait too long. The default bucket holds
    /// a tenth of a second: with a small bucket, TCP would lose many packets in a row, resume only
    /// after 200 ms or more, and stay far below the limit.
    #[must_use]
    pub fn limit_to_guest(&self) -> Option<FrameLimit> {
        let rate_mbps = self.rate_to_guest_mbps?;
        // The cast saturates.
        let tenth = (rate_mbps * 1e6 / 8.0 / 10.0) as u32;
        Some(FrameLimit {
            rate_mbps,
            burst_bytes: self.burst_to_guest_bytes.unwrap_or(tenth.max(BURST_BYTES)),
        })
    }

    /// Returns whether ARP and neighbour discovery may claim only the interface's addresses.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        let has_addresses = !self.addresses().0.is_empty();
        self.security.confined.unwrap_or(has_addresses)
    }

    /// Returns the prefixes of IP sources that the interface may use in addition to its addresses.
    /// Returns `None` if it may use any source, which is the default without addresses and allowed
    /// sources, and for a router without allowed sources.
    #[must_use]
    pub fn sources(&self) -> Option<&[Cidr]> {
        let allowed = &self.security.allowed_sources[..];
        let is_host = !self.forwards && !self.addresses().0.is_empty();
        let is_strict = match self.security.source_guard {
            Some(guard) => guard == SourceGuard::Strict,
            None => is_host || !allowed.is_empty(),
        };
        is_strict.then_some(allowed)
    }

    /// Returns whether the interface may send to DHCP clients.
    #[must_use]
    pub fn serves_dhcp(&self) -> bool {
        self.security.dhcp_server.unwrap_or(self.forwards)
    }

    /// Returns the addresses of the routers to which it sends.
    #[must_use]
    pub fn gateways(&self) -> Vec<IpAddr> {
        match &self.endpoint {
            Endpoint::Tap { port } => port.gateways(),
            Endpoint::Stack { station } => station.gateway.into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the addresses and the default route of its endpoint, if they are known.
    #[must_use]
    pub fn addresses(&self) -> (&[Cidr], Option<IpAddr>) {
        match &self.endpoint {
            Endpoint::Tap { port } => (&port.addresses, port.gateway),
            Endpoint::Stack { station } => (&station.addresses, station.gateway),
            _ => (&[], None),
        }
    }
}

/// The endpoint behind a guest's interface.
#[derive(Clone, Debug, PartialEq)]
pub enum Endpoint {
    /// A TAP in a network namespace.
    Tap {
        /// The kernel's end. Its MAC must be unset or the vif's.
        port: KernelPort,
    },
    /// A TCP/IP stack inside the guest domain.
    Stack {
        /// Its addresses and programs.
        station: StackConfig,
    },
    /// Discards every frame.
    Sink {
        /// Whether it reads every byte.
        touch: bool,
    },
    /// Sends frames.
    Source(Source),
    /// Returns every frame to its sender.
    Echo,
    /// Capture files.
    Pcap(CaptureFiles),
    /// A virtual machine.
    VhostUser(VirtualMachine),
}
