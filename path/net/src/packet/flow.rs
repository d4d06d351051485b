//! Flow identification: a hash, or the exact flow.

use super::bytes::array;
use super::constants::{ethertype, protocol};
use super::headers::Packet;
use super::mac::Mac;
use super::network::Network;
use super::plain_headers::PlainHeaders;
use super::transport::Transport;
use nic::Frame;
use nic::small_frame::HEAD_BYTES;
use std::net::IpAddr;

/// Returns a hash that all frames of a flow share, in both directions. It covers addresses,
/// protocol and ports; for fragments and protocols without ports only addresses and protocol; for
/// frames without IP the two MACs and the EtherType. `header` is a frame's first bytes.
///
/// The hash has no secret, so a sender can choose the hash by its choice of ports.
#[must_use]
pub fn flow_hash(header: &[u8]) -> u32 {
    let Ok(packet) = Packet::parse(header) else {
        let mac = |at| array(header, at).unwrap_or_default();
        return mix(bytes_of(Mac(mac(0))), bytes_of(Mac(mac(6))), 0);
    };
    let (from, to, protocol, in_parts): (IpAddr, IpAddr, _, _) = match packet.network {
        Network::Ipv4(ip) => (
            ip.source.into(),
            ip.destination.into(),
            ip.protocol,
            ip.is_fragment(),
        ),
        Network::Ipv6(ip) => (
            ip.source.into(),
            ip.destination.into(),
            ip.protocol,
            ip.fragment.is_some(),
        ),
        Network::Arp(_) | Network::Other => {
            let (from, to) = (bytes_of(packet.source), bytes_of(packet.destination));
            return mix(from, to, packet.ethertype);
        }
    };
    let ports = match packet.transport(header) {
        Ok(Transport::Tcp(tcp)) if !in_parts => array(header, tcp.at).ok(),
        Ok(Transport::Udp { at }) if !in_parts => array(header, at).ok(),
        _ => None,
    };
    let [a, b, c, d] = ports.unwrap_or([0; 4]);
    let end = |address, port: [u8; 2]| {
        let address = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        u128::from(address).rotate_left(16) ^ u128::from(u16::from_be_bytes(port))
    };
    mix(end(from, [a, b]), end(to, [c, d]), protocol.into())
}

/// Returns whether large receive offload could merge a frame with this beginning: it is TCP, or is
/// behind VLAN tags or IPv6 extension headers, which are not followed.
#[must_use]
#[inline]
pub const fn may_merge(head: &[u8; HEAD_BYTES]) -> bool {
    match u16::from_be_bytes([head[12], head[13]]) {
        ethertype::IPV4 => head[23] == protocol::TCP,
        ethertype::IPV6 => !matches!(head[20], protocol::UDP | protocol::ICMPV6),
        ethertype::VLAN | ethertype::SERVICE_VLAN => true,
        _ => false,
    }
}

/// One direction of a TCP connection: MACs, addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpFlow {
    v6: bool,
    /// 6 + 6 bytes of MACs, up to 16 + 16 of addresses, 2 + 2 of ports.
    ends: [u8; 48],
}

impl TcpFlow {
    /// Returns the flow of a frame, or `None` if it is not TCP, has VLAN tags, IPv4 options or IPv6
    /// extension headers, or is a fragment.
    #[must_use]
    pub fn of(frame: &Frame) -> Option<Self> {
        let header = frame.header();
        if header.len() < 54 {
            return None;
        }
        let PlainHeaders::Tcp { at, v6 } = PlainHeaders::of(frame.snapshot_array())? else {
            return None;
        };
        let (macs, addresses) = (header.get(..12)?, if v6 { 22..54 } else { 26..34 });
        let (addresses, ports) = (header.get(addresses)?, header.get(at..at + 4)?);
        let mut ends = [0; 48];
        let parts = macs.iter().chain(addresses).chain(ports);
        ends.iter_mut()
            .zip(parts)
            .for_each(|(to, from)| *to = *from);
        Some(Self { v6, ends })
    }
}

fn bytes_of(mac: Mac) -> u128 {
    mac.0
        .iter()
        .fold(0, |all, &byte| all << 8 | u128::from(byte))
}

/// Combines two ends symmetrically.
fn mix(one: u128, other: u128, kind: u16) -> u32 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (low, high) = (one.min(other), one.max(other));
    let halves = |end: u128| [end as u64, (end >> 64) as u64];
    let ([a, b], [c, d]) = (halves(low), halves(high));
    let words = [a, b, c, d, u64::from(kind)];
    let mixed = words.iter().fold(0u64, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(ODD);
        hash ^ hash >> 29
    });
    (mixed >> 32) as u32 ^ mixed as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use nic::Pool;
    use shmem::Area;

    fn tcp(from: ([u8; 4], u16), to: ([u8; 4], u16), fragment: u16) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 1]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, 6, 0, 0]);
        frame.extend(from.0);
        frame.extend(to.0);
        frame.extend(from.1.to_be_bytes());
        frame.extend(to.1.to_be_bytes());
        frame.extend([0; 8]);
        frame.extend([0x50, 0x10]);
        frame.extend([0; 6]);
        frame
    }

    const A: [u8; 4] = [10, 0, 0, 1];
    const B: [u8; 4] = [10, 0, 0, 2];

    #[test]
    fn both_directions_of_a_flow_have_one_number() {
        let there = tcp((A, 5001), (B, 40_000), 0);
        let back = tcp((B, 40_000), (A, 5001), 0);
        assert_eq!(flow_hash(&there), flow_hash(&back));
        assert_ne!(
            flow_hash(&there),
            flow_hash(&tcp((A, 5001), (B, 40_001), 0))
        );
    }

    #[test]
    fn fragments_go_with_the_first_of_them() {
        const MORE: u16 = 0x2000;
        let first = tcp((A, 5001), (B, 40_000), MORE);
        let later = tcp((A, 7), (B, 8), 185);
        assert_eq!(flow_hash(&first), flow_hash(&later));
    }

    #[test]
    fn flows_spread_over_queues() {
        for queues in [2, 3, 4, 16] {
            let mut found = vec![0; queues];
            for port in 0..1600 {
                let hash = flow_hash(&tcp((A, 5001), (B, 40_000 + port), 0));
                found[hash as usize % queues] += 1;
            }
            let fair = 1600 / queues;
            assert!(
                found.iter().all(|&n| n > fair * 2 / 3 && n < fair * 4 / 3),
                "{found:?}"
            );
        }
    }

    #[test]
    fn every_string_of_bytes_has_a_number() {
        let whole = tcp((A, 1), (B, 2), 0);
        // Without readable addresses, the hash covers the MACs.
        for len in 12..34 {
            assert_eq!(flow_hash(&whole[..len]), flow_hash(&whole[..12]), "{len}");
        }
        assert_ne!(flow_hash(&whole), flow_hash(&whole[..12]));
        assert_eq!(flow_hash(&[]), flow_hash(&[2; 5]));
        let mut other = vec![2; 60];
        other[12..14].copy_from_slice(&[0x88, 0xb5]);
        let mut back = other.clone();
        other[5] = 1;
        back[11] = 1;
        assert_eq!(flow_hash(&other), flow_hash(&back));
    }

    #[test]
    fn only_tcp_and_unknown_headers_may_merge() {
        let head = |ethertype: u16, at: usize, protocol| {
            let mut head = [0; HEAD_BYTES];
            head[12..14].copy_from_slice(&ethertype.to_be_bytes());
            head[at] = protocol;
            head
        };
        for (ethertype, at, protocol, expected) in [
            (ethertype::IPV4, 23, protocol::TCP, true),
            (ethertype::IPV4, 23, protocol::UDP, false),
            (ethertype::IPV6, 20, protocol::TCP, true),
            (ethertype::IPV6, 20, protocol::HOP_BY_HOP, true),
            (ethertype::IPV6, 20, protocol::ICMPV6, false),
            (ethertype::VLAN, 27, protocol::UDP, true),
            (ethertype::ARP, 23, protocol::TCP, false),
        ] {
            let may = may_merge(&head(ethertype, at, protocol));
            assert_eq!(may, expected, "{ethertype:x} {protocol}");
        }
    }

    #[test]
    fn a_tcp_flow_is_one_direction_of_a_connection() {
        let flow = |bytes: &[u8]| {
            let mut pool = Pool::new(Area::anonymous(4096).unwrap(), 2048);
            TcpFlow::of(&Frame::from_bytes(bytes, &mut pool).unwrap())
        };
        let packet = tcp((A, 5001), (B, 40_000), 0);
        let same = flow(&packet);
        assert!(same.is_some());
        let mut later = packet.clone();
        later[38] ^= 1;
        later[19] ^= 1;
        assert_eq!(flow(&later), same);
        for at in [0, 6, 26, 30, 34, 37] {
            let mut other = packet.clone();
            other[at] ^= 1;
            assert!(flow(&other).is_some_and(|flow| Some(flow) != same), "{at}");
        }
        // IP options, another protocol, a fragment, a tag, not IP.
        for (at, value) in [(14, 0x46), (23, 17), (20, 0x20), (12, 0x81), (13, 6)] {
            let mut other = packet.clone();
            other[at] = value;
            assert_eq!(flow(&other), None, "{at}");
        }
        let mut v6 = vec![2; 54];
        v6[12..21].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6]);
        assert_eq!(flow(&v6), None, "the ports are missing");
        v6.extend([0; 20]);
        assert!(flow(&v6).is_some());
        v6[20] = 60;
        assert_eq!(flow(&v6), None);
    }
}
