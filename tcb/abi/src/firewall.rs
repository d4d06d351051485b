//! Firewall rules of a dedicated queue, in the form in which the monitor receives them. The monitor
//! compiles them into a program, which the kernel runs on each frame before it writes the frame to
//! memory. The bridge defines their meaning (`specs/bridge.md`, BR-18 and BR-20).

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Two lists, both of which a frame must pass. Rules are numbered consecutively, those of
/// `from_wire` first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleLists {
    /// Rules for frames from the wire. The first matching rule decides; a frame without a match
    /// passes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from_wire: Vec<RuleRecord>,
    /// Rules of the guest's interface, with the same semantics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to_guest: Vec<RuleRecord>,
}

impl RuleLists {
    /// Returns whether both lists are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.from_wire.len() + self.to_guest.len()
    }
}

/// One rule. It matches frames that meet all its conditions. The default rule denies every frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleRecord {
    /// Whether matching frames pass; otherwise they are dropped.
    pub allow: bool,
    /// The EtherType, after VLAN tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ethertype: Option<u16>,
    /// The IP protocol, after extension headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u8>,
    /// The source address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<RulePrefix>,
    /// The destination address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<RulePrefix>,
    /// The range of source ports, inclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ports: Option<(u16, u16)>,
    /// The range of destination ports, inclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_ports: Option<(u16, u16)>,
}

/// A prefix: all addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RulePrefix {
    /// One of the addresses.
    pub address: IpAddr,
    /// The number of equal bits.
    pub bits: u8,
}
