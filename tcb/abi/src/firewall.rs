//! Firewall rules of a queue for a single guest, as the monitor is told: it compiles them into what
//! the kernel asks about a frame before it writes the frame anywhere. What they mean is the
//! bridge's to say (`specs/bridge.md`, BR-18 and BR-20).

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// What a frame has to pass, both lists. Rules are numbered through, those of `from_wire` first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Rules of the wire: the first that fits decides, what none fits passes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from_wire: Vec<Rule>,
    /// The same of the guest's interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to_guest: Vec<Rule>,
}

impl Rules {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.from_wire.len() + self.to_guest.len()
    }
}

/// One rule. It fits what has everything that it asks for; the default denies everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Whether what fits passes; otherwise it is dropped.
    pub allow: bool,
    /// The EtherType behind VLAN tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ethertype: Option<u16>,
    /// The IP protocol, behind extension headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u8>,
    /// Where a packet comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Prefix>,
    /// Where it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<Prefix>,
    /// The port that it comes from: the first and the last that fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ports: Option<(u16, u16)>,
    /// The port that it goes to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_ports: Option<(u16, u16)>,
}

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefix {
    /// One of them.
    pub address: IpAddr,
    /// How many bits.
    pub bits: u8,
}
