//! Identity of a flow, and of a packet in it.

use super::Direction;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// UDP ports of a DHCP server and client, for IPv4 and IPv6.
const DHCP: [(u16, u16); 2] = [(67, 68), (547, 546)];

/// Addresses, protocol and ports of a packet, as source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tuple {
    /// IPv4 addresses are mapped (`::ffff:0:0/96`).
    pub(super) source: u128,
    pub(super) destination: u128,
    /// 0 if the protocol has no ports; for an echo, its identifier.
    pub(super) source_port: u16,
    pub(super) destination_port: u16,
    pub(super) protocol: u8,
    pub(super) v6: bool,
    /// For an echo, whether it is a request.
    pub(super) is_request: Option<bool>,
}

/// Identity of a flow at a port, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FlowKey {
    /// The station behind the port.
    pub(super) inside: u128,
    /// The other station.
    pub(super) outside: u128,
    /// Ports, protocol and version: see `entry`.
    pub(super) rest: u64,
}

impl FlowKey {
    /// Creates a key; `sides` are the ports inside and outside.
    pub(super) const fn new(
        inside: u128,
        outside: u128,
        sides: (u16, u16),
        protocol: u8,
        v6: bool,
    ) -> Self {
        let ports = (sides.0 as u32) << 16 | sides.1 as u32;
        Self::with_ports(inside, outside, ports, protocol, v6)
    }

    /// Creates a key; `ports` are the ports inside and outside as one word.
    #[inline]
    pub(super) const fn with_ports(
        inside: u128,
        outside: u128,
        ports: u32,
        protocol: u8,
        v6: bool,
    ) -> Self {
        let version = if v6 { 6 } else { 4 };
        Self {
            inside,
            outside,
            rest: (ports as u64) << 16 | (protocol as u64) << 8 | version,
        }
    }

    /// Returns the ports inside and outside as one word.
    #[inline]
    pub(super) const fn ports(&self) -> u32 {
        (self.rest >> 16) as u32
    }

    pub(super) const fn protocol(&self) -> u8 {
        (self.rest >> 8) as u8
    }

    pub(super) const fn is_v6(&self) -> bool {
        self.rest as u8 == 6
    }

    /// Returns the key with inside and outside exchanged.
    #[inline]
    pub(super) const fn reversed(&self) -> Self {
        let ports = self.ports().rotate_left(16);
        Self {
            inside: self.outside,
            outside: self.inside,
            rest: self.rest & 0xffff | (ports as u64) << 16,
        }
    }
}

impl Tuple {
    /// Creates a tuple; `ports` are the packet's source and destination port as one word.
    #[inline]
    pub(super) const fn with_ports(
        source: u128,
        destination: u128,
        ports: u32,
        protocol: u8,
        v6: bool,
    ) -> Self {
        Self {
            source,
            destination,
            source_port: (ports >> 16) as u16,
            destination_port: ports as u16,
            protocol,
            v6,
            is_request: None,
        }
    }

    /// Returns the flow of such a packet if it passes a port in this direction.
    #[inline]
    pub(super) fn key(&self, direction: Direction) -> FlowKey {
        let ports = match (self.is_request, direction) {
            (None, Direction::In) => (self.source_port, self.destination_port),
            (None, Direction::Out) => (self.destination_port, self.source_port),
            // An echo has one identifier. The other port encodes the requesting side, so that a
            // request never matches a reply's flow.
            (Some(is_request), _) => (
                self.source_port,
                1 + u16::from(is_request == (direction == Direction::In)),
            ),
        };
        let (inside, outside) = match direction {
            Direction::In => (self.source, self.destination),
            Direction::Out => (self.destination, self.source),
        };
        FlowKey::new(inside, outside, ports, self.protocol, self.v6)
    }
}

/// Role of a packet in its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketKind {
    /// TCP, with these flags.
    Tcp(u8),
    /// An echo request, or an echo reply.
    Echo { is_request: bool },
    /// DHCP from a client to a server, or back, for IPv4 or IPv6.
    Dhcp { is_request: bool, v6: bool },
    /// Anything else.
    Datagram,
}

/// Returns an IPv4 address as keys contain it.
pub(super) fn mapped(address: u32) -> u128 {
    0xffff_0000_0000 | u128::from(address)
}

/// Returns the role of a UDP packet with these source and destination ports.
#[inline]
pub(super) fn datagram(ports: u32, v6: bool) -> PacketKind {
    let (from, to) = ((ports >> 16) as u16, ports as u16);
    let (server, client) = DHCP[usize::from(v6)];
    match () {
        () if (from, to) == (client, server) => PacketKind::Dhcp {
            is_request: true,
            v6,
        },
        () if (from, to) == (server, client) => PacketKind::Dhcp {
            is_request: false,
            v6,
        },
        () => PacketKind::Datagram,
    }
}

/// Returns an address of a key.
pub(super) fn address_of(bits: u128, v6: bool) -> IpAddr {
    match v6 {
        true => Ipv6Addr::from_bits(bits).into(),
        false => Ipv4Addr::from_bits(bits as u32).into(),
    }
}

/// Returns whether an address of a key is a mapped IPv4 address.
pub(super) const fn is_mapped(bits: u128) -> bool {
    bits >> 32 == 0xffff
}

/// The secret of a hash, and its rotations.
#[derive(Clone, Copy, Debug)]
pub(super) struct HashKeys {
    pub(super) secret: [u64; 2],
    rotated: [u64; 3],
}

impl HashKeys {
    pub(super) const fn new(secret: [u64; 2]) -> Self {
        let [first, second] = secret;
        Self {
            secret,
            rotated: [
                second.rotate_left(17),
                first.rotate_left(29),
                first.rotate_left(43),
            ],
        }
    }

    /// Hashes two addresses and a word. Without the secret, a sender cannot choose packets that
    /// collide.
    #[inline]
    pub(super) const fn hash(&self, a: u128, b: u128, rest: u64) -> u64 {
        let ([first, second], [third, fourth, fifth]) = (self.secret, self.rotated);
        let a = fold(a as u64 ^ first, (a >> 64) as u64 ^ second);
        let b = fold(b as u64 ^ third, (b >> 64) as u64 ^ fourth);
        fold(a ^ rest ^ fifth, b ^ rest.rotate_left(32) ^ second)
    }
}

/// Returns the exclusive or of both halves of the product.
#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128) * (b as u128);
    product as u64 ^ (product >> 64) as u64
}
