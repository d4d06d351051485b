//! What is configured: the bridge's bounds, and ports as they are added.

use super::ports::MAX_PORTS;
use super::rules::{Prefix, Rule};
use crate::packet::Mac;
use std::net::IpAddr;

/// What holds for the whole bridge.
#[derive(Clone, Copy, Debug)]
pub struct BridgeSettings {
    /// Stations that may be learned at the same time.
    pub learned_max: usize,
    /// Nanoseconds after which a silent learned station is forgotten.
    pub ageing_ns: u64,
    /// Broadcast and multicast frames a second that each port may send.
    pub group_pps: u32,
    /// How many of them at once.
    pub group_burst: u32,
    /// Secret of the table's hash: without it no peer can choose MACs that collide.
    pub hash_seed: u64,
    /// Whether what members of multicast groups report goes to all ports: this bridge does not see
    /// all that multicast routers ask.
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

/// A limit on what comes in by a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bytes of frames a second.
    pub bytes_per_s: u64,
    /// Bytes at once.
    pub burst_bytes: u32,
}

/// Kinds of port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Stations are behind it that are learned.
    Nic,
    /// A guest.
    Guest {
        /// Its MACs, at least one: the only sources that it may use, and what is forwarded to it.
        macs: Vec<Mac>,
        /// What it may claim beside them.
        claims: Claims,
    },
}

/// What a guest may claim to be. The default is a host that may use any IP address of no other
/// port's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Whether it may send router advertisements and redirects.
    pub router: bool,
    /// Whether it may send to DHCP clients.
    pub dhcp_server: bool,
    /// Whether ARP and neighbour discovery may claim its port's addresses only (and link-local
    /// ones).
    pub confined: bool,
    /// Prefixes of the IP sources that it may use beside its port's addresses. `None`: it may use
    /// any source.
    pub sources: Option<Vec<Prefix>>,
}

/// A port, as it is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The kind.
    pub kind: Kind,
    /// The IP addresses behind it that are known: no guest port may claim another port's.
    pub addresses: Vec<IpAddr>,
    /// The routers that stations behind it send to. As long as the port exists, no guest may claim
    /// one, except the guest whose address it is.
    pub gateways: Vec<IpAddr>,
    /// What may come in by it; none: no limit.
    pub rate: Option<Rate>,
    /// Which frames may pass it: the first rule that fits decides; a frame that no rule fits may
    /// pass.
    pub rules: Vec<Rule>,
}

impl Port {
    /// A NIC port without a limit.
    #[must_use]
    pub fn nic() -> Self {
        Self {
            kind: Kind::Nic,
            addresses: Vec::new(),
            gateways: Vec::new(),
            rate: None,
            rules: Vec::new(),
        }
    }

    /// A guest port with one MAC and without a limit.
    #[must_use]
    pub fn guest(mac: Mac) -> Self {
        let kind = Kind::Guest {
            macs: vec![mac],
            claims: Claims::default(),
        };
        Self {
            kind,
            ..Self::nic()
        }
    }
}

/// Why a port cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// Its number is too large.
    #[error("port {0} is beyond the {MAX_PORTS} that a bridge can have")]
    Number(usize),
    /// Its number is in use.
    #[error("port {0} exists already")]
    Exists(usize),
    /// A guest port without any MAC.
    #[error("a guest port needs a MAC")]
    NoMac,
    /// A MAC that is not the address of one station.
    #[error("{0} is not the address of a single station")]
    NotAStation(Mac),
    /// A MAC that is bound already.
    #[error("{0} is bound to a port already")]
    MacTaken(Mac),
    /// An address that is another port's.
    #[error("{0} is another port's address")]
    AddressTaken(IpAddr),
}
