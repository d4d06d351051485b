//! Multicast group messages: reports of hosts, and queries of multicast routers (IGMP, MLD).
//!
//! Only multicast routers need reports, so RFC 4541 forwards them to routers alone. A report to any
//! other host is a needless wake-up. Hosts with the first versions of the protocols also suppress
//! their own report of a group when they receive another host's.

use crate::packet::{ETHERNET_BYTES, Network, Packet, be16, byte, ethertype, protocol};

/// IGMP (RFC 1112, RFC 2236, RFC 3376, RFC 9776).
const IGMP: u8 = 2;
/// IGMP message types: query, the reports of all versions, leave.
const IGMP_QUERY: u8 = 0x11;
const IGMP_REPORTS: [u8; 4] = [0x12, 0x16, 0x22, 0x17];
/// ICMPv6 types of MLD (RFC 2710, RFC 3810, RFC 9777), in the same order.
const MLD_QUERY: u8 = 130;
const MLD_REPORTS: [u8; 3] = [131, 143, 132];
/// Protocol Independent Multicast, which only routers send.
const PIM: u8 = 103;

/// Kind of a message about groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    /// A host joins or leaves a group.
    Report,
    /// A multicast router queries for members.
    Router,
}

/// Returns the kind of group message in a multicast frame, if its snapshot shows one.
#[inline]
pub(super) fn of(header: &[u8]) -> Option<Membership> {
    // Most multicast is UDP, which this single check excludes.
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
