//! Enforcement of the identities that a guest may claim in ARP, in neighbour discovery (RFC 4861),
//! as a DHCP server, and as IP source.
//!
//! The bridge has already checked the Ethernet source. Other stations trust these packets, so a MAC
//! in them must be the frame's source, and an address must not belong to another port. A frame
//! whose headers obscure its type is dropped, because another station might understand what this
//! code cannot check.

use super::addresses::{Addresses, Owner};
use super::drops::DropReason;
use super::ethernet::{Ethernet, LENGTHS, is_disguised, word_of};
use super::port::PortPermissions;
use super::sources::Sources;
use crate::packet::{Arp, Ipv4, Ipv6, MAX_TAGS, Mac, Network, Packet, TAG_BYTES, Transport};
use crate::packet::{array, be16, byte, ethertype, protocol};
use nic::frame::SNAPSHOT_MAX;
use nic::small_frame::HEAD_BYTES;
use std::net::{IpAddr, Ipv6Addr};

/// ICMPv6 types of neighbour discovery.
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// UDP ports of DHCP clients (RFC 2131, 8415). Other programs do not use ports this low.
const DHCP_CLIENT: u16 = 68;
const DHCPV6_CLIENT: u16 = 546;

/// Options of neighbour discovery.
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;

/// Returns the number of header bytes that the bridge needs (less if the frame is shorter), or 0 if
/// [`nic::frame::SNAPSHOT_MIN`] suffice. Only frames with a VLAN tag, and IPv6 that is not directly
/// followed by TCP or UDP, need more, because they may have to be inspected.
#[must_use]
pub fn needed_header_bytes(header: &[u8]) -> usize {
    match be16(header, 12) {
        Ok(ethertype::IPV6) if is_plain(header) => 0,
        Ok(ethertype::IPV6 | ethertype::VLAN | ethertype::SERVICE_VLAN) => SNAPSHOT_MAX,
        _ => 0,
    }
}

/// Returns whether an untagged IPv6 header is followed by TCP or UDP.
fn is_plain(header: &[u8]) -> bool {
    matches!(byte(header, 20), Ok(protocol::TCP | protocol::UDP))
}

/// Returns whether the bridge inspects nothing behind this EtherType. It inspects tags, and 802.3
/// frames (whose length is in this field), because they may carry any protocol.
fn is_opaque(ethertype: u16) -> bool {
    ethertype >= LENGTHS
        && !matches!(
            ethertype,
            ethertype::ARP
                | ethertype::RARP
                | ethertype::IPV4
                | ethertype::IPV6
                | ethertype::VLAN
                | ethertype::SERVICE_VLAN
        )
}

/// The identities that a frame claims, if fields at fixed offsets tell them all: the frame is IPv4
/// without options or IPv6 followed by TCP or UDP, and not for a DHCP client, or the bridge
/// inspects nothing behind its EtherType. These claims alone decide whether the frame is
/// [harmless](Guard::harmless_claims).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claims {
    /// Ethernet source and EtherType, as loaded from memory.
    source: u64,
    address: ClaimedAddress,
}

/// The IP source that a frame claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimedAddress {
    None,
    V4(u32),
    V6(u128),
}

impl Claims {
    /// Claims that equal those of no frame, because their EtherType is a length.
    pub(super) const NONE: Self = Self {
        source: 0,
        address: ClaimedAddress::None,
    };

    /// Returns the claims of a frame if fields at fixed offsets tell them all. Requires 64 bytes of
    /// the frame.
    #[inline]
    fn of(header: &[u8]) -> Option<Self> {
        let source = Self::source_of(header)?;
        let address = match u16::from_be((source >> 48) as u16) {
            ethertype::IPV4 => ClaimedAddress::V4(plain_v4(header)?),
            ethertype::IPV6 => ClaimedAddress::V6(plain_v6(header)?),
            other if is_opaque(other) => ClaimedAddress::None,
            _ => return None,
        };
        Some(Self { source, address })
    }

    /// Returns whether a frame has these claims.
    #[inline]
    pub(super) fn are_those_of(self, header: &[u8]) -> bool {
        Self::source_of(header) == Some(self.source)
            && match self.address {
                ClaimedAddress::None => true,
                ClaimedAddress::V4(own) => plain_v4(header) == Some(own),
                ClaimedAddress::V6(own) => plain_v6(header) == Some(own),
            }
    }

    #[inline]
    fn source_of(header: &[u8]) -> Option<u64> {
        let [_, _, _, _, _, _, a, b, c, d, e, f, g, h] = *header.first_chunk()?;
        Some(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// Returns the source of an IPv4 packet without options that is not for a DHCP client.
#[inline]
fn plain_v4(header: &[u8]) -> Option<u32> {
    // Includes the destination port.
    let head = header.first_chunk::<38>()?;
    let to_client = head[23] == protocol::UDP && [head[36], head[37]] == DHCP_CLIENT.to_be_bytes();
    let address = u32::from_be_bytes([head[26], head[27], head[28], head[29]]);
    (head[14] == 0x45 && !to_client).then_some(address)
}

/// Returns the source of an IPv6 packet that is directly followed by TCP or UDP, and not for a
/// DHCPv6 client.
#[inline]
fn plain_v6(header: &[u8]) -> Option<u128> {
    // Includes the destination port.
    let head = header.first_chunk::<58>()?;
    let is_plain = match head[20] {
        protocol::TCP => true,
        protocol::UDP => [head[56], head[57]] != DHCPV6_CLIENT.to_be_bytes(),
        _ => false,
    };
    let address = u128::from_be_bytes(*head.get(22..)?.first_chunk()?);
    is_plain.then_some(address)
}

/// Identity enforcement for one guest port.
#[derive(Debug)]
pub(super) struct Guard {
    port: usize,
    macs: Vec<u64>,
    router: bool,
    dhcp_server: bool,
    confined: bool,
    /// Permitted IP sources; `None`: any.
    sources: Option<Sources>,
}

impl Guard {
    pub(super) fn new(
        port: usize,
        macs: &[Mac],
        permissions: &PortPermissions,
        own: &[IpAddr],
    ) -> Self {
        let macs = macs.iter().map(|mac| word_of(*mac)).collect();
        let sources = permissions.sources.as_deref();
        Self {
            port,
            macs,
            router: permissions.router,
            dhcp_server: permissions.dhcp_server,
            confined: permissions.confined,
            sources: sources.map(|prefixes| Sources::new(own, prefixes)),
        }
    }

    /// Returns whether this is one of the guest's MACs.
    pub(super) fn has(&self, mac: u64) -> bool {
        self.macs.contains(&mac)
    }

    /// Like [`Guard::harmless_claims`], but also requires that the frame's source is one of the
    /// guest's MACs.
    #[inline(never)]
    pub(super) fn permitted_claims(&self, header: &[u8; HEAD_BYTES]) -> Option<Claims> {
        let source = Ethernet::of(header.first_chunk()?).source;
        self.harmless_claims(header).filter(|_| self.has(source))
    }

    /// Returns the claims of a frame that needs no [inspection](Self::inspect), because its headers
    /// are at fixed offsets and claim only permitted identities; returns `None` if the frame needs
    /// an inspection. Other frames with the same claims need no inspection either. Requires 64
    /// bytes of the frame.
    #[inline]
    pub(super) fn harmless_claims(&self, header: &[u8]) -> Option<Claims> {
        Claims::of(header).filter(|claims| match (&self.sources, claims.address) {
            (None, _) | (_, ClaimedAddress::None) => true,
            (Some(sources), ClaimedAddress::V4(address)) => sources.has_v4(address),
            (Some(sources), ClaimedAddress::V6(address)) => sources.has_v6(address),
        })
    }

    /// Inspects a frame that is not [harmless](Self::harmless_claims); its source must be one of
    /// the guest's MACs.
    pub(super) fn inspect(
        &self,
        header: &[u8],
        source: u64,
        addresses: &Addresses,
    ) -> Result<(), DropReason> {
        let packet = match Packet::parse(header) {
            Ok(packet) => packet,
            // No station accepts this packet, and only its source would be checked.
            Err(_) if is_untagged_v4(header) && self.sources.is_none() => return Ok(()),
            Err(_) => return Err(DropReason::Obscure),
        };
        match packet.network {
            Network::Arp(arp) => self.arp(&arp, source, addresses),
            Network::Ipv4(ip) => self.ipv4(header, &packet, &ip),
            Network::Ipv6(ip) => self.ipv6(header, &packet, &ip, source, addresses),
            Network::Other if is_disguised(header, &packet) => Err(DropReason::Obscure),
            Network::Other => Ok(()),
        }
    }

    fn arp(&self, arp: &Arp, source: u64, addresses: &Addresses) -> Result<(), DropReason> {
        let honest =
            word_of(arp.sender_mac) == source && self.may_claim(arp.sender.into(), addresses);
        if honest {
            Ok(())
        } else {
            Err(DropReason::ForgedArp)
        }
    }

    fn ipv4(&self, header: &[u8], packet: &Packet, ip: &Ipv4) -> Result<(), DropReason> {
        if !self
            .sources
            .as_ref()
            .is_none_or(|own| own.has(ip.source.into()))
        {
            return Err(DropReason::ForgedAddress);
        }
        // A header of 60 bytes and a port fit into every snapshot, so a packet whose port is not
        // visible has none.
        let Ok(Transport::Udp { at }) = packet.transport(header) else {
            return Ok(());
        };
        match be16(header, at + 2) {
            Ok(DHCP_CLIENT) if !self.dhcp_server => Err(DropReason::ForgedDhcp),
            _ => Ok(()),
        }
    }

    fn ipv6(
        &self,
        header: &[u8],
        packet: &Packet,
        ip: &Ipv6,
        source: u64,
        addresses: &Addresses,
    ) -> Result<(), DropReason> {
        if !ip.is_later_fragment() {
            match ip.protocol {
                protocol::ICMPV6 => self.icmpv6(header, packet, ip, source, addresses)?,
                protocol::UDP => self.udpv6(header, packet)?,
                _ => {}
            }
        }
        match self.may_send_from(ip.source.into(), addresses) {
            true => Ok(()),
            false => Err(DropReason::ForgedAddress),
        }
    }

    fn udpv6(&self, header: &[u8], packet: &Packet) -> Result<(), DropReason> {
        let port = match packet.transport(header) {
            Ok(Transport::Udp { at }) => be16(header, at + 2),
            _ => return Err(DropReason::Obscure),
        };
        match port {
            Ok(DHCPV6_CLIENT) if !self.dhcp_server => Err(DropReason::ForgedDhcp),
            Ok(_) => Ok(()),
            Err(_) => Err(DropReason::Obscure),
        }
    }

    fn icmpv6(
        &self,
        header: &[u8],
        packet: &Packet,
        ip: &Ipv6,
        source: u64,
        addresses: &Addresses,
    ) -> Result<(), DropReason> {
        let at = match packet.transport(header) {
            Ok(Transport::Icmp { at }) => at,
            _ => return Err(DropReason::Obscure),
        };
        let kind = byte(header, at).map_err(|_| DropReason::Obscure)?;
        let options = match kind {
            ROUTER_SOLICITATION => 8,
            ROUTER_ADVERTISEMENT => 16,
            NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => 24,
            REDIRECT => 40,
            _ => return Ok(()),
        };
        // RFC 6980: neighbour discovery is never fragmented.
        if ip.fragment.is_some() {
            return Err(DropReason::Obscure);
        }
        if !self.router && matches!(kind, ROUTER_ADVERTISEMENT | REDIRECT) {
            return Err(DropReason::ForgedRouter);
        }
        let claimed = claimed(header, ip, at).ok_or(DropReason::Obscure)?;
        if !self.may_claim(claimed.into(), addresses) {
            return Err(DropReason::ForgedNd);
        }
        let end = packet.network_at + 40 + ip.payload_len;
        link_addresses(header, at + options, end, source)
    }

    /// Returns whether the guest may claim an address.
    fn may_claim(&self, address: IpAddr, addresses: &Addresses) -> bool {
        match addresses.owner(address) {
            Owner::Port(owner) => owner == self.port,
            Owner::Gateway => false,
            // A station that probes for a free address sends from the unspecified address.
            Owner::Unknown => !self.confined || address.is_unspecified() || is_link_local(address),
        }
    }

    /// Returns whether the guest may send IP packets from an address.
    fn may_send_from(&self, source: IpAddr, addresses: &Addresses) -> bool {
        let Some(own) = &self.sources else {
            return true;
        };
        own.has(source)
            || is_link_local(source)
                && match addresses.owner(source) {
                    Owner::Port(owner) => owner == self.port,
                    Owner::Gateway => false,
                    Owner::Unknown => true,
                }
    }
}

/// Returns the address that a neighbour discovery message with its ICMPv6 header at `at` announces:
/// the sender of a solicitation, the target of an advertisement.
fn claimed(header: &[u8], ip: &Ipv6, at: usize) -> Option<Ipv6Addr> {
    match byte(header, at) {
        Ok(NEIGHBOUR_ADVERTISEMENT) => array(header, at + 8).map(Ipv6Addr::from).ok(),
        _ => Some(ip.source),
    }
}

/// Returns the address that a dropped message of neighbour discovery announced.
pub(super) fn advertised(header: &[u8], ip: &Ipv6) -> Ipv6Addr {
    claimed(header, ip, ip.transport_at).unwrap_or(ip.source)
}

/// Returns whether a frame is IPv4 without a VLAN tag.
fn is_untagged_v4(header: &[u8]) -> bool {
    be16(header, 12) == Ok(ethertype::IPV4)
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.segments()[0] & 0xffc0 == 0xfe80)
}

/// Checks that every link-layer address in the options from `at` to `end` is the frame's source.
fn link_addresses(header: &[u8], at: usize, end: usize, source: u64) -> Result<(), DropReason> {
    let mut at = at;
    // Each iteration advances at least 8 bytes within a snapshot of 128.
    while at < end {
        let [kind, units] = array(header, at).map_err(|_| DropReason::Obscure)?;
        if units == 0 {
            return Err(DropReason::Obscure);
        }
        if matches!(kind, SOURCE_LINK_ADDRESS | TARGET_LINK_ADDRESS) {
            let mac = array(header, at + 2).map_err(|_| DropReason::Obscure)?;
            if word_of(Mac(mac)) != source {
                return Err(DropReason::ForgedNd);
            }
        }
        at += usize::from(units) * 8;
    }
    Ok(())
}

/// The longest inspected headers: tags, IPv6, and a redirect with one option.
const _: () = assert!(14 + MAX_TAGS * TAG_BYTES + 40 + 40 + 8 <= SNAPSHOT_MAX);
