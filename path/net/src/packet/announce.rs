//! Announcements of an address to a network: an ARP announcement (RFC 5227, 2.3) or an unsolicited
//! neighbour advertisement (RFC 4861, 7.2.6). Announcements of a MAC alone: a reverse ARP request
//! (RFC 903).

use super::Mac;
use super::checksum::{Sum, pseudo_v6};
use super::constants::{ETHERNET_BYTES, ethertype, protocol};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The all-nodes group of a link, and its Ethernet address.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);
/// Length of the Ethernet and the IPv6 header.
const ADVERTISEMENT_AT: usize = ETHERNET_BYTES + 40;

/// Returns the frame by which a station announces an address.
#[must_use]
pub fn announcement(mac: Mac, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => arp(mac, address),
        IpAddr::V6(address) => advertisement(mac, address),
    }
}

/// Returns a frame from which switches learn the location of a station with unknown IP addresses.
#[must_use]
pub fn reverse_request(mac: Mac) -> Vec<u8> {
    // Ethernet and IPv4, their address lengths, and a request for the address of a MAC.
    const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 3];
    let header = ethernet(Mac::BROADCAST, mac, ethertype::RARP);
    [&header[..], &REQUEST, &mac.0, &[0; 4], &mac.0, &[0; 4]].concat()
}

fn ethernet(to: Mac, from: Mac, ethertype: u16) -> Vec<u8> {
    [&to.0[..], &from.0, &ethertype.to_be_bytes()].concat()
}

fn arp(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    // Ethernet and IPv4, their address lengths, and a request (for the sender's own address).
    const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    let own = address.octets();
    let header = ethernet(Mac::BROADCAST, mac, ethertype::ARP);
    [&header[..], &REQUEST, &mac.0, &own, &[0; 6], &own].concat()
}

fn advertisement(mac: Mac, address: Ipv6Addr) -> Vec<u8> {
    // Type and code, space for the checksum, the override flag.
    const HEAD: [u8; 8] = [136, 0, 0, 0, 0x20, 0, 0, 0];
    // The target's link-layer address option, eight bytes in all.
    const LINK_ADDRESS: [u8; 2] = [2, 1];
    let body = [&HEAD[..], &address.octets(), &LINK_ADDRESS, &mac.0].concat();
    let mut sum = Sum::new(pseudo_v6(address, ALL_NODES, protocol::ICMPV6, body.len()));
    sum.add_bytes(&body);
    let header = ethernet(ALL_NODES_MAC, mac, ethertype::IPV6);
    let bytes = (body.len() as u16).to_be_bytes();
    // Version 6; hop limit 255, which proves that no router has forwarded the packet.
    let ip = [&[0x60, 0, 0, 0][..], &bytes, &[protocol::ICMPV6, 255]].concat();
    let (from, to) = (address.octets(), ALL_NODES.octets());
    let mut frame = [&header[..], &ip, &from, &to, &body].concat();
    let checksum = ADVERTISEMENT_AT + 2..ADVERTISEMENT_AT + 4;
    frame[checksum].copy_from_slice(&sum.finish().to_be_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::{
        ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, Icmpv6Packet, Icmpv6Repr,
        Ipv6Packet, NdiscNeighborFlags, NdiscRepr,
    };

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

    #[test]
    fn arp_announcement_requests_its_own_address() {
        let own = Ipv4Addr::new(10, 0, 0, 9);
        let bytes = announcement(MAC, own.into());
        let frame = EthernetFrame::new_checked(&bytes).unwrap();
        assert_eq!(frame.dst_addr(), EthernetAddress::BROADCAST);
        assert_eq!(frame.src_addr().0, MAC.0);
        let packet = ArpPacket::new_checked(frame.payload()).unwrap();
        let said = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: EthernetAddress(MAC.0),
            source_protocol_addr: own,
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: own,
        };
        assert_eq!(ArpRepr::parse(&packet), Ok(said));
    }

    #[test]
    fn reverse_request_names_the_mac_and_no_address() {
        let bytes = reverse_request(MAC);
        let frame = EthernetFrame::new_checked(&bytes).unwrap();
        assert_eq!(frame.dst_addr(), EthernetAddress::BROADCAST);
        assert_eq!(
            (frame.src_addr().0, &bytes[12..14]),
            (MAC.0, &[0x80, 0x35][..])
        );
        let packet = ArpPacket::new_checked(frame.payload()).unwrap();
        assert_eq!(packet.operation(), ArpOperation::Unknown(3));
        let macs = [packet.source_hardware_addr(), packet.target_hardware_addr()];
        assert_eq!(macs, [&MAC.0; 2]);
        let addresses = [packet.source_protocol_addr(), packet.target_protocol_addr()];
        assert_eq!(addresses, [&[0; 4]; 2]);
    }

    #[test]
    fn advertisement_overrides_at_all_nodes() {
        let own: Ipv6Addr = "fd00::9".parse().unwrap();
        let bytes = announcement(MAC, own.into());
        let frame = EthernetFrame::new_checked(&bytes).unwrap();
        assert_eq!(frame.dst_addr().0, ALL_NODES_MAC.0);
        let ip = Ipv6Packet::new_checked(frame.payload()).unwrap();
        assert_eq!((ip.hop_limit(), ip.dst_addr()), (255, ALL_NODES));
        let packet = Icmpv6Packet::new_checked(ip.payload()).unwrap();
        let checked = smoltcp::phy::ChecksumCapabilities::default();
        let (from, to) = (ip.src_addr(), ip.dst_addr());
        let said = Icmpv6Repr::parse(&from, &to, &packet, &checked).unwrap();
        let advert = NdiscRepr::NeighborAdvert {
            flags: NdiscNeighborFlags::OVERRIDE,
            target_addr: own,
            lladdr: Some(EthernetAddress(MAC.0).into()),
        };
        assert_eq!(said, Icmpv6Repr::Ndisc(advert));
    }
}
