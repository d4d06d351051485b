//! Rules of a port (a firewall): which frames may come in by it, and which may go out by it.
//!
//! A rule looks at a frame's snapshot alone. A field that the snapshot does not show (the ports of
//! a later fragment, all that is behind headers that cannot be followed) speaks against the frame:
//! it fits every rule that denies, and none that allows.

use super::ethernet::is_disguised;
use crate::packet::{Ipv6, Network, Packet, be16, ethertype, protocol};
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Which way a frame passes a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// It came in by the port.
    In,
    /// It goes out by the port.
    Out,
}

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: Address,
    /// Ones where addresses must agree, as the highest bits of the address's own width.
    mask: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    V4(u32),
    V6(u128),
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::V4(v4.to_bits()),
            IpAddr::V6(v6) => Self::V6(v6.to_bits()),
        }
    }
}

impl Prefix {
    /// All addresses that have the first `bits` bits of `address`; at most as many as it has.
    #[must_use]
    pub fn new(address: IpAddr, bits: u8) -> Self {
        let width = if address.is_ipv4() { 32 } else { 128 };
        let rest = u32::from(width - bits.min(width));
        let ones = u128::MAX >> (128 - u32::from(width));
        Self {
            address: address.into(),
            mask: ones.checked_shl(rest).unwrap_or(0) & ones,
        }
    }

    /// Whether an address begins with the prefix.
    pub(super) fn has(self, other: IpAddr) -> bool {
        self.contains(other.into())
    }

    fn contains(self, other: Address) -> bool {
        let differ = match (self.address, other) {
            (Address::V4(own), Address::V4(other)) => u128::from(own ^ other),
            (Address::V6(own), Address::V6(other)) => own ^ other,
            _ => return false,
        };
        differ & self.mask == 0
    }
}

/// One rule. A field that is none fits every frame; an address fits IP packets of its version only,
/// ports fit packets of protocols that have ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whether frames that fit may pass; otherwise they are dropped.
    pub allow: bool,
    /// Frames that pass the port this way; none: both ways.
    pub way: Option<Way>,
    /// The EtherType behind VLAN tags.
    pub ethertype: Option<u16>,
    /// The IP protocol, behind extension headers.
    pub protocol: Option<u8>,
    /// Where a packet comes from.
    pub source: Option<Prefix>,
    /// Where it goes.
    pub destination: Option<Prefix>,
    /// The port that it comes from.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// The port that it goes to.
    pub destination_ports: Option<RangeInclusive<u16>>,
}

impl Rule {
    /// The rule that fits every frame.
    #[must_use]
    pub const fn any(allow: bool) -> Self {
        Self {
            allow,
            way: None,
            ethertype: None,
            protocol: None,
            source: None,
            destination: None,
            source_ports: None,
            destination_ports: None,
        }
    }

    /// Whether it decides about a frame that passes `way`.
    fn decides(&self, way: Way, seen: &Inspected) -> bool {
        if self.way.is_some_and(|own| own != way) {
            return false;
        }
        let mut unknown = false;
        let mut fits = |answer: Option<Fits>| {
            unknown |= answer == Some(Fits::Unknown);
            answer != Some(Fits::No)
        };
        let is = |own: u16| seen.ethertype.fits(|other| *other == own);
        let carries = |own: u8| seen.protocol.fits(|other| *other == own);
        let from = |own: Prefix| seen.addresses.fits(|(from, _)| own.contains(*from));
        let to = |own: Prefix| seen.addresses.fits(|(_, to)| own.contains(*to));
        let (from_port, to_port) = (self.source_ports.as_ref(), self.destination_ports.as_ref());
        fits(self.ethertype.map(is))
            && fits(self.protocol.map(carries))
            && fits(from_port.map(|own| seen.ports.fits(|(from, _)| own.contains(from))))
            && fits(to_port.map(|own| seen.ports.fits(|(_, to)| own.contains(to))))
            && fits(self.source.map(from))
            && fits(self.destination.map(to))
            && !(self.allow && unknown)
    }
}

/// Whether a frame is what a rule asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fits {
    Yes,
    No,
    Unknown,
}

/// Something that a frame has, has not, or does not show.
#[derive(Clone, Copy, Debug)]
enum Shown<T> {
    Is(T),
    Absent,
    Hidden,
}

impl<T> Shown<T> {
    #[inline]
    fn fits(&self, test: impl FnOnce(&T) -> bool) -> Fits {
        match self {
            Self::Is(value) if test(value) => Fits::Yes,
            Self::Is(_) | Self::Absent => Fits::No,
            Self::Hidden => Fits::Unknown,
        }
    }
}

/// The fields that rules ask for, as far as a snapshot shows them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inspected {
    ethertype: Shown<u16>,
    addresses: Shown<(Address, Address)>,
    protocol: Shown<u8>,
    ports: Shown<(u16, u16)>,
}

impl Inspected {
    /// Looks into a frame's snapshot.
    pub(super) fn of(header: &[u8]) -> Self {
        let Ok(packet) = Packet::parse(header) else {
            return Self::hidden(header);
        };
        if is_disguised(header, &packet) {
            return Self::hidden(&[]);
        }
        let (addresses, number, at, later) = match packet.network {
            Network::Ipv4(ip) => (
                (ip.source.to_bits().into(), ip.destination.to_bits().into()),
                Shown::Is(ip.protocol),
                ip.transport_at,
                ip.is_later_fragment(),
            ),
            Network::Ipv6(ip) => (
                (ip.source.to_bits().into(), ip.destination.to_bits().into()),
                behind_extensions(&ip),
                ip.transport_at,
                ip.is_later_fragment(),
            ),
            Network::Arp(_) | Network::Other => {
                return Self {
                    ethertype: Shown::Is(packet.ethertype),
                    addresses: Shown::Absent,
                    protocol: Shown::Absent,
                    ports: Shown::Absent,
                };
            }
        };
        let ports = match number {
            Shown::Is(number) if !has_ports(number) => Shown::Absent,
            Shown::Is(_) if !later => match (be16(header, at), be16(header, at + 2)) {
                (Ok(from), Ok(to)) => Shown::Is((from, to)),
                _ => Shown::Hidden,
            },
            _ => Shown::Hidden,
        };
        Self {
            ethertype: Shown::Is(packet.ethertype),
            addresses: Shown::Is(addresses),
            protocol: number,
            ports,
        }
    }

    /// What is known of a frame whose headers cannot be followed: without a VLAN tag, its
    /// EtherType.
    fn hidden(header: &[u8]) -> Self {
        let plain = |number: &u16| {
            *number >= 1536 && !matches!(*number, ethertype::VLAN | ethertype::SERVICE_VLAN)
        };
        let ethertype = be16(header, 12).ok().filter(plain);
        // Also a malformed ARP packet has no addresses that rules ask for.
        let hidden =
            ethertype.is_none_or(|found| matches!(found, ethertype::IPV4 | ethertype::IPV6));
        Self {
            ethertype: ethertype.map_or(Shown::Hidden, Shown::Is),
            addresses: if hidden { Shown::Hidden } else { Shown::Absent },
            protocol: if hidden { Shown::Hidden } else { Shown::Absent },
            ports: if hidden { Shown::Hidden } else { Shown::Absent },
        }
    }
}

impl From<u32> for Address {
    fn from(bits: u32) -> Self {
        Self::V4(bits)
    }
}

impl From<u128> for Address {
    fn from(bits: u128) -> Self {
        Self::V6(bits)
    }
}

/// The protocol of an IPv6 packet. A later fragment says what its first one begins with: an
/// extension header hides what comes after it.
fn behind_extensions(ip: &Ipv6) -> Shown<u8> {
    match ip.protocol {
        protocol::HOP_BY_HOP
        | protocol::ROUTING
        | protocol::FRAGMENT
        | protocol::AUTHENTICATION
        | protocol::DESTINATION
        | protocol::MOBILITY => Shown::Hidden,
        number => Shown::Is(number),
    }
}

/// Whether a protocol's header begins with two ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
const fn has_ports(number: u8) -> bool {
    matches!(number, protocol::TCP | protocol::UDP | 33 | 132 | 136)
}

/// A frame on its way through the rules. It is inspected when the first rule needs it.
#[derive(Debug)]
pub(super) struct Filtered<'a> {
    header: &'a [u8],
    len: usize,
    seen: Option<Inspected>,
}

impl<'a> Filtered<'a> {
    /// A frame of `len` bytes with this snapshot.
    pub(super) fn new(header: &'a [u8], len: usize) -> Self {
        Self {
            header,
            len,
            seen: None,
        }
    }
}

/// Frames that a rule has decided about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Frames; an aggregate is one.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The rules of one port, in their order.
#[derive(Debug, Default)]
pub(super) struct Firewall(Vec<(Rule, Count)>);

impl Firewall {
    pub(super) fn new(rules: &[Rule]) -> Self {
        let fresh = |rule: &Rule| (rule.clone(), Count::default());
        Self(rules.iter().map(fresh).collect())
    }

    /// The first rule that decides about a frame, and whether that allows it.
    pub(super) fn find(&self, way: Way, seen: &Inspected) -> Option<(usize, bool)> {
        let mut rules = self.0.iter();
        let at = rules.position(|(rule, _)| rule.decides(way, seen))?;
        self.0.get(at).map(|(rule, _)| (at, rule.allow))
    }

    /// Whether a frame may pass `way`; counted.
    #[inline]
    pub(super) fn allow(&mut self, way: Way, filtered: &mut Filtered<'_>) -> bool {
        self.0.is_empty() || self.decide(way, filtered)
    }

    fn decide(&mut self, way: Way, filtered: &mut Filtered<'_>) -> bool {
        let header = filtered.header;
        let seen = filtered.seen.get_or_insert_with(|| Inspected::of(header));
        let Some((at, allow)) = self.find(way, seen) else {
            return true;
        };
        if let Some((_, count)) = self.0.get_mut(at) {
            count.frames += 1;
            count.bytes += filtered.len as u64;
        }
        allow
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = Count> + '_ {
        self.0.iter().map(|(_, count)| *count)
    }
}
