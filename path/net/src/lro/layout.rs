//! Header positions of a TCP packet, and its flow.

use super::reason::Reason;
use crate::packet::{Network, Packet, ParseError, PlainHeaders, Transport, ethertype, protocol};
use nic::Frame;
use nic::frame::SNAPSHOT_MAX;

/// Offsets into the snapshot; all of them at most [`SNAPSHOT_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SnapshotLayout {
    pub(super) network_at: u8,
    pub(super) tcp_at: u8,
    pub(super) payload_at: u8,
    pub(super) v6: bool,
}

impl SnapshotLayout {
    #[inline]
    pub(super) fn network(self) -> usize {
        self.network_at.into()
    }

    #[inline]
    pub(super) fn tcp(self) -> usize {
        self.tcp_at.into()
    }

    #[inline]
    pub(super) fn payload(self) -> usize {
        self.payload_at.into()
    }

    /// Returns the layout of a TCP packet without tags, IP options or extension headers. Does not
    /// determine the payload's position. Returns `None` if the EtherType is not IPv4 or IPv6.
    #[inline]
    pub(super) fn usual(frame: &Frame) -> Option<Self> {
        let bytes = frame.snapshot_array();
        let (tcp_at, v6) = match [bytes[12], bytes[13]] {
            [8, 0] => (34, false),
            [0x86, 0xdd] => (54, true),
            _ => return None,
        };
        Some(Self {
            network_at: 14,
            tcp_at,
            payload_at: 0,
            v6,
        })
    }

    /// Returns offset and length of the addresses.
    #[inline]
    fn addresses(self) -> (usize, usize) {
        match self.v6 {
            true => (self.network() + 8, 32),
            false => (self.network() + 12, 8),
        }
    }
}

/// A TCP packet whose headers are in the snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct TcpSegment {
    pub(super) layout: SnapshotLayout,
    pub(super) flags: u8,
    /// Payload bytes according to the IP header.
    pub(super) payload: usize,
    /// Reason why no rules permit merging the packet, if none do.
    pub(super) refusal: Option<Reason>,
}

/// Classification of a frame for LRO.
#[derive(Clone, Copy, Debug)]
pub(super) enum PacketClass {
    /// Not TCP, or a packet that no receiver would accept.
    Other,
    /// TCP or possibly TCP: the snapshot does not contain the ports.
    Hidden,
    /// TCP.
    Tcp(TcpSegment),
}

/// Classifies a frame; extends its snapshot if the headers need it.
#[inline]
pub(super) fn classify(frame: &mut Frame) -> PacketClass {
    match plain(frame) {
        Some(layout) => layout,
        None => general(frame),
    }
}

/// Classifies the most frequent form: no tags, IP options or extension headers. Returns `None` for
/// any other.
#[inline]
fn plain(frame: &mut Frame) -> Option<PacketClass> {
    if frame.header().len() < 54 {
        return None;
    }
    let (tcp_at, v6) = match PlainHeaders::of(frame.snapshot_array())? {
        PlainHeaders::Tcp { at, v6 } => (at, v6),
        PlainHeaders::Other => return Some(PacketClass::Other),
    };
    if frame.header().len() < tcp_at + 20 {
        frame.extend_snapshot(SNAPSHOT_MAX).ok()?;
    }
    let header = usize::from(frame.snapshot_array()[tcp_at + 12] >> 4) * 4;
    let payload_at = tcp_at + header;
    if frame.header().len() < payload_at {
        frame.extend_snapshot(SNAPSHOT_MAX).ok()?;
    }
    if header < 20 || frame.header().len() < payload_at {
        return None;
    }
    let layout = SnapshotLayout {
        network_at: 14,
        tcp_at: tcp_at as u8,
        payload_at: payload_at as u8,
        v6,
    };
    Some(PacketClass::Tcp(segment(frame, layout, None)))
}

/// Classifies any frame.
#[inline(never)]
fn general(frame: &mut Frame) -> PacketClass {
    if frame.extend_snapshot(SNAPSHOT_MAX).is_err() {
        return PacketClass::Other;
    }
    let long = frame.len() > SNAPSHOT_MAX;
    let bytes = frame.header();
    let packet = match Packet::parse(bytes) {
        Ok(packet) => packet,
        Err(ParseError::TooManyExtensions) => return PacketClass::Hidden,
        Err(ParseError::TooShort) if long => return PacketClass::Hidden,
        Err(_) => return PacketClass::Other,
    };
    let (number, later, refusal) = match packet.network {
        Network::Ipv4(ip) => {
            let options = ip.transport_at - packet.network_at != 20;
            let refusal = match (ip.is_fragment(), options) {
                (true, _) => Some(Reason::Fragment),
                (_, true) => Some(Reason::IpOptions),
                _ => None,
            };
            (ip.protocol, ip.is_later_fragment(), refusal)
        }
        Network::Ipv6(ip) => {
            let refusal = match (ip.fragment, ip.routed) {
                (Some(_), _) => Some(Reason::Fragment),
                (_, true) => Some(Reason::IpOptions),
                _ => None,
            };
            (ip.protocol, ip.is_later_fragment(), refusal)
        }
        Network::Arp(_) | Network::Other => return PacketClass::Other,
    };
    if number != protocol::TCP {
        return PacketClass::Other;
    }
    if later {
        return PacketClass::Hidden;
    }
    match packet.transport(bytes) {
        Ok(Transport::Tcp(tcp)) => {
            let layout = SnapshotLayout {
                network_at: packet.network_at as u8,
                tcp_at: tcp.at as u8,
                payload_at: tcp.payload_at as u8,
                v6: packet.ethertype == ethertype::IPV6,
            };
            PacketClass::Tcp(segment(frame, layout, refusal))
        }
        Ok(_) => PacketClass::Other,
        Err(_) => PacketClass::Hidden,
    }
}

/// Returns the end of a packet according to its IP header.
#[inline]
fn end_of(frame: &Frame, layout: SnapshotLayout) -> usize {
    let at = layout.network();
    match layout.v6 {
        true => at + 40 + usize::from(be16(frame, at + 4)),
        false => at + usize::from(be16(frame, at + 2)),
    }
}

/// Returns the packet with its headers at `layout`.
#[inline]
pub(super) fn segment(
    frame: &Frame,
    layout: SnapshotLayout,
    refusal: Option<Reason>,
) -> TcpSegment {
    let end = end_of(frame, layout);
    let payload = end.saturating_sub(layout.payload());
    let refusal = match refusal {
        Some(reason) => Some(reason),
        None if frame.offload.gso.is_some() => Some(Reason::Gso),
        None if payload == 0 => Some(Reason::Ack),
        None if end != frame.len() => Some(Reason::Padded),
        None => None,
    };
    let flags = byte(frame, layout.tcp() + 13);
    TcpSegment {
        layout,
        flags,
        payload,
        refusal,
    }
}

/// Returns one byte of the snapshot; zero beyond it.
#[inline]
pub(super) fn byte(frame: &Frame, at: usize) -> u8 {
    frame.snapshot_array().get(at).copied().unwrap_or(0)
}

/// Returns the big-endian number at `at` of the snapshot; zero beyond it.
#[inline]
pub(super) fn be16(frame: &Frame, at: usize) -> u16 {
    u16::from_be_bytes(array(frame, at))
}

/// Returns the big-endian number at `at` of the snapshot; zero beyond it.
#[inline]
pub(super) fn be32(frame: &Frame, at: usize) -> u32 {
    u32::from_be_bytes(array(frame, at))
}

/// Returns bytes of the snapshot; zeros if it does not hold all of them.
#[inline]
pub(super) fn array<const N: usize>(frame: &Frame, at: usize) -> [u8; N] {
    let bytes = frame.snapshot_array().get(at..);
    let bytes = bytes.and_then(<[u8]>::first_chunk);
    bytes.copied().unwrap_or([0; N])
}

/// Hashes addresses and ports with a secret, so that no peer can choose colliding flows.
#[inline]
pub(super) fn hash(frame: &Frame, layout: SnapshotLayout, seed: u64) -> u64 {
    const ODD: [u64; 3] = [
        0x9e37_79b9_7f4a_7c15,
        0xbf58_476d_1ce4_e5b9,
        0x94d0_49bb_1331_11eb,
    ];
    let word = |at| u64::from_le_bytes(array(frame, at));
    let ports = u64::from(be32(frame, layout.tcp()));
    let (at, _) = layout.addresses();
    let addresses = match layout.v6 {
        false => word(at),
        true => {
            let source = fold(word(at) ^ seed, word(at + 8) ^ ODD[0]);
            let destination = fold(word(at + 16) ^ seed, word(at + 24) ^ ODD[1]);
            source ^ destination.rotate_left(32)
        }
    };
    fold(addresses ^ seed, ports ^ seed.rotate_left(29) ^ ODD[2])
}

/// Combines both halves of the product, so that every bit of either factor affects every bit of the
/// result.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Returns the addresses and ports of a [usual](SnapshotLayout::usual) IPv4 packet.
#[inline]
pub(super) fn ends_v4(frame: &Frame) -> (u64, u32) {
    let (addresses, ports) = (array(frame, 26), array(frame, 34));
    (u64::from_ne_bytes(addresses), u32::from_ne_bytes(ports))
}

/// Returns whether two packets belong to one flow: the same MACs, tags, addresses and ports.
pub(super) fn same_flow(a: (&Frame, SnapshotLayout), b: (&Frame, SnapshotLayout)) -> bool {
    let part = |(frame, _): (&Frame, SnapshotLayout), at: usize, len: usize| -> [u8; 32] {
        let mut bytes = [0; 32];
        for (to, from) in bytes.iter_mut().zip(at..at + len) {
            *to = byte(frame, from);
        }
        bytes
    };
    let ends = |packet: (&Frame, SnapshotLayout)| {
        let (at, len) = packet.1.addresses();
        (
            part(packet, 0, packet.1.network()),
            part(packet, at, len),
            part(packet, packet.1.tcp(), 4),
        )
    };
    (a.1.network_at, a.1.v6) == (b.1.network_at, b.1.v6) && ends(a) == ends(b)
}
