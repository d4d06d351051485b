//! Finds the TCP segment in a frame, and handles its checksum.

use crate::file::FileSegment;
use net::packet::checksum::{Sum, pseudo_v4, pseudo_v6};
use net::packet::{Network, Packet, Transport};
use nic::{Checksum, Gso, GsoKind, Offload};

/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: u16 = 16;

/// Position of the TCP segment in a frame.
struct TcpAt {
    /// Offset of the TCP header.
    start: usize,
    /// Offset after the payload.
    end: usize,
    /// Sum of the pseudo-header.
    pseudo: u32,
    kind: GsoKind,
}

/// Finds the TCP segment in a frame that is not a fragment.
fn find(bytes: &[u8]) -> Option<TcpAt> {
    let packet = Packet::parse(bytes).ok()?;
    let Ok(Transport::Tcp(tcp)) = packet.transport(bytes) else {
        return None;
    };
    let (end, kind) = match packet.network {
        Network::Ipv4(ip) if !ip.is_fragment() => (packet.network_at + ip.total_len, GsoKind::Tcp4),
        Network::Ipv6(ip) if ip.fragment.is_none() => {
            (packet.network_at + 40 + ip.payload_len, GsoKind::Tcp6)
        }
        _ => return None,
    };
    let len = end.checked_sub(tcp.at)?;
    let pseudo = match packet.network {
        Network::Ipv4(ip) => pseudo_v4(ip.source, ip.destination, ip.protocol, len),
        Network::Ipv6(ip) => pseudo_v6(ip.source, ip.destination, ip.protocol, len),
        _ => return None,
    };
    (end <= bytes.len()).then_some(TcpAt {
        start: tcp.at,
        end,
        pseudo,
        kind,
    })
}

/// Returns the TCP segment in one of smoltcp's frames.
pub(crate) fn segment(bytes: &[u8]) -> Option<FileSegment> {
    let at = find(bytes)?;
    let header = *bytes.get(at.start..)?.first_chunk::<14>()?;
    let [source, _, sequence @ ..] = [0, 2, 4, 6].map(|n| [header[n], header[n + 1]]);
    let start = at.start + usize::from(header[12] >> 4) * 4;
    Some(FileSegment {
        port: u16::from_be_bytes(source),
        sequence: u32::from_be_bytes([
            sequence[0][0],
            sequence[0][1],
            sequence[1][0],
            sequence[1][1],
        ]),
        flags: header[13],
        header: start,
        payload: at.end.checked_sub(start)?,
    })
}

/// Returns false only for a TCP segment with an invalid checksum. smoltcp checks all other packets.
pub(crate) fn checksum_is_right(bytes: &[u8]) -> bool {
    find(bytes).is_none_or(|at| {
        let mut sum = Sum::new(at.pseudo);
        sum.add_bytes(bytes.get(at.start..at.end).unwrap_or(&[]));
        sum.folded() == 0xffff
    })
}

/// Writes the TCP checksum of one of smoltcp's frames, or with `blank` only the sum of the
/// pseudo-header. Returns the pending offloads.
pub(crate) fn finish(bytes: &mut [u8], segment: Option<u16>, blank: bool) -> Offload {
    let Some(at) = find(bytes) else {
        return Offload::default();
    };
    let field = at.start + usize::from(TCP_CHECKSUM);
    let mut sum = Sum::new(at.pseudo);
    let (value, checksum) = if blank {
        let start = at.start as u16;
        (
            sum.folded(),
            Checksum::Blank {
                start,
                offset: TCP_CHECKSUM,
            },
        )
    } else {
        put(bytes, field, 0);
        sum.add_bytes(bytes.get(at.start..at.end).unwrap_or(&[]));
        (sum.finish(), Checksum::Unknown)
    };
    put(bytes, field, value);
    Offload {
        checksum,
        gso: segment.map(|size| Gso {
            kind: at.kind,
            size,
        }),
    }
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}
