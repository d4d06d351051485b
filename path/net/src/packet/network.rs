//! ARP, IPv4 and IPv6.

use super::bytes::{ParseError, array, be16, byte};
use super::constants::{MAX_EXTENSIONS, ethertype, protocol};
use super::mac::Mac;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Bytes of an IPv6 header without extensions.
const IPV6_BYTES: usize = 40;

/// Network protocol of an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// ARP or reverse ARP for IPv4 over Ethernet.
    Arp(Arp),
    /// IPv4.
    Ipv4(Ipv4),
    /// IPv6.
    Ipv6(Ipv6),
    /// Anything else.
    Other,
}

/// An ARP packet (RFC 826).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// 1 request, 2 reply.
    pub operation: u16,
    /// Sender hardware address.
    pub sender_mac: Mac,
    /// Sender protocol address.
    pub sender: Ipv4Addr,
    /// Target hardware address.
    pub target_mac: Mac,
    /// Target protocol address.
    pub target: Ipv4Addr,
}

/// An IPv4 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Bytes of header and payload, as the header claims.
    pub total_len: usize,
    /// Identification.
    pub id: u16,
    /// Whether more fragments follow.
    pub more_fragments: bool,
    /// Offset of this fragment, in units of 8 bytes.
    pub fragment_offset: u16,
    /// Protocol number.
    pub protocol: u8,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Start of the payload.
    pub transport_at: usize,
}

/// An IPv6 header with its extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Bytes behind the fixed header, including extensions, as the header claims.
    pub payload_len: usize,
    /// Protocol number behind the extensions.
    pub protocol: u8,
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// The fragment header's offset (units of 8 bytes) and "more" flag, if present.
    pub fragment: Option<(u16, bool)>,
    /// Whether the packet has a routing header, so that the destination in checksums may differ.
    pub routed: bool,
    /// Start of the payload behind the extensions.
    pub transport_at: usize,
}

impl Ipv4 {
    /// Returns whether this is a fragment.
    #[must_use]
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// Returns whether this is a fragment without a transport header.
    #[must_use]
    pub const fn is_later_fragment(&self) -> bool {
        self.fragment_offset != 0
    }
}

impl Ipv6 {
    /// Returns whether this is a fragment without a transport header.
    #[must_use]
    pub const fn is_later_fragment(&self) -> bool {
        matches!(self.fragment, Some((1.., _)))
    }
}

impl Network {
    /// Parses the header at `at`.
    ///
    /// # Errors
    /// Returns an error if the network headers could not be parsed.
    pub fn parse(bytes: &[u8], at: usize, ethertype: u16) -> Result<Self, ParseError> {
        match ethertype {
            ethertype::ARP | ethertype::RARP => arp(bytes, at).map(Self::Arp),
            ethertype::IPV4 => ipv4(bytes, at).map(Self::Ipv4),
            ethertype::IPV6 => ipv6(bytes, at).map(Self::Ipv6),
            _ => Ok(Self::Other),
        }
    }
}

fn arp(bytes: &[u8], at: usize) -> Result<Arp, ParseError> {
    // Ethernet, IPv4, addresses of 6 and 4 bytes: the only form on this network.
    if array(bytes, at)? != [0, 1, 8, 0, 6, 4] {
        return Err(ParseError::Malformed);
    }
    Ok(Arp {
        operation: be16(bytes, at + 6)?,
        sender_mac: Mac(array(bytes, at + 8)?),
        sender: array(bytes, at + 14)?.into(),
        target_mac: Mac(array(bytes, at + 18)?),
        target: array(bytes, at + 24)?.into(),
    })
}

fn ipv4(bytes: &[u8], at: usize) -> Result<Ipv4, ParseError> {
    let first = byte(bytes, at)?;
    let header = usize::from(first & 0x0f) * 4;
    if first >> 4 != 4 || header < 20 {
        return Err(ParseError::Malformed);
    }
    let fragment = be16(bytes, at + 6)?;
    let transport_at = at + header;
    if bytes.len() < transport_at {
        return Err(ParseError::TooShort);
    }
    Ok(Ipv4 {
        total_len: be16(bytes, at + 2)?.into(),
        id: be16(bytes, at + 4)?,
        more_fragments: fragment & 0x2000 != 0,
        fragment_offset: fragment & 0x1fff,
        protocol: byte(bytes, at + 9)?,
        source: array(bytes, at + 12)?.into(),
        destination: array(bytes, at + 16)?.into(),
        transport_at,
    })
}

fn ipv6(bytes: &[u8], at: usize) -> Result<Ipv6, ParseError> {
    if byte(bytes, at)? >> 4 != 6 {
        return Err(ParseError::Malformed);
    }
    let mut ip = Ipv6 {
        payload_len: be16(bytes, at + 4)?.into(),
        protocol: byte(bytes, at + 6)?,
        source: array(bytes, at + 8)?.into(),
        destination: array(bytes, at + 24)?.into(),
        fragment: None,
        routed: false,
        transport_at: at + IPV6_BYTES,
    };
    for _ in 0..=MAX_EXTENSIONS {
        if !skip_extension(bytes, &mut ip)? {
            return Ok(ip);
        }
    }
    Err(ParseError::TooManyExtensions)
}

/// Skips one extension header; returns false if the next header is not one.
fn skip_extension(bytes: &[u8], ip: &mut Ipv6) -> Result<bool, ParseError> {
    let at = ip.transport_at;
    // Payload follows a later fragment's header, even if that names an extension header.
    if ip.is_later_fragment() {
        return Ok(false);
    }
    let length = match ip.protocol {
        protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION | protocol::MOBILITY => {
            (usize::from(byte(bytes, at + 1)?) + 1) * 8
        }
        protocol::AUTHENTICATION => (usize::from(byte(bytes, at + 1)?) + 2) * 4,
        protocol::FRAGMENT => {
            let field = be16(bytes, at + 2)?;
            ip.fragment = Some((field >> 3, field & 1 != 0));
            8
        }
        _ => return Ok(false),
    };
    ip.routed |= ip.protocol == protocol::ROUTING;
    ip.protocol = byte(bytes, at)?;
    ip.transport_at = at + length;
    if bytes.len() < ip.transport_at {
        return Err(ParseError::TooShort);
    }
    Ok(true)
}
