//! One firewall rule, as configured.

use super::prefix::Prefix;
use crate::flows::{Direction, FlowState};
use std::ops::RangeInclusive;

/// One rule. A `None` field matches every frame; an address matches only IP packets of its version,
/// ports match only packets of protocols with ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whether matching frames may pass; otherwise they are dropped.
    pub allow: bool,
    /// Direction of frames; `None`: both.
    pub direction: Option<Direction>,
    /// The state of the frame's flow.
    pub state: Option<FlowState>,
    /// The EtherType, behind VLAN tags.
    pub ethertype: Option<u16>,
    /// The IP protocol, behind extension headers.
    pub protocol: Option<u8>,
    /// Source addresses of a packet.
    pub source: Option<Prefix>,
    /// Destination addresses.
    pub destination: Option<Prefix>,
    /// Source ports of a packet.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Destination ports.
    pub destination_ports: Option<RangeInclusive<u16>>,
}

impl Rule {
    /// Returns the rule that matches every frame.
    #[must_use]
    pub const fn any(allow: bool) -> Self {
        Self {
            allow,
            direction: None,
            state: None,
            ethertype: None,
            protocol: None,
            source: None,
            destination: None,
            source_ports: None,
            destination_ports: None,
        }
    }
}
