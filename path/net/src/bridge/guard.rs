//! What a guest may claim about itself: ARP, and neighbour discovery (RFC 4861).
//!
//! The Ethernet source was checked before. Other stations believe what ARP and neighbour discovery
//! say, so it is checked as well: a MAC in them must be the frame's source, an address must not be
//! another port's. A frame whose headers hide what it is is dropped: another station might
//! understand what cannot be checked here.

use super::drops::DropReason;
use super::ethernet::word_of;
use crate::packet::{Arp, Ipv6, MAX_TAGS, Mac, Network, Packet, TAG_BYTES, Transport};
use crate::packet::{array, be16, byte, ethertype, protocol};
use nic::frame::SNAPSHOT;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// ICMPv6 types of neighbour discovery.
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// EtherTypes below this are lengths of 802.3 frames.
const LENGTHS: u16 = 1536;

/// Options of neighbour discovery.
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;

/// How many bytes of a frame's header the bridge wants to see, if the frame has so many; 0: no more
/// than [`nic::frame::HOT`]. More are wanted only of frames with a VLAN tag, and of IPv6 that is
/// not directly followed by TCP or UDP: they may have to be inspected.
#[must_use]
pub fn wanted(header: &[u8]) -> usize {
    match be16(header, 12) {
        Ok(ethertype::IPV6) if is_plain(header) => 0,
        Ok(ethertype::IPV6 | ethertype::VLAN | ethertype::SERVICE_VLAN) => SNAPSHOT,
        _ => 0,
    }
}

/// Whether an IPv6 header without a tag is followed by TCP or UDP.
fn is_plain(header: &[u8]) -> bool {
    matches!(byte(header, 20), Ok(protocol::TCP | protocol::UDP))
}

/// Whether a frame with this EtherType claims nothing about anybody but by its Ethernet source.
#[inline]
pub(super) fn is_harmless(ethertype: u16, header: &[u8]) -> bool {
    match ethertype {
        ethertype::IPV4 => true,
        ethertype::IPV6 => is_plain(header),
        other => is_opaque(other),
    }
}

/// Whether the bridge inspects nothing behind this EtherType: it is no tag, and no length of an
/// 802.3 frame, which may carry any protocol.
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

/// What is enforced on one guest port.
#[derive(Debug)]
pub(super) struct Guard {
    port: usize,
    macs: Vec<u64>,
    router: bool,
    /// Whether it may claim only addresses that are known to be its own.
    confined: bool,
}

impl Guard {
    pub(super) fn new(port: usize, macs: &[Mac], router: bool, confined: bool) -> Self {
        let macs = macs.iter().map(|mac| word_of(*mac)).collect();
        Self {
            port,
            macs,
            router,
            confined,
        }
    }

    /// Whether the guest has this MAC.
    pub(super) fn has(&self, mac: u64) -> bool {
        self.macs.contains(&mac)
    }

    /// Inspects a frame that is not [harmless](is_harmless); its source is one of the guest's.
    pub(super) fn inspect(
        &self,
        header: &[u8],
        source: u64,
        owners: &BTreeMap<IpAddr, usize>,
    ) -> Result<(), DropReason> {
        let packet = Packet::parse(header).map_err(|_| DropReason::Obscure)?;
        match packet.network {
            Network::Arp(arp) => self.arp(&arp, source, owners),
            Network::Ipv6(ip) => self.ipv6(header, &packet, &ip, source, owners),
            Network::Ipv4(_) => Ok(()),
            Network::Other if is_disguised(header, &packet) => Err(DropReason::Obscure),
            Network::Other => Ok(()),
        }
    }

    fn arp(
        &self,
        arp: &Arp,
        source: u64,
        owners: &BTreeMap<IpAddr, usize>,
    ) -> Result<(), DropReason> {
        let honest = word_of(arp.sender_mac) == source && self.may_claim(arp.sender.into(), owners);
        if honest {
            Ok(())
        } else {
            Err(DropReason::ForgedArp)
        }
    }

    fn ipv6(
        &self,
        header: &[u8],
        packet: &Packet,
        ip: &Ipv6,
        source: u64,
        owners: &BTreeMap<IpAddr, usize>,
    ) -> Result<(), DropReason> {
        if ip.protocol != protocol::ICMPV6 || ip.is_later_fragment() {
            return Ok(());
        }
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
        // A solicitation makes its sender known; an advertisement makes its target known.
        let claimed = if kind == NEIGHBOUR_ADVERTISEMENT {
            array(header, at + 8)
                .map(Ipv6Addr::from)
                .map_err(|_| DropReason::Obscure)?
        } else {
            ip.source
        };
        if !self.may_claim(claimed.into(), owners) {
            return Err(DropReason::ForgedNd);
        }
        let end = packet.network_at + 40 + ip.payload_len;
        link_addresses(header, at + options, end, source)
    }

    /// Whether the guest may say that an address is its own.
    fn may_claim(&self, address: IpAddr, owners: &BTreeMap<IpAddr, usize>) -> bool {
        match owners.get(&address) {
            Some(owner) => *owner == self.port,
            // A station that probes whether an address is free claims the unspecified one.
            None => !self.confined || address.is_unspecified() || is_link_local(address),
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.segments()[0] & 0xffc0 == 0xfe80)
}

/// Checks that every link-layer address in the options from `at` to `end` is the frame's source.
fn link_addresses(header: &[u8], at: usize, end: usize, source: u64) -> Result<(), DropReason> {
    let mut at = at;
    // Every step is at least 8 bytes within a snapshot of 128.
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

/// Whether an 802.3 frame carries its protocol behind a SNAP header (RFC 1042): some stacks would
/// take ARP and IP from there, and no known guest needs it.
pub(super) fn is_disguised(header: &[u8], packet: &Packet) -> bool {
    const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];
    packet.ethertype < LENGTHS && array(header, packet.network_at) == Ok(SNAP)
}

/// The longest headers that are inspected: tags, IPv6, and a redirect with one option.
const _: () = assert!(14 + MAX_TAGS * TAG_BYTES + 40 + 40 + 8 <= SNAPSHOT);
