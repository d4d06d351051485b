//! Packets between a station inside and stations outside, built byte by byte.

use net::flows::Direction;
use net::packet::protocol;

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

/// A conversation of one station inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Talk {
    pub(super) v6: bool,
    pub(super) other: u8,
    pub(super) port_inside: u16,
    pub(super) port_outside: u16,
}

pub(super) const CONVERSATION: Talk = Talk {
    v6: false,
    other: 9,
    port_inside: 40_000,
    port_outside: 443,
};

/// Fields that describe a fragment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    pub(super) id: u16,
    pub(super) offset: u16,
    pub(super) more: bool,
}

impl Talk {
    fn address(self, other: bool) -> Vec<u8> {
        let last = if other { self.other } else { 1 };
        match self.v6 {
            true => [
                &[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
                &[last],
            ]
            .concat(),
            false => vec![10, 0, 0, last],
        }
    }

    /// Returns an IP packet, starting at its own header.
    fn packet(
        self,
        direction: Direction,
        number: u8,
        transport: &[u8],
        part: Option<Part>,
    ) -> Vec<u8> {
        let ends = match direction {
            Direction::In => [self.address(false), self.address(true)],
            Direction::Out => [self.address(true), self.address(false)],
        };
        let fragment = part.map(|part| part.offset << 3 | u16::from(part.more));
        let mut bytes = Vec::new();
        if self.v6 {
            let extra = if part.is_some() { 8 } else { 0 };
            bytes.extend([0x60, 0, 0, 0]);
            bytes.extend(((transport.len() + extra) as u16).to_be_bytes());
            let hops = if number == protocol::ICMPV6 { 255 } else { 64 };
            bytes.extend([if part.is_some() { 44 } else { number }, hops]);
            bytes.extend(ends.concat());
            if let (Some(part), Some(word)) = (part, fragment) {
                bytes.extend([number, 0]);
                bytes.extend(word.to_be_bytes());
                bytes.extend([0, 0]);
                bytes.extend(part.id.to_be_bytes());
            }
        } else {
            bytes.extend([0x45, 0]);
            bytes.extend((20 + transport.len() as u16).to_be_bytes());
            bytes.extend(part.unwrap_or_default().id.to_be_bytes());
            let word = part.map_or(0x4000, |part| part.offset | u16::from(part.more) << 13);
            bytes.extend(word.to_be_bytes());
            bytes.extend([64, number, 0, 0]);
            bytes.extend(ends.concat());
        }
        bytes.extend(transport);
        bytes
    }

    pub(super) fn frame(
        self,
        direction: Direction,
        number: u8,
        transport: &[u8],
        part: Option<Part>,
    ) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        bytes.extend(if self.v6 { [0x86, 0xdd] } else { [8, 0] });
        bytes.extend(self.packet(direction, number, transport, part));
        bytes
    }

    fn ports(self, direction: Direction) -> [u8; 4] {
        let (from, to) = match direction {
            Direction::In => (self.port_inside, self.port_outside),
            Direction::Out => (self.port_outside, self.port_inside),
        };
        let ([a, b], [c, d]) = (from.to_be_bytes(), to.to_be_bytes());
        [a, b, c, d]
    }

    fn tcp_bytes(self, direction: Direction, flags: u8) -> Vec<u8> {
        let mut bytes = self.ports(direction).to_vec();
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        bytes
    }

    fn udp_bytes(self, direction: Direction) -> Vec<u8> {
        [&self.ports(direction)[..], &[0, 16, 0, 0], &[7; 8]].concat()
    }

    fn icmp(self) -> u8 {
        if self.v6 {
            protocol::ICMPV6
        } else {
            protocol::ICMP
        }
    }

    fn echo_bytes(self, is_request: bool) -> Vec<u8> {
        let kind = match (self.v6, is_request) {
            (false, true) => 8,
            (false, false) => 0,
            (true, true) => 128,
            (true, false) => 129,
        };
        let [a, b] = self.port_inside.to_be_bytes();
        vec![kind, 0, 0, 0, a, b, 0, 1, 7, 7, 7, 7, 7, 7, 7, 7]
    }

    pub(super) fn tcp(self, direction: Direction, flags: u8) -> Vec<u8> {
        self.frame(
            direction,
            protocol::TCP,
            &self.tcp_bytes(direction, flags),
            None,
        )
    }

    pub(super) fn udp(self, direction: Direction) -> Vec<u8> {
        self.frame(direction, protocol::UDP, &self.udp_bytes(direction), None)
    }

    pub(super) fn echo(self, direction: Direction, is_request: bool) -> Vec<u8> {
        self.frame(direction, self.icmp(), &self.echo_bytes(is_request), None)
    }

    /// Returns a fragment of a UDP datagram.
    pub(super) fn part(self, direction: Direction, part: Part) -> Vec<u8> {
        let bytes = match part.offset {
            0 => self.udp_bytes(direction),
            _ => vec![7; 16],
        };
        self.frame(direction, protocol::UDP, &bytes, Some(part))
    }

    /// Returns an ICMP error in this direction about a packet of the conversation in the other
    /// direction.
    pub(super) fn error(self, direction: Direction, about: u8) -> Vec<u8> {
        let back = direction.opposite();
        let inner = match about {
            protocol::TCP => self.tcp_bytes(back, ACK),
            protocol::UDP => self.udp_bytes(back),
            _ => self.echo_bytes(true),
        };
        let inner = self.packet(back, about, &inner, None);
        let kind = if self.v6 { 1 } else { 3 };
        let bytes = [&[kind, 1, 0, 0, 0, 0, 0, 0], &inner[..]].concat();
        // A router sends each error from outside.
        let other = if direction == Direction::Out {
            200
        } else {
            self.other
        };
        let sender = Self { other, ..self };
        sender.frame(direction, self.icmp(), &bytes, None)
    }
}
