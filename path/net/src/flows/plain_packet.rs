//! The most common packets: TCP and UDP directly after an IP header.

use super::Direction;
use super::key::{FlowKey, PacketKind, Tuple, datagram, mapped};
use crate::packet::{ethertype, protocol};
use nic::small_frame::HEAD_BYTES;

/// An unfragmented TCP segment or UDP datagram without VLAN tag, IP options and extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainPacket {
    /// The flow if the source is inside.
    key: FlowKey,
    pub(super) kind: PacketKind,
}

impl PlainPacket {
    /// Parses a frame's snapshot; returns `None` for every other packet.
    #[must_use]
    #[inline(always)]
    pub fn of(header: &[u8]) -> Option<Self> {
        let head = header.first_chunk::<48>()?;
        match u16::from_be_bytes([head[12], head[13]]) {
            ethertype::IPV4 => v4(header, head),
            ethertype::IPV6 => v6(header),
            _ => None,
        }
    }

    /// Returns whether a frame with this beginning can be a plain packet, and [`PlainPacket::of`]
    /// needs more of it: TCP over IPv6.
    #[must_use]
    #[inline]
    pub const fn needs_more(head: &[u8; HEAD_BYTES]) -> bool {
        let ethertype = u16::from_be_bytes([head[12], head[13]]);
        ethertype == ethertype::IPV6 && head[20] == protocol::TCP
    }

    /// Returns the flow of the packet if it passes a port in this direction.
    #[inline]
    pub(super) fn key(&self, direction: Direction) -> FlowKey {
        match direction {
            Direction::In => self.key,
            Direction::Out => self.key.reversed(),
        }
    }

    /// Returns addresses, ports and protocol.
    pub(super) const fn tuple(&self) -> Tuple {
        let key = &self.key;
        Tuple::with_ports(
            key.inside,
            key.outside,
            key.ports(),
            key.protocol(),
            key.is_v6(),
        )
    }
}

#[inline(always)]
fn v4(header: &[u8], head: &[u8; 48]) -> Option<PlainPacket> {
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let is_plain = head[14] == 0x45 && word(18) & 0x3fff == 0;
    let (len, ports) = (word(16) >> 16, word(34));
    let kind = match head[23] {
        protocol::TCP if is_plain && len >= 40 && header.len() >= 54 && head[46] >> 4 >= 5 => {
            PacketKind::Tcp(head[47])
        }
        protocol::UDP if is_plain && len >= 28 => datagram(ports, false),
        _ => return None,
    };
    let key = FlowKey::with_ports(mapped(word(26)), mapped(word(30)), ports, head[23], false);
    Some(PlainPacket { key, kind })
}

#[inline(always)]
fn v6(header: &[u8]) -> Option<PlainPacket> {
    let head = header.first_chunk::<58>()?;
    let address = |at: usize| {
        let bytes = head.get(at..)?.first_chunk()?;
        Some(u128::from_be_bytes(*bytes))
    };
    let ports = u32::from_be_bytes([head[54], head[55], head[56], head[57]]);
    let len = u16::from_be_bytes([head[18], head[19]]);
    let kind = match head[20] {
        protocol::TCP if len >= 20 => {
            let head = header.first_chunk::<74>()?;
            let is_header = head[66] >> 4 >= 5;
            PacketKind::Tcp(Some(head[67]).filter(|_| is_header)?)
        }
        protocol::UDP if len >= 8 => datagram(ports, true),
        _ => return None,
    };
    let key = FlowKey::with_ports(address(22)?, address(38)?, ports, head[20], true);
    (head[14] >> 4 == 6).then_some(PlainPacket { key, kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::identity::{SubjectKind, parsed};
    use proptest::prelude::*;

    /// Returns an IPv4 or IPv6 frame whose other fields are mostly those of a plain packet.
    fn frame(v6: bool, bytes: Vec<u8>, fields: &[(usize, u8)]) -> Vec<u8> {
        let mut frame = bytes;
        let plain: &[(usize, u8)] = match v6 {
            false => &[
                (12, 8),
                (13, 0),
                (14, 0x45),
                (16, 0),
                (17, 60),
                (20, 0x40),
                (21, 0),
                (23, 6),
                (46, 0x50),
            ],
            true => &[
                (12, 0x86),
                (13, 0xdd),
                (14, 0x60),
                (18, 0),
                (19, 30),
                (20, 17),
                (66, 0x50),
            ],
        };
        for (at, value) in plain.iter().chain(fields) {
            if let Some(byte) = frame.get_mut(*at) {
                *byte = *value;
            }
        }
        frame
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// FW-1: a plain packet has the flow that all its headers show.
        #[test]
        fn plain_packets_are_read_like_all_others(
            v6: bool,
            bytes in prop::collection::vec(any::<u8>(), 40..100),
            fields in prop::collection::vec((12usize..70, any::<u8>()), 0..3),
            protocol in prop::sample::select(vec![protocol::TCP, protocol::UDP, 44, 1]),
        ) {
            let next = if v6 { 20 } else { 23 };
            let fields = [&[(next, protocol)][..], &fields].concat();
            let frame = frame(v6, bytes, &fields);
            if let Some(packet) = PlainPacket::of(&frame) {
                let tuple = packet.tuple();
                prop_assert_eq!(SubjectKind::Packet(tuple, packet.kind, None), parsed(&frame));
                for direction in [Direction::In, Direction::Out] {
                    prop_assert_eq!(packet.key(direction), tuple.key(direction));
                }
            }
        }
    }

    #[test]
    fn most_packets_are_plain() {
        for (v6, at) in [(false, 23), (true, 20)] {
            for number in [protocol::TCP, protocol::UDP] {
                assert!(PlainPacket::of(&frame(v6, vec![9; 96], &[(at, number)])).is_some());
            }
        }
    }
}
