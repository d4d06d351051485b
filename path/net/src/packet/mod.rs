//! Where the headers of a frame lie: Ethernet (with VLAN tags), ARP, IPv4, IPv6, and the transport
//! behind them.
//!
//! [`Packet::parse`] looks at private bytes, a frame's snapshot, and answers offsets into them. It
//! reads nothing twice, follows at most [`MAX_TAGS`] tags and [`MAX_EXTENSIONS`] extension
//! headers, and has an answer for every string of bytes. It says where things are, not whether
//! they are right: lengths that a header claims are handed on as claims.

pub mod ack;
pub mod checksum;
pub mod flow;
pub mod segment;

mod network;
mod transport;

pub use network::{Arp, Ipv4, Ipv6, Network};
pub use transport::{Tcp, Transport, flags};

use std::fmt;

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of a VLAN tag.
pub const TAG_BYTES: usize = 4;
/// Tags that are followed.
pub const MAX_TAGS: usize = 2;
/// IPv6 extension headers that are followed.
pub const MAX_EXTENSIONS: usize = 8;

/// EtherTypes.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// Reverse ARP: an ARP packet in form.
    pub const RARP: u16 = 0x8035;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// A VLAN tag (802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// An outer VLAN tag (802.1ad).
    pub const SERVICE_VLAN: u16 = 0x88a8;
}

/// IP protocol numbers.
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// IPsec authentication header.
    pub const AUTHENTICATION: u8 = 51;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6 destination options.
    pub const DESTINATION: u8 = 60;
    /// Mobility header.
    pub const MOBILITY: u8 = 135;
}

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether it names a group of stations.
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether it can be a station's own: neither a group's nor all zeros.
    #[must_use]
    pub const fn is_station(self) -> bool {
        !self.is_group() && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why the headers could not be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A header reaches beyond the bytes given.
    #[error("a header reaches beyond the bytes at hand")]
    TooShort,
    /// A header's own length, or its version, is none that it can have.
    #[error("a header contradicts itself")]
    Malformed,
    /// More VLAN tags than are followed.
    #[error("more than {MAX_TAGS} VLAN tags")]
    TooManyTags,
    /// More extension headers than are followed.
    #[error("more than {MAX_EXTENSIONS} extension headers")]
    TooManyExtensions,
}

/// Where the headers of one frame are. Offsets count from the frame's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Destination.
    pub destination: Mac,
    /// Source.
    pub source: Mac,
    /// VLAN tags, 0 … [`MAX_TAGS`].
    pub tags: usize,
    /// What is behind the tags: an EtherType, or below 1536 the length of an 802.3 frame.
    pub ethertype: u16,
    /// Where it starts.
    pub network_at: usize,
    /// What it is.
    pub network: Network,
}

impl Packet {
    /// Follows the headers.
    ///
    /// # Errors
    /// They could not be followed to the transport's first byte.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let destination = Mac(array(bytes, 0)?);
        let source = Mac(array(bytes, 6)?);
        let (tags, ethertype) = after_tags(bytes)?;
        let network_at = ETHERNET_BYTES + tags * TAG_BYTES;
        let network = Network::parse(bytes, network_at, ethertype)?;
        Ok(Self {
            destination,
            source,
            tags,
            ethertype,
            network_at,
            network,
        })
    }

    /// The transport, where there is one whose header lies in these bytes.
    ///
    /// # Errors
    /// Its header could not be followed.
    pub fn transport(&self, bytes: &[u8]) -> Result<Transport, ParseError> {
        match self.network {
            Network::Ipv4(ip) if !ip.is_later_fragment() => {
                Transport::parse(bytes, ip.transport_at, ip.protocol)
            }
            Network::Ipv6(ip) if !ip.is_later_fragment() => {
                Transport::parse(bytes, ip.transport_at, ip.protocol)
            }
            _ => Ok(Transport::None),
        }
    }
}

/// How many tags there are, and the EtherType behind them.
fn after_tags(bytes: &[u8]) -> Result<(usize, u16), ParseError> {
    for tags in 0..=MAX_TAGS {
        let ethertype = be16(bytes, ETHERNET_BYTES - 2 + tags * TAG_BYTES)?;
        if !matches!(ethertype, ethertype::VLAN | ethertype::SERVICE_VLAN) {
            return Ok((tags, ethertype));
        }
    }
    Err(ParseError::TooManyTags)
}

/// `N` bytes from `at` on.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], ParseError> {
    bytes
        .get(at..)
        .and_then(<[u8]>::first_chunk)
        .copied()
        .ok_or(ParseError::TooShort)
}

/// The byte at `at`.
pub(crate) fn byte(bytes: &[u8], at: usize) -> Result<u8, ParseError> {
    bytes.get(at).copied().ok_or(ParseError::TooShort)
}

/// The big-endian number at `at`.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Result<u16, ParseError> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// The big-endian number at `at`.
pub(crate) fn be32(bytes: &[u8], at: usize) -> Result<u32, ParseError> {
    array(bytes, at).map(u32::from_be_bytes)
}

/// Puts bytes at `at`; whether they fit.
#[must_use]
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> bool {
    let there = at
        .checked_add(value.len())
        .and_then(|end| bytes.get_mut(at..end));
    there.is_some_and(|to| {
        to.copy_from_slice(value);
        true
    })
}
