//! Who wants which multicast group: what hosts report, and what multicast routers ask (IGMP, MLD).
//!
//! A report is of use to who routes multicast and to nobody else: RFC 4541 has it go to routers
//! alone. To each other host it is one more wake-up, and hosts of the first versions would keep
//! silent about groups of their own that somebody else has reported.

use crate::packet::{ETHERNET_BYTES, Network, Packet, be16, byte, ethertype, protocol};

/// IGMP (RFC 1112, RFC 2236, RFC 3376, RFC 9776).
const IGMP: u8 = 2;
/// Types of it: a query; the reports of its versions; and that a host leaves a group.
const IGMP_QUERY: u8 = 0x11;
const IGMP_REPORTS: [u8; 4] = [0x12, 0x16, 0x22, 0x17];
/// Types of ICMPv6 that are MLD (RFC 2710, RFC 3810, RFC 9777), in the same order.
const MLD_QUERY: u8 = 130;
const MLD_REPORTS: [u8; 3] = [131, 143, 132];
/// Protocol Independent Multicast: only routers speak it.
const PIM: u8 = 103;

/// A message about groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    /// Somebody is a member of a group, or is not any more.
    Report,
    /// Somebody routes multicast, and wants to know of members.
    Router,
}

/// What a frame to a group says of members; none: nothing, or nothing that a snapshot shows.
#[inline]
pub(super) fn of(header: &[u8]) -> Option<Membership> {
    // Most multicast is UDP: one look tells.
    let may_be = match be16(header, ETHERNET_BYTES - 2).ok()? {
        ethertype::IPV4 => matches!(byte(header, ETHERNET_BYTES + 9), Ok(IGMP | PIM)),
        ethertype::IPV6 => {
            let next = byte(header, ETHERNET_BYTES + 6);
            matches!(next, Ok(protocol::HOP_BY_HOP | PIM))
        }
        ethertype::VLAN | ethertype::SERVICE_VLAN => true,
        _ => false,
    };
    may_be.then(|| message(header)).flatten()
}

fn message(header: &[u8]) -> Option<Membership> {
    let (protocol, at, is_later) = match Packet::parse(header).ok()?.network {
        Network::Ipv4(ip) => (ip.protocol, ip.transport_at, ip.is_later_fragment()),
        Network::Ipv6(ip) => (ip.protocol, ip.transport_at, ip.is_later_fragment()),
        Network::Arp(_) | Network::Other => return None,
    };
    if is_later {
        return None;
    }
    let kind = byte(header, at).ok()?;
    match (protocol, kind) {
        (PIM, _) | (IGMP, IGMP_QUERY) | (protocol::ICMPV6, MLD_QUERY) => Some(Membership::Router),
        (IGMP, kind) if IGMP_REPORTS.contains(&kind) => Some(Membership::Report),
        (protocol::ICMPV6, kind) if MLD_REPORTS.contains(&kind) => Some(Membership::Report),
        _ => None,
    }
}
