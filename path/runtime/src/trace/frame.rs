//! Description of the packet in a trace.

use crate::report::hex;
use net::packet::{Network, Packet, Transport, protocol};
use nic::{Checksum, Frame};
use serde_json::{Value, json};
use std::fmt::Display;

/// Number of header bytes in a trace.
const HEADER_BYTES: usize = 64;

pub(super) fn describe(frame: &Frame) -> Value {
    let header = frame.header();
    let shown = header.get(..HEADER_BYTES.min(header.len())).unwrap_or(&[]);
    json!({
        "packet": summary(header),
        "bytes": frame.len(),
        "pieces": frame.pieces.len(),
        "checksum": match frame.offload.checksum {
            Checksum::Unknown => "as is",
            Checksum::Blank { .. } => "blank",
            Checksum::Valid => "valid",
        },
        "gso_bytes": frame.offload.gso.map(|gso| gso.size),
        "header": hex(shown),
    })
}

/// Returns the source and destination in one line.
fn summary(header: &[u8]) -> String {
    let Ok(packet) = Packet::parse(header) else {
        return "headers that cannot be parsed".into();
    };
    let stations = format!("{} > {}", packet.source, packet.destination);
    let what = match packet.network {
        Network::Arp(arp) if arp.operation == 1 => {
            format!("ARP: who has {}, asks {}", arp.target, arp.sender)
        }
        Network::Arp(arp) => format!("ARP: {} is at {}", arp.sender, arp.sender_mac),
        Network::Ipv4(ip) => flow(header, &packet, ip.protocol, &ip.source, &ip.destination),
        Network::Ipv6(ip) => flow(header, &packet, ip.protocol, &ip.source, &ip.destination),
        Network::Other => format!("EtherType {:#06x}", packet.ethertype),
    };
    let tags = ["", ", VLAN", ", two VLAN tags"];
    let tags = tags.get(packet.tags).unwrap_or(&"");
    format!("{what} ({stations}{tags})")
}

fn flow(
    header: &[u8],
    packet: &Packet,
    number: u8,
    source: &dyn Display,
    destination: &dyn Display,
) -> String {
    let name = match number {
        protocol::TCP => "TCP".to_owned(),
        protocol::UDP => "UDP".to_owned(),
        protocol::ICMP | protocol::ICMPV6 => "ICMP".to_owned(),
        other => format!("IP protocol {other}"),
    };
    let at = match packet.transport(header) {
        Ok(Transport::Tcp(tcp)) => Some(tcp.at),
        Ok(Transport::Udp { at }) => Some(at),
        _ => None,
    };
    let ports = at.and_then(|at| header.get(at..)?.first_chunk::<4>());
    match ports {
        Some(&[a, b, c, d]) => {
            let (from, to) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            format!("{name} {source} port {from} > {destination} port {to}")
        }
        None => format!("{name} {source} > {destination}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_summarized_in_one_line() {
        let mut header = [0u8; 42];
        header[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
        header[14] = 0x45;
        header[17] = 28;
        header[23] = protocol::UDP;
        header[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
        header[34..38].copy_from_slice(&[0x1f, 0x90, 0, 53]);
        assert_eq!(
            summary(&header),
            "UDP 10.0.0.2 port 8080 > 10.0.0.1 port 53 (02:00:00:00:00:02 > 02:00:00:00:00:01)"
        );
        header[23] = protocol::ICMP;
        assert!(summary(&header).starts_with("ICMP 10.0.0.2 > 10.0.0.1 (02:"));
        header[12..14].copy_from_slice(&[8, 6]);
        header[14..22].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
        header[22..42]
            .copy_from_slice(&[2, 0, 0, 0, 0, 2, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
        assert!(summary(&header).starts_with("ARP: who has 10.0.0.1, asks 10.0.0.2 (02:"));
        header[21] = 2;
        assert!(summary(&header).starts_with("ARP: 10.0.0.2 is at 02:00:00:00:00:02 (02:"));
        header[12..14].copy_from_slice(&[0x88, 0xcc]);
        assert!(summary(&header).starts_with("EtherType 0x88cc (02:"));
        assert_eq!(summary(&header[..13]), "headers that cannot be parsed");
    }
}
