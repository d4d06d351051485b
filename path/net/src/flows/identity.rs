//! Extracts the identity of a frame's flow from the frame's header.

use super::key::{HashKeys, PacketKind, Tuple, datagram, mapped};
use super::plain_packet::PlainPacket;
use crate::packet::{Ipv4, Ipv6, Network, Packet};
use crate::packet::{array, be16, byte, ethertype, flags, protocol};

/// Protocols beside TCP and UDP whose header begins with two ports: DCCP, SCTP, UDP-Lite.
const OTHERS_WITH_PORTS: [u8; 3] = [33, 132, 136];
const IGMP: u8 = 2;
/// Bytes of the TCP header that a first fragment must contain.
const TCP_BYTES: usize = 20;
/// Bytes of any other protocol's header that a first fragment must contain.
const OTHER_BYTES: usize = 8;

/// Identity of a fragmented packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FragmentId {
    source: u128,
    destination: u128,
    rest: u64,
}

impl FragmentId {
    fn new(source: u128, destination: u128, protocol: u8, id: u32, v6: bool) -> Self {
        Self {
            source,
            destination,
            rest: u64::from(id) << 16 | u64::from(protocol) << 8 | u64::from(v6),
        }
    }

    pub(super) fn hash(&self, keys: &HashKeys) -> u64 {
        keys.hash(self.source, self.destination, !self.rest)
    }
}

/// Identity of a frame's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject(pub(super) SubjectKind);

/// See [`Subject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubjectKind {
    /// The frame has no flow.
    Untracked,
    /// The header does not identify the flow.
    Unknown,
    /// A whole packet or a first fragment.
    Packet(Tuple, PacketKind, Option<FragmentId>),
    /// An ICMP error, with the flow of the packet that it quotes.
    Error(Tuple),
    /// A later fragment, with its addresses and without ports.
    Later(FragmentId, Tuple),
}

impl Subject {
    /// Parses a frame's snapshot.
    #[must_use]
    #[inline]
    pub fn of(header: &[u8]) -> Self {
        Self(match PlainPacket::of(header) {
            Some(packet) => SubjectKind::Packet(packet.tuple(), packet.kind, None),
            None => parsed(header),
        })
    }
}

/// An IPv4 or IPv6 packet.
struct Ip {
    source: u128,
    destination: u128,
    protocol: u8,
    v6: bool,
    transport_at: usize,
    /// Length of the packet according to its IP header, bytes.
    payload: usize,
    /// Fragment offset in units of 8 bytes; `None`: the packet is whole.
    fragment: Option<(u16, FragmentId)>,
}

pub(super) fn parsed(header: &[u8]) -> SubjectKind {
    let Ok(packet) = Packet::parse(header) else {
        return SubjectKind::Unknown;
    };
    let ip = match packet.network {
        Network::Arp(_) => return SubjectKind::Untracked,
        Network::Other => return SubjectKind::Unknown,
        Network::Ipv4(ip) => Some(v4(&ip)),
        Network::Ipv6(ip) => v6(header, &ip),
    };
    ip.and_then(|ip| whole(header, &packet, &ip))
        .unwrap_or(SubjectKind::Unknown)
}

fn v4(ip: &Ipv4) -> Ip {
    let (source, destination) = (
        mapped(ip.source.to_bits()),
        mapped(ip.destination.to_bits()),
    );
    let id = FragmentId::new(source, destination, ip.protocol, ip.id.into(), false);
    Ip {
        source,
        destination,
        protocol: ip.protocol,
        v6: false,
        transport_at: ip.transport_at,
        payload: ip.total_len,
        fragment: ip.is_fragment().then_some((ip.fragment_offset, id)),
    }
}

fn v6(header: &[u8], ip: &Ipv6) -> Option<Ip> {
    let hides = matches!(
        ip.protocol,
        protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::FRAGMENT
            | protocol::AUTHENTICATION
            | protocol::DESTINATION
            | protocol::MOBILITY
    );
    if hides || ip.routed {
        return None;
    }
    let (source, destination) = (ip.source.to_bits(), ip.destination.to_bits());
    let fragment = match ip.fragment {
        None => None,
        Some((offset, _)) => {
            // The fragment header must be the last one, so that all fragments name one protocol.
            let at = ip.transport_at.checked_sub(8)?;
            let is_last =
                byte(header, at) == Ok(ip.protocol) && be16(header, at + 2).ok()? >> 3 == offset;
            let id = u32::from_be_bytes(array(header, at + 4).ok()?);
            let id = FragmentId::new(source, destination, ip.protocol, id, true);
            Some((offset, id)).filter(|_| is_last)
        }
    };
    if fragment.is_none() && ip.fragment.is_some() {
        return None;
    }
    Some(Ip {
        source,
        destination,
        protocol: ip.protocol,
        v6: true,
        transport_at: ip.transport_at,
        payload: 40 + ip.payload_len,
        fragment,
    })
}

/// Returns `None` if the header does not identify the flow.
fn whole(header: &[u8], packet: &Packet, ip: &Ip) -> Option<SubjectKind> {
    let headers = ip.transport_at - packet.network_at;
    let payload = ip.payload.saturating_sub(headers);
    let tuple = Tuple {
        source: ip.source,
        destination: ip.destination,
        source_port: 0,
        destination_port: 0,
        protocol: ip.protocol,
        v6: ip.v6,
        is_request: None,
    };
    let needs = match ip.protocol {
        protocol::TCP => TCP_BYTES,
        _ => OTHER_BYTES,
    };
    if let Some((offset @ 1.., id)) = ip.fragment {
        // RFC 1858, RFC 3128: no later fragment may overwrite the header that the rules decided on.
        let clear = usize::from(offset) * 8 >= needs;
        return clear.then_some(SubjectKind::Later(id, tuple));
    }
    let id = ip.fragment.map(|(_, id)| id);
    if id.is_some() && payload < needs {
        return None;
    }
    let at = ip.transport_at;
    let with_ports = || {
        Some(Tuple {
            source_port: be16(header, at).ok()?,
            destination_port: be16(header, at + 2).ok()?,
            ..tuple
        })
    };
    match ip.protocol {
        protocol::TCP => {
            // Options may end beyond the snapshot.
            let fixed = header.get(at..)?.first_chunk::<TCP_BYTES>()?;
            let is_header = payload >= TCP_BYTES && fixed[12] >> 4 >= 5;
            let kind = PacketKind::Tcp(fixed[13]);
            is_header.then_some(SubjectKind::Packet(with_ports()?, kind, id))
        }
        protocol::UDP => {
            let tuple = with_ports().filter(|_| payload >= OTHER_BYTES)?;
            let ports = u32::from(tuple.source_port) << 16 | u32::from(tuple.destination_port);
            let kind = datagram(ports, ip.v6);
            Some(SubjectKind::Packet(tuple, kind, id))
        }
        other if OTHERS_WITH_PORTS.contains(&other) => {
            Some(SubjectKind::Packet(with_ports()?, PacketKind::Datagram, id))
        }
        IGMP if !ip.v6 => Some(SubjectKind::Untracked),
        protocol::ICMP if !ip.v6 => icmp(header, at, tuple, id),
        protocol::ICMPV6 if ip.v6 => {
            let hops = byte(header, packet.network_at + 7).ok()?;
            icmpv6(header, at, tuple, id, hops)
        }
        _ => Some(SubjectKind::Packet(tuple, PacketKind::Datagram, id)),
    }
}

fn icmp(header: &[u8], at: usize, tuple: Tuple, id: Option<FragmentId>) -> Option<SubjectKind> {
    match byte(header, at).ok()? {
        // Echo, and timestamps, which have the same format.
        8 | 13 => echo(header, at, tuple, id, true),
        0 | 14 => echo(header, at, tuple, id, false),
        3 | 4 | 11 | 12 if id.is_none() => error(header, at, &tuple, ethertype::IPV4),
        _ => None,
    }
}

fn icmpv6(
    header: &[u8],
    at: usize,
    tuple: Tuple,
    id: Option<FragmentId>,
    hops: u8,
) -> Option<SubjectKind> {
    match byte(header, at).ok()? {
        128 => echo(header, at, tuple, id, true),
        129 => echo(header, at, tuple, id, false),
        1..=4 if id.is_none() => error(header, at, &tuple, ethertype::IPV6),
        // Multicast listener messages (RFC 2710, 3810), whose hop limit is 1.
        130..=132 | 143 if id.is_none() && hops == 1 => Some(SubjectKind::Untracked),
        // Neighbour discovery (RFC 4861): no forwarded packet has this hop limit.
        133..=137 if id.is_none() && hops == 255 => Some(SubjectKind::Untracked),
        _ => None,
    }
}

fn echo(
    header: &[u8],
    at: usize,
    tuple: Tuple,
    id: Option<FragmentId>,
    is_request: bool,
) -> Option<SubjectKind> {
    let tuple = Tuple {
        source_port: be16(header, at + 4).ok()?,
        is_request: Some(is_request),
        ..tuple
    };
    Some(SubjectKind::Packet(
        tuple,
        PacketKind::Echo { is_request },
        id,
    ))
}

/// Parses the packet that an error quotes after its first 8 bytes. The error must be addressed to
/// that packet's sender.
fn error(header: &[u8], at: usize, outer: &Tuple, ethertype: u16) -> Option<SubjectKind> {
    let network = Network::parse(header, at + 8, ethertype).ok()?;
    let (source, destination, protocol, at, is_later) = match network {
        Network::Ipv4(ip) => (
            mapped(ip.source.to_bits()),
            mapped(ip.destination.to_bits()),
            ip.protocol,
            ip.transport_at,
            ip.is_later_fragment(),
        ),
        Network::Ipv6(ip) => (
            ip.source.to_bits(),
            ip.destination.to_bits(),
            ip.protocol,
            ip.transport_at,
            ip.is_later_fragment(),
        ),
        Network::Arp(_) | Network::Other => return None,
    };
    if is_later || source != outer.destination {
        return None;
    }
    let mut tuple = Tuple {
        source,
        destination,
        protocol,
        ..*outer
    };
    match protocol {
        protocol::ICMP | protocol::ICMPV6 => {
            tuple.is_request = match byte(header, at).ok()? {
                8 | 13 | 128 => Some(true),
                0 | 14 | 129 => Some(false),
                _ => return None,
            };
            tuple.source_port = be16(header, at + 4).ok()?;
        }
        number
            if matches!(number, protocol::TCP | protocol::UDP)
                || OTHERS_WITH_PORTS.contains(&number) =>
        {
            tuple.source_port = be16(header, at).ok()?;
            tuple.destination_port = be16(header, at + 2).ok()?;
        }
        _ => {}
    }
    Some(SubjectKind::Error(tuple))
}

/// Returns whether these flags open a connection.
pub(super) const fn is_syn(tcp_flags: u8) -> bool {
    tcp_flags & (flags::SYN | flags::ACK | flags::RST | flags::FIN) == flags::SYN
}

/// Returns whether a segment with these flags can be in the middle of a connection.
pub(super) const fn is_midstream(tcp_flags: u8) -> bool {
    tcp_flags & (flags::SYN | flags::ACK | flags::RST) == flags::ACK
}
