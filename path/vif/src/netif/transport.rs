//! Where a packet's transport checksum is. netif only says *that* a checksum is blank; where it
//! belongs has to be found in the packet (NETIF-9).

use super::features::Abilities;
use super::limits::{MAX_PACKET, MIN_PACKET};
use crate::counters::Drop;
use net::packet::{Network, Packet, protocol};
use nic::frame::SNAPSHOT;
use nic::{Checksum, Frame, Gso, GsoKind, Offload};

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

/// The TCP or UDP header of a frame that starts with `header`; none if it has none, is a
/// fragment (a checksum over a fragment is not over the segment), or the header bytes do not reach
/// that far.
#[must_use]
pub fn find(header: &[u8]) -> Option<Transport> {
    let (ipv6, found, start) = match Packet::parse(header).ok()?.network {
        Network::Ipv4(ip) if !ip.is_fragment() => (false, ip.protocol, ip.transport_at),
        Network::Ipv6(ip) if ip.fragment.is_none() => (true, ip.protocol, ip.transport_at),
        _ => return None,
    };
    let tcp = match found {
        protocol::TCP => true,
        protocol::UDP => false,
        _ => return None,
    };
    Some(Transport {
        ipv6,
        tcp,
        start: u16::try_from(start).ok()?,
    })
}

/// Whether a frame has no blank checksum, or has it where [`find`] looks for it.
#[must_use]
#[inline]
pub fn is_placed(frame: &Frame) -> bool {
    const TCP: u8 = protocol::TCP;
    const UDP: u8 = protocol::UDP;
    let Checksum::Blank { start, offset } = frame.offload.checksum else {
        return true;
    };
    match frame.header().get(12..24) {
        // Nearly every frame: IPv4 without options, tag and fragments. It is not parsed.
        Some([0x08, 0x00, 0x45, _, _, _, _, _, 0 | 0x40, 0, _, protocol]) => {
            matches!((start, *protocol, offset), (34, TCP, 16) | (34, UDP, 6))
        }
        _ => find(frame.header()).is_some_and(|found| found.blank() == frame.offload.checksum),
    }
}

/// Whether a frame's offloads can be left to an end with these abilities. A blank checksum has to
/// be where the other end will look for it (a kernel may leave the one inside a tunnel blank, for
/// instance), and what is to be segmented has a blank one.
///
/// # Errors
/// Why not: [`Drop::BadOffload`] or [`Drop::OffloadNotNegotiated`].
#[inline]
pub fn check(frame: &Frame, may: &Abilities) -> Result<(), Drop> {
    match frame.offload.checksum {
        Checksum::Unknown | Checksum::Valid if frame.offload.gso.is_none() => Ok(()),
        Checksum::Unknown | Checksum::Valid => Err(Drop::BadOffload),
        Checksum::Blank { .. } => {
            let found = find(frame.header()).ok_or(Drop::BadOffload)?;
            if found.blank() != frame.offload.checksum {
                Err(Drop::BadOffload)
            } else if may.takes(&frame.offload, found.ipv6) {
                Ok(())
            } else {
                Err(Drop::OffloadNotNegotiated)
            }
        }
    }
}

/// Whether a packet can have so many bytes.
///
/// # Errors
/// [`Drop::TooShort`] or [`Drop::TooLong`].
#[inline]
pub const fn check_len(bytes: usize) -> Result<(), Drop> {
    match bytes {
        ..MIN_PACKET => Err(Drop::TooShort),
        MIN_PACKET..=MAX_PACKET => Ok(()),
        _ => Err(Drop::TooLong),
    }
}

/// The offloads of a packet whose checksum is blank: found in the packet, and only if both ends
/// agreed on them (row 30).
///
/// # Errors
/// [`Drop::BadOffload`], [`Drop::OffloadNotNegotiated`], or [`Drop::Fault`]: the header is not
/// there.
pub fn blank(frame: &mut Frame, gso: Option<Gso>, may: &Abilities) -> Result<Offload, Drop> {
    frame.need(SNAPSHOT).map_err(|_| Drop::Fault)?;
    let found = find(frame.header()).ok_or(Drop::BadOffload)?;
    if found.needs() > frame.len() {
        return Err(Drop::BadOffload);
    }
    if let Some(gso) = gso
        && (!found.tcp || found.ipv6 != (gso.kind == GsoKind::Tcp6))
    {
        return Err(Drop::BadOffload);
    }
    let offload = Offload {
        checksum: found.blank(),
        gso,
    };
    if may.takes(&offload, found.ipv6) {
        Ok(offload)
    } else {
        Err(Drop::OffloadNotNegotiated)
    }
}
