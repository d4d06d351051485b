//! The properties of a frame that firewall rules test.

use super::ethernet::is_disguised;
use super::prefix::Address;
use crate::flows::{Classification, Direction, FlowState};
use crate::packet::{Ipv6, Network, Packet, be16, ethertype, protocol};
use std::ops::BitOr;

/// A set of properties of a frame that rules test. A flow has one of the three states, and a frame
/// passes a port in one of the two directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Properties(u16);

impl Properties {
    pub(super) const NONE: Self = Self(0);
    pub(super) const ETHERTYPE: Self = Self(1);
    pub(super) const PROTOCOL: Self = Self(1 << 1);
    pub(super) const SOURCE: Self = Self(1 << 2);
    pub(super) const DESTINATION: Self = Self(1 << 3);
    pub(super) const SOURCE_PORTS: Self = Self(1 << 4);
    pub(super) const DESTINATION_PORTS: Self = Self(1 << 5);
    const NEW: Self = Self(1 << 6);
    const ESTABLISHED: Self = Self(1 << 7);
    const RELATED: Self = Self(1 << 8);
    pub(super) const STATES: Self = Self(0b111 << 6);
    const IN: Self = Self(1 << 9);
    const OUT: Self = Self(1 << 10);
    /// The fields of a header.
    pub(super) const FIELDS: Self = Self(0b11_1111);
    const OF_IP: Self = Self(0b11_1110);
    const PORTS: Self = Self(0b11_0000);

    /// Returns whether the sets have a common property.
    #[inline]
    pub(super) const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the set without the properties of another one.
    #[inline]
    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for Properties {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl From<Direction> for Properties {
    #[inline]
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::In => Self::IN,
            Direction::Out => Self::OUT,
        }
    }
}

impl From<FlowState> for Properties {
    #[inline]
    fn from(state: FlowState) -> Self {
        match state {
            FlowState::New => Self::NEW,
            FlowState::Established => Self::ESTABLISHED,
            FlowState::Related => Self::RELATED,
        }
    }
}

/// Properties that a frame lacks, and properties that are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) absent: Properties,
    pub(super) hidden: Properties,
}

impl Missing {
    /// Returns the directions and states that a frame does not have. Without a flow table its state
    /// is hidden. A frame that belongs to no flow and cannot begin one is perhaps new.
    #[inline]
    pub(super) fn of(direction: Direction, classification: Option<Classification>) -> Self {
        let other = match direction {
            Direction::In => Properties::OUT,
            Direction::Out => Properties::IN,
        };
        let (state, hidden) = match classification {
            None => (Properties::STATES, Properties::STATES),
            Some(Classification::Is(state)) => (state.into(), Properties::NONE),
            Some(Classification::Unknown) => (Properties::NEW, Properties::NEW),
            Some(Classification::Untracked) => (Properties::NONE, Properties::NONE),
        };
        Self {
            absent: other | Properties::STATES.without(state),
            hidden,
        }
    }
}

impl BitOr for Missing {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self {
            absent: self.absent | other.absent,
            hidden: self.hidden | other.hidden,
        }
    }
}

/// The fields of a frame that a snapshot contains. A field that is absent or hidden has no
/// meaningful value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inspected {
    pub(super) missing: Missing,
    pub(super) ethertype: u16,
    pub(super) protocol: u8,
    pub(super) source: Address,
    pub(super) destination: Address,
    pub(super) source_port: u16,
    pub(super) destination_port: u16,
}

impl Inspected {
    /// The fields of a frame for rules that test none.
    pub(super) const NONE: Self = Self {
        missing: Missing {
            absent: Properties::NONE,
            hidden: Properties::NONE,
        },
        ethertype: 0,
        protocol: 0,
        source: Address::V4(0),
        destination: Address::V4(0),
        source_port: 0,
        destination_port: 0,
    };

    /// Parses a frame's snapshot.
    pub(super) fn of(header: &[u8]) -> Self {
        let Ok(packet) = Packet::parse(header) else {
            return Self::unparsable(header);
        };
        if is_disguised(header, &packet) {
            return Self::unparsable(&[]);
        }
        let (source, destination, number, at, later) = match packet.network {
            Network::Ipv4(ip) => (
                ip.source.to_bits().into(),
                ip.destination.to_bits().into(),
                Some(ip.protocol),
                ip.transport_at,
                ip.is_later_fragment(),
            ),
            Network::Ipv6(ip) => (
                ip.source.to_bits().into(),
                ip.destination.to_bits().into(),
                behind_extensions(&ip),
                ip.transport_at,
                ip.is_later_fragment(),
            ),
            Network::Arp(_) | Network::Other => return Self::without_ip(packet.ethertype),
        };
        let mut inspected = Self {
            ethertype: packet.ethertype,
            protocol: number.unwrap_or(0),
            source,
            destination,
            ..Self::NONE
        };
        let missing = &mut inspected.missing;
        match number {
            None => missing.hidden = Properties::PROTOCOL | Properties::PORTS,
            Some(number) if !has_ports(number) => missing.absent = Properties::PORTS,
            Some(_) => match (be16(header, at), be16(header, at + 2)) {
                (Ok(from), Ok(to)) if !later => {
                    inspected.source_port = from;
                    inspected.destination_port = to;
                }
                _ => missing.hidden = Properties::PORTS,
            },
        }
        inspected
    }

    /// Returns the fields of a frame that is not an IP packet.
    fn without_ip(ethertype: u16) -> Self {
        let missing = Missing {
            absent: Properties::OF_IP,
            hidden: Properties::NONE,
        };
        Self {
            missing,
            ethertype,
            ..Self::NONE
        }
    }

    /// Returns the known fields of a frame with unparsable headers: its EtherType, if untagged.
    fn unparsable(header: &[u8]) -> Self {
        let plain = |number: &u16| {
            *number >= 1536 && !matches!(*number, ethertype::VLAN | ethertype::SERVICE_VLAN)
        };
        let hidden = match be16(header, 12).ok().filter(plain) {
            None => Properties::FIELDS,
            Some(ethertype::IPV4 | ethertype::IPV6) => Properties::OF_IP,
            // A malformed ARP packet also has no addresses for rules.
            Some(other) => return Self::without_ip(other),
        };
        let missing = Missing {
            absent: Properties::NONE,
            hidden,
        };
        Self {
            missing,
            ethertype: be16(header, 12).unwrap_or(0),
            ..Self::NONE
        }
    }
}

/// Returns the protocol of an IPv6 packet. A later fragment names the first header of the whole
/// packet. If that is an extension header, the protocol is not known.
fn behind_extensions(ip: &Ipv6) -> Option<u8> {
    match ip.protocol {
        protocol::HOP_BY_HOP
        | protocol::ROUTING
        | protocol::FRAGMENT
        | protocol::AUTHENTICATION
        | protocol::DESTINATION
        | protocol::MOBILITY => None,
        number => Some(number),
    }
}

/// Returns whether a protocol's header begins with two ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
const fn has_ports(number: u8) -> bool {
    matches!(number, protocol::TCP | protocol::UDP | 33 | 132 | 136)
}
