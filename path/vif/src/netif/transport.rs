//! Where a packet's transport checksum is. netif only says *that* a checksum is blank; where it
//! belongs has to be found in the packet (NETIF-9).

use nic::{Checksum, Frame};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const VLAN_SERVICE: u16 = 0x88a8;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// IPv6 extension headers with a length in units of 8 bytes: hop-by-hop, routing, destination
/// options.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
/// Extension headers that a packet may have.
const EXTENSIONS_MAX: usize = 4;

/// A packet's transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Whether it travels over IPv6.
    pub ipv6: bool,
    /// Whether it is TCP; else UDP.
    pub tcp: bool,
    /// Where it starts, from the start of the frame.
    pub start: u16,
}

impl Transport {
    /// Where the checksum is to be put.
    #[must_use]
    pub const fn blank(self) -> Checksum {
        Checksum::Blank {
            start: self.start,
            offset: if self.tcp { 16 } else { 6 },
        }
    }

    /// First byte after the checksum field, from the start of the frame.
    #[must_use]
    pub const fn needs(self) -> usize {
        self.start as usize + if self.tcp { 18 } else { 8 }
    }
}

/// The EtherType behind any VLAN tags (two at the most), and where its header starts.
#[must_use]
pub fn ethertype(header: &[u8]) -> Option<(u16, usize)> {
    let mut at = 12;
    for _ in 0..3 {
        let found = u16_at(header, at)?;
        at += 2;
        if found != VLAN && found != VLAN_SERVICE {
            return Some((found, at));
        }
        at += 2;
    }
    None
}

/// Whether a frame is IPv6.
#[must_use]
pub fn is_ipv6(header: &[u8]) -> bool {
    ethertype(header).is_some_and(|(found, _)| found == IPV6)
}

/// The TCP or UDP header of a frame that starts with `header`; none if it has none, is a later
/// fragment, or the header bytes do not reach that far.
#[must_use]
pub fn find(header: &[u8]) -> Option<Transport> {
    let (found, at) = ethertype(header)?;
    let (ipv6, protocol, start) = match found {
        IPV4 => {
            let first = *header.get(at)?;
            let bytes = usize::from(first & 0xf) * 4;
            // Bits 0 … 12 are the fragment's offset; the flag "more fragments" is bit 13: a
            // checksum over a fragment is not over the segment.
            if first >> 4 != 4 || bytes < 20 || u16_at(header, at + 6)? & 0x3fff != 0 {
                return None;
            }
            (false, *header.get(at + 9)?, at + bytes)
        }
        IPV6 => {
            if *header.get(at)? >> 4 != 6 {
                return None;
            }
            let mut next = *header.get(at + 6)?;
            let mut start = at + 40;
            for _ in 0..EXTENSIONS_MAX {
                if !EXTENSIONS.contains(&next) {
                    break;
                }
                next = *header.get(start)?;
                start += (usize::from(*header.get(start + 1)?) + 1) * 8;
            }
            (true, next, start)
        }
        _ => return None,
    };
    let tcp = match protocol {
        TCP => true,
        UDP => false,
        _ => return None,
    };
    Some(Transport {
        ipv6,
        tcp,
        start: u16::try_from(start).ok()?,
    })
}

/// Whether a frame's offloads can be said in netif: a blank checksum has to be where the other end
/// will look for it. (A kernel may leave the checksum inside a tunnel blank, for one.)
#[must_use]
pub fn can_say(frame: &Frame) -> bool {
    match frame.offload.checksum {
        Checksum::Blank { .. } => {
            find(frame.header()).is_some_and(|found| found.blank() == frame.offload.checksum)
        }
        Checksum::Unknown | Checksum::Valid => frame.offload.gso.is_none(),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes(two.try_into().ok()?))
}
