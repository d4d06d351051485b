//! Errors for packets too big for the next hop: ICMP *fragmentation needed* (RFC 792, RFC 1191) and
//! ICMPv6 *packet too big* (RFC 4443, 3.2), which path MTU discovery needs.

use super::bytes::be16;
use super::checksum::{Sum, pseudo_v6};
use super::constants::{ETHERNET_BYTES, MAX_TAGS, TAG_BYTES, protocol};
use super::{Ipv4, Ipv6, Mac, Network, Packet};
use nic::Frame;
use nic::rate::TokenBucket;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Errors per second and burst, per port.
const PER_S: u64 = 100;
const BURST: u32 = 20;
/// The smallest MTU of an IPv6 link, and the length of the longest error.
const IPV6_MIN_MTU: usize = 1280;
/// Bytes of the longest IPv4 header, and of the quoted payload.
const IPV4_QUOTE_MAX: usize = 60 + 8;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const ICMP_BYTES: usize = 8;
const ETHERNET_MAX: usize = ETHERNET_BYTES + MAX_TAGS * TAG_BYTES;
const DONT_FRAGMENT: u16 = 0x4000;
const HOP_LIMIT: u8 = 64;
/// Precedence *internetwork control* (RFC 1812, 4.3.2.5).
const PRECEDENCE: u8 = 0xc0;

/// Generator of errors to the senders behind one port, up to 100 per second with a burst of 20.
#[derive(Clone, Debug)]
pub struct TooBig {
    bucket: TokenBucket,
    /// Errors generated.
    pub sent: u64,
    /// Errors suppressed by the limit.
    pub limited: u64,
}

impl Default for TooBig {
    fn default() -> Self {
        Self {
            bucket: TokenBucket::new(PER_S, BURST),
            sent: 0,
            limited: 0,
        }
    }
}

impl TooBig {
    /// Returns the error of [`too_big`] for `frame`, or `None` beyond the limit.
    pub fn answer(
        &mut self,
        frame: &Frame,
        mtu: usize,
        routers: &[IpAddr],
        now_ns: u64,
    ) -> Option<Vec<u8>> {
        if self.bucket.available(now_ns) == 0 {
            self.limited += 1;
            return None;
        }
        let answer = too_big(frame, mtu, routers)?;
        self.bucket.charge(1);
        self.sent += 1;
        Some(answer)
    }

    /// Restores the whole burst, for another port, and keeps the counts.
    pub fn restart(&mut self) {
        self.bucket = TokenBucket::new(PER_S, BURST);
    }
}

/// Returns a frame that reports to the sender of `frame` that the next hop accepts packets of up to
/// `mtu` bytes. `routers` are the sender's gateways. The source of the error is the first of them
/// in the packet's address family, or else the packet's destination address.
///
/// Returns `None` for packets that must not be answered: anything except a unicast IP packet above
/// `mtu`, a packet that routers may fragment, an ICMP error, and a fragment other than the first.
#[must_use]
pub fn too_big(frame: &Frame, mtu: usize, routers: &[IpAddr]) -> Option<Vec<u8>> {
    let packet = Packet::parse(frame.header()).ok()?;
    if packet.source.is_group() || packet.destination.is_group() {
        return None;
    }
    let answer = match packet.network {
        Network::Ipv4(ip) => ipv4(frame, packet.network_at, &ip, mtu, routers),
        Network::Ipv6(ip) => ipv6(frame, packet.network_at, &ip, mtu, routers),
        Network::Arp(_) | Network::Other => None,
    }?;
    // The error travels in the reverse direction, so its MACs are swapped; its tags are the same.
    let (Mac(to), Mac(from)) = (packet.source, packet.destination);
    let kind = frame.header().get(12..packet.network_at)?;
    Some([&to[..], &from, kind, &answer].concat())
}

fn ipv4(frame: &Frame, at: usize, ip: &Ipv4, mtu: usize, routers: &[IpAddr]) -> Option<Vec<u8>> {
    // Destination unreachable, source quench, redirect, time exceeded, parameter problem.
    const ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
    let header = frame.header();
    let kept = be16(header, at + 6).is_ok_and(|flags| flags & DONT_FRAGMENT != 0);
    if !kept || ip.total_len <= mtu || ip.is_later_fragment() {
        return None;
    }
    let kind = header.get(ip.transport_at);
    if ip.protocol == protocol::ICMP && kind.is_none_or(|kind| ERRORS.contains(kind)) {
        return None;
    }
    if !is_station_v4(ip.source) || !is_station_v4(ip.destination) {
        return None;
    }
    let router = |router: &IpAddr| match router {
        IpAddr::V4(router) if *router != ip.source && is_station_v4(*router) => Some(*router),
        _ => None,
    };
    let from = routers.iter().find_map(router).unwrap_or(ip.destination);
    let mut bytes = [0; ETHERNET_MAX + IPV4_QUOTE_MAX];
    let known = frame.prefix(&mut bytes).ok()?;
    let quote = bytes.get(at..known.min(ip.transport_at + 8))?;

    let next_hop = u16::try_from(mtu).unwrap_or(u16::MAX).to_be_bytes();
    let mut icmp = [&[3, 4, 0, 0, 0, 0][..], &next_hop, quote].concat();
    fill_in(&mut icmp, 2, 0)?;
    let [high, low] = ((IPV4_BYTES + icmp.len()) as u16).to_be_bytes();
    // Identification 0, don't fragment; space for the checksum.
    let head = [0x45, PRECEDENCE, high, low, 0, 0, 0x40, 0, HOP_LIMIT];
    let rest = [protocol::ICMP, 0, 0];
    let (own, to) = (from.octets(), ip.source.octets());
    let mut head = [&head[..], &rest, &own, &to].concat();
    fill_in(&mut head, 10, 0)?;
    Some([head, icmp].concat())
}

fn ipv6(frame: &Frame, at: usize, ip: &Ipv6, mtu: usize, routers: &[IpAddr]) -> Option<Vec<u8>> {
    // Error types are below this one.
    const INFORMATIONAL: u8 = 128;
    const REDIRECT: u8 = 137;
    // Hosts discard an error with an MTU below IPv6's minimum (RFC 8201, 4).
    if mtu < IPV6_MIN_MTU || IPV6_BYTES + ip.payload_len <= mtu || ip.is_later_fragment() {
        return None;
    }
    let is_error = |kind: &u8| *kind < INFORMATIONAL || *kind == REDIRECT;
    let kind = frame.header().get(ip.transport_at);
    if ip.protocol == protocol::ICMPV6 && kind.is_none_or(is_error) {
        return None;
    }
    if !is_station_v6(ip.source) || !is_station_v6(ip.destination) {
        return None;
    }
    let router = |router: &IpAddr| match router {
        IpAddr::V6(router) if *router != ip.source && is_station_v6(*router) => Some(*router),
        _ => None,
    };
    let from = routers.iter().find_map(router).unwrap_or(ip.destination);
    let mut bytes = [0; ETHERNET_MAX + IPV6_MIN_MTU];
    let known = frame.prefix(&mut bytes).ok()?;
    let longest = at + IPV6_MIN_MTU - IPV6_BYTES - ICMP_BYTES;
    let quote = bytes.get(at..known.min(longest))?;

    let next_hop = u32::try_from(mtu).unwrap_or(u32::MAX).to_be_bytes();
    let mut icmp = [&[2, 0, 0, 0][..], &next_hop, quote].concat();
    let len = icmp.len();
    fill_in(
        &mut icmp,
        2,
        pseudo_v6(from, ip.source, protocol::ICMPV6, len),
    )?;
    let [high, low] = (len as u16).to_be_bytes();
    let head = [0x60, 0, 0, 0, high, low, protocol::ICMPV6, HOP_LIMIT];
    let (own, to) = (from.octets(), ip.source.octets());
    Some([&head[..], &own, &to, &icmp].concat())
}

/// Writes the checksum of `bytes` at `at`; `initial` is a pseudo header's sum.
fn fill_in(bytes: &mut [u8], at: usize, initial: u32) -> Option<()> {
    let mut sum = Sum::new(initial);
    sum.add_bytes(bytes);
    let field = bytes.get_mut(at..at + 2)?;
    field.copy_from_slice(&sum.finish().to_be_bytes());
    Some(())
}

/// Returns whether the address is a unicast address other than a loopback address.
fn is_station_v4(address: Ipv4Addr) -> bool {
    let [first, ..] = address.octets();
    // 0/8 (this network), loopback, multicast, reserved and broadcast.
    !matches!(first, 0 | 127 | 224..)
}

/// Returns whether the address is a unicast address other than a loopback address.
fn is_station_v6(address: Ipv6Addr) -> bool {
    !address.is_unspecified() && !address.is_loopback() && !address.is_multicast()
}
