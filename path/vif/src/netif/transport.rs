//! Locates a packet's transport checksum. netif only states *that* a checksum is blank; its
//! position must be found in the packet (NETIF-9).

use super::features::PeerCaps;
use super::limits::{MAX_PACKET, MIN_PACKET};
use crate::counters::VifDrop;
use net::packet::{Network, Packet, protocol};
use nic::frame::SNAPSHOT_MAX;
use nic::{Checksum, Frame, Gso, GsoKind, Offload};

/// Maximum number of segments of one packet. TCP over the smallest path MTU (segments of 48 bytes,
/// 12 of them options) needs fewer for 64 KB. A kernel behind this end would segment without a
/// limit.
const PACKETS_MAX: usize = 2048;

/// A packet's transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportHeader {
    /// Whether the packet is IPv6.
    pub ipv6: bool,
    /// Whether the header is TCP; otherwise it is UDP.
    pub tcp: bool,
    /// Start of the header, from the start of the frame.
    pub start: u16,
}

impl TransportHeader {
    /// Returns the place of the checksum.
    #[must_use]
    pub const fn blank_checksum(self) -> Checksum {
        Checksum::Blank {
            start: self.start,
            offset: if self.tcp { 16 } else { 6 },
        }
    }

    /// Returns the offset behind the checksum field, from the start of the frame.
    #[must_use]
    pub const fn checksum_end(self) -> usize {
        self.start as usize + if self.tcp { 18 } else { 8 }
    }
}

/// Finds the TCP or UDP header of a frame that starts with `header`. Returns `None` if it has none,
/// if it is a fragment (whose checksum covers the whole datagram), or if `header` is too short.
#[must_use]
pub fn find(header: &[u8]) -> Option<TransportHeader> {
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
    Some(TransportHeader {
        ipv6,
        tcp,
        start: u16::try_from(start).ok()?,
    })
}

/// Returns whether a frame has no blank checksum, or one at the position that [`find`] returns.
#[must_use]
#[inline]
pub fn has_standard_checksum(frame: &Frame) -> bool {
    const TCP: u8 = protocol::TCP;
    const UDP: u8 = protocol::UDP;
    let Checksum::Blank { start, offset } = frame.offload.checksum else {
        return true;
    };
    match frame.header().get(12..24) {
        // The most frequent frame, IPv4 without options, VLAN tag or fragmentation, is not parsed.
        Some([0x08, 0x00, 0x45, _, _, _, _, _, 0 | 0x40, 0, _, protocol]) => {
            matches!((start, *protocol, offset), (34, TCP, 16) | (34, UDP, 6))
        }
        _ => find(frame.header())
            .is_some_and(|found| found.blank_checksum() == frame.offload.checksum),
    }
}

/// Checks whether an end with these abilities can finish a frame's offloads. A blank checksum must
/// lie where that end expects it, and a frame to be segmented must have a blank checksum. A blank
/// checksum in another place is, for example, the inner checksum of a tunnel, which a kernel may
/// leave blank.
///
/// # Errors
/// Returns [`VifDrop::BadOffload`] or [`VifDrop::OffloadNotNegotiated`].
#[inline]
pub fn check(frame: &Frame, may: &PeerCaps) -> Result<(), VifDrop> {
    match frame.offload.checksum {
        Checksum::Unknown | Checksum::Valid if frame.offload.gso.is_none() => Ok(()),
        Checksum::Unknown | Checksum::Valid => Err(VifDrop::BadOffload),
        Checksum::Blank { .. } => {
            let found = find(frame.header()).ok_or(VifDrop::BadOffload)?;
            if found.blank_checksum() != frame.offload.checksum {
                Err(VifDrop::BadOffload)
            } else if may.takes(&frame.offload, found.ipv6) {
                Ok(())
            } else {
                Err(VifDrop::OffloadNotNegotiated)
            }
        }
    }
}

/// Checks a packet's length.
///
/// # Errors
/// Returns [`VifDrop::TooShort`] or [`VifDrop::TooLong`].
#[inline]
pub const fn check_len(bytes: usize) -> Result<(), VifDrop> {
    match bytes {
        ..MIN_PACKET => Err(VifDrop::TooShort),
        MIN_PACKET..=MAX_PACKET => Ok(()),
        _ => Err(VifDrop::TooLong),
    }
}

/// Sets the offloads of a packet with a blank checksum: finds the checksum in the packet, and
/// accepts the offloads only if they were negotiated (row 30).
///
/// # Errors
/// Returns [`VifDrop::BadOffload`], [`VifDrop::OffloadNotNegotiated`], or [`VifDrop::Fault`] if the
/// header is inaccessible.
pub fn set_offloads(
    frame: &mut Frame,
    gso: Option<Gso>,
    may: &PeerCaps,
) -> Result<Offload, VifDrop> {
    frame
        .extend_snapshot(SNAPSHOT_MAX)
        .map_err(|_| VifDrop::Fault)?;
    let found = find(frame.header()).ok_or(VifDrop::BadOffload)?;
    if found.checksum_end() > frame.len() {
        return Err(VifDrop::BadOffload);
    }
    if let Some(gso) = gso
        && (!found.tcp
            || found.ipv6 != (gso.kind == GsoKind::Tcp6)
            || frame.len() > usize::from(gso.size) * PACKETS_MAX)
    {
        return Err(VifDrop::BadOffload);
    }
    let offload = Offload {
        checksum: found.blank_checksum(),
        gso,
    };
    if may.takes(&offload, found.ipv6) {
        Ok(offload)
    } else {
        Err(VifDrop::OffloadNotNegotiated)
    }
}
