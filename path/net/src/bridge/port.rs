//! Configuration: the bridge's limits, and ports to add.

use super::ports::MAX_PORTS;
use super::prefix::Prefix;
use super::rule::Rule;
use crate::packet::Mac;
use std::net::IpAddr;

/// Settings of the whole bridge.
#[derive(Clone, Copy, Debug)]
pub struct BridgeSettings {
    /// Maximum number of learned stations.
    pub learned_max: usize,
    /// Nanoseconds after which a silent learned station is removed.
    pub ageing_ns: u64,
    /// Broadcast and multicast frames per second that each port may send.
    pub group_pps: u32,
    /// Burst of such frames.
    pub group_burst: u32,
    /// Seed of the table's hash. It is secret, so that no peer can choose colliding MACs.
    pub hash_seed: u64,
    /// Whether membership reports are flooded to all ports. Needed where this bridge does not see
    /// all queries of multicast routers.
    pub reports_to_all: bool,
}

impl Default for BridgeSettings {
    fn default() -> Self {
        Self {
            learned_max: 4096,
            ageing_ns: 300_000_000_000,
            group_pps: 1000,
            group_burst: 200,
            hash_seed: 0,
            reports_to_all: false,
        }
    }
}

/// Rate limit of frames that arrive at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bytes of frames per second.
    pub bytes_per_s: u64,
    /// Burst in bytes.
    pub burst_bytes: u32,
}

/// Kind of port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// A port with learned stations behind it.
    Nic,
    /// A guest.
    Guest {
        /// The guest's MACs, at least one. The guest may use no other source, and frames to these
        /// MACs are forwarded to it.
        macs: Vec<Mac>,
        /// Further identities that the guest may claim.
        permissions: PortPermissions,
    },
}

/// Identities that a guest may claim. The default is a host that may use every IP address that no
/// other port owns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortPermissions {
    /// Whether the guest may send router advertisements and redirects.
    pub router: bool,
    /// Whether the guest may send to DHCP clients.
    pub dhcp_server: bool,
    /// Whether ARP and neighbour discovery may claim only its port's addresses (and link-local
    /// ones).
    pub confined: bool,
    /// Prefixes of permitted IP sources in addition to its port's addresses. `None`: any source.
    pub sources: Option<Vec<Prefix>>,
}

/// A port to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// The kind.
    pub kind: PortKind,
    /// Known IP addresses behind the port, which no guest of another port may claim.
    pub addresses: Vec<IpAddr>,
    /// Routers of the stations behind the port. While the port exists, no guest may claim one,
    /// except the guest that owns the address.
    pub gateways: Vec<IpAddr>,
    /// Rate limit of arriving frames; `None`: unlimited.
    pub rate: Option<Rate>,
    /// Firewall rules: the first matching rule decides; a frame that matches none passes.
    pub rules: Vec<Rule>,
}

impl PortConfig {
    /// Returns a NIC port without a limit.
    #[must_use]
    pub fn nic() -> Self {
        Self {
            kind: PortKind::Nic,
            addresses: Vec::new(),
            gateways: Vec::new(),
            rate: None,
            rules: Vec::new(),
        }
    }

    /// Returns a guest port with one MAC and without a limit.
    #[must_use]
    pub fn guest(mac: Mac) -> Self {
        let kind = PortKind::Guest {
            macs: vec![mac],
            permissions: PortPermissions::default(),
        };
        Self {
            kind,
            ..Self::nic()
        }
    }
}

/// Error of adding a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The number is too large.
    #[error("port {0} exceeds the bridge's limit of {MAX_PORTS} ports")]
    Number(usize),
    /// The number is in use.
    #[error("port {0} already exists")]
    Exists(usize),
    /// A guest port without any MAC.
    #[error("a guest port needs a MAC")]
    NoMac,
    /// The MAC is not a unicast address.
    #[error("{0} is not a unicast address")]
    NotAStation(Mac),
    /// The MAC is already bound.
    #[error("{0} is already bound to a port")]
    MacTaken(Mac),
    /// The address belongs to another port.
    #[error("{0} belongs to another port")]
    AddressTaken(IpAddr),
}
