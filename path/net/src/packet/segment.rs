//! Segmentation in software: splits one frame of up to 64 KB into frames of an MTU, or into shorter
//! frames whose segmentation is still pending.
//!
//! Only headers are written; a segment's payload pieces are parts of the original's. So the
//! original must live until the segments are sent, and its buffers are returned only through it.

use super::bytes::{ParseError, put};
use super::checksum::{FinishError, Sum, finish, pseudo_v4, pseudo_v6};
use super::headers::Packet;
use super::network::Network;
use super::transport::{TCP_CHECKSUM, Tcp, Transport, flags};
use nic::frame::SNAPSHOT_MAX;
use nic::{BufferId, Caps, Checksum, Frame, Gso, GsoKind, Piece};
use shmem::{Fault, Span};

/// Maximum number of segments per frame. It bounds the work that one packet of a peer can cause; 64
/// KB reach it only with segments below 128 bytes.
pub const MAX_SEGMENTS: usize = 512;

/// Offset of the flags in a TCP header.
const TCP_FLAGS: usize = 13;

/// Error of segmenting a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// The frame requests no segmentation.
    #[error("the frame requests no segmentation")]
    NotRequested,
    /// A segment size of zero.
    #[error("the segment size is zero")]
    ZeroSize,
    /// Too many segments.
    #[error("more than {MAX_SEGMENTS} segments")]
    TooMany,
    /// A segment would be longer than the port's limit.
    #[error("a segment exceeds the port's limit")]
    TooLong,
    /// The headers do not end within the snapshot, or contradict themselves.
    #[error("headers: {0}")]
    Headers(#[from] ParseError),
    /// The headers are not of the requested kind, or belong to a fragment or to a packet with a
    /// routing header.
    #[error("the headers are not of the requested kind")]
    WrongKind,
    /// The length in the IP header is not the frame's.
    #[error("the IP length is not the frame's")]
    LengthMismatch,
    /// SYN, RST or urgent data.
    #[error("flags that cannot be segmented")]
    Flags,
    /// The blank checksum is not TCP's.
    #[error("the blank checksum is not TCP's")]
    WrongChecksum,
    /// Memory is inaccessible.
    #[error("memory is inaccessible")]
    Fault,
}

impl From<Fault> for SegmentError {
    fn from(_: Fault) -> Self {
        Self::Fault
    }
}

/// State that all segments of a frame share.
struct Template {
    /// Private copy of the frame's first bytes: headers and possibly payload.
    bytes: [u8; SNAPSHOT_MAX],
    network_at: usize,
    network: Network,
    tcp: Tcp,
    /// The requested segmentation.
    gso: Gso,
    /// Payload bytes of each part, which becomes one segment or several.
    stride: usize,
    /// End of the frame.
    end: usize,
    /// Whether the device computes the TCP checksum.
    blank: bool,
    /// Increment of the IPv4 identification.
    id_step: u16,
}

/// Splits `frame` into frames within the limits of `caps`, and appends them to `out`, in order.
/// Their TCP checksums stay blank with [`Caps::checksum`], and are computed otherwise.
///
/// # Errors
/// Returns [`SegmentError`]; nothing is then appended.
pub fn segment(frame: &Frame, caps: Caps, out: &mut Vec<Frame>) -> Result<(), SegmentError> {
    let template = Template::new(frame, caps)?;
    let longest = template.tcp.payload_at + template.stride.min(template.payload());
    if longest > caps.max_frame.saturating_add(frame.tag_bytes()) {
        return Err(SegmentError::TooLong);
    }
    template.cut_whole(frame, out)
}

/// Splits `frame` into frames of at most `bytes` bytes, for a port that accepts only shorter
/// frames, and appends them to `out`, in order. Their segmentation yields the same segments as
/// segmenting `frame`. Checksums stay blank.
///
/// # Errors
/// Returns [`SegmentError`]; nothing is then appended.
pub fn split(frame: &Frame, bytes: usize, out: &mut Vec<Frame>) -> Result<(), SegmentError> {
    let caps = Caps {
        checksum: true,
        tso: true,
        max_frame: bytes,
    };
    let mut template = Template::new(frame, caps)?;
    let segments = bytes.saturating_sub(template.tcp.payload_at) / template.stride;
    if segments == 0 {
        return Err(SegmentError::TooLong);
    }
    template.stride *= segments;
    template.cut_whole(frame, out)
}

/// Splits `frame` into two frames whose segmentation yields the same segments. The first has at
/// most `bytes` bytes and at least one segment. Checksums stay blank.
///
/// # Errors
/// Returns [`SegmentError`]; `TooLong` if one of the two would have no segment.
pub fn cut(frame: &Frame, bytes: usize) -> Result<(Frame, Frame), SegmentError> {
    let caps = Caps {
        checksum: true,
        ..Caps::default()
    };
    let template = Template::new(frame, caps)?;
    let segments = bytes.saturating_sub(template.tcp.payload_at) / template.stride;
    let first = segments.max(1) * template.stride;
    if first >= template.payload() {
        return Err(SegmentError::TooLong);
    }
    let mut rest = RemainingPayload::new(frame, template.tcp.payload_at);
    let at = template.tcp.payload_at + first;
    let first = template.part(frame, &mut rest, template.tcp.payload_at, at)?;
    let second = template.part(frame, &mut rest, at, template.end)?;
    Ok((first, second))
}

/// Returns the number of packets that a frame becomes on a wire: 1 unless its segmentation is
/// pending.
#[must_use]
pub fn packets(frame: &Frame) -> usize {
    match Template::new(frame, Caps::default()) {
        Ok(template) => template.payload().div_ceil(template.stride).max(1),
        Err(_) => 1,
    }
}

impl Template {
    fn new(frame: &Frame, caps: Caps) -> Result<Self, SegmentError> {
        let gso = frame.offload.gso.ok_or(SegmentError::NotRequested)?;
        let size = usize::from(gso.size);
        if size == 0 {
            return Err(SegmentError::ZeroSize);
        }
        let mut bytes = [0; SNAPSHOT_MAX];
        let known = frame.prefix(&mut bytes)?;
        let known = bytes.get(..known).unwrap_or(&[]);
        let packet = Packet::parse(known)?;
        let Transport::Tcp(tcp) = packet.transport(known)? else {
            return Err(SegmentError::WrongKind);
        };
        let claimed = match (packet.network, gso.kind) {
            (Network::Ipv4(ip), GsoKind::Tcp4) if !ip.is_fragment() => {
                packet.network_at + ip.total_len
            }
            (Network::Ipv6(ip), GsoKind::Tcp6) if ip.fragment.is_none() && !ip.routed => {
                packet.network_at + 40 + ip.payload_len
            }
            _ => return Err(SegmentError::WrongKind),
        };
        if claimed != frame.len() || tcp.payload_at > claimed {
            return Err(SegmentError::LengthMismatch);
        }
        if tcp.flags & flags::CONTROL != 0 {
            return Err(SegmentError::Flags);
        }
        if let Checksum::Blank { start, offset } = frame.offload.checksum
            && (usize::from(start), usize::from(offset)) != (tcp.at, TCP_CHECKSUM)
        {
            return Err(SegmentError::WrongChecksum);
        }
        let payload = claimed - tcp.payload_at;
        if payload.div_ceil(size) > MAX_SEGMENTS {
            return Err(SegmentError::TooMany);
        }
        Ok(Self {
            bytes,
            network_at: packet.network_at,
            network: packet.network,
            tcp,
            gso,
            stride: size,
            end: claimed,
            blank: caps.checksum,
            id_step: u16::from(!frame.fixed_id),
        })
    }

    fn payload(&self) -> usize {
        self.end - self.tcp.payload_at
    }

    fn cut_whole(&self, frame: &Frame, out: &mut Vec<Frame>) -> Result<(), SegmentError> {
        let start = out.len();
        let done = self.cut(frame, out);
        if done.is_err() {
            out.truncate(start);
        }
        done
    }

    fn cut(&self, frame: &Frame, out: &mut Vec<Frame>) -> Result<(), SegmentError> {
        // A frame without payload is one segment.
        let count = self.payload().div_ceil(self.stride).max(1);
        let mut rest = RemainingPayload::new(frame, self.tcp.payload_at);
        out.reserve(count);
        for index in 0..count {
            let from = self.tcp.payload_at + index * self.stride;
            let to = (from + self.stride).min(self.end);
            // The segment is written at its place, because a frame is expensive to move.
            out.push(Frame::empty());
            if let Some(segment) = out.last_mut() {
                self.write_part(frame, &mut rest, (from, to), segment)?;
            }
        }
        Ok(())
    }

    /// Returns the part of `frame` with the payload `from .. to`; `rest` is positioned at `from`.
    fn part(
        &self,
        frame: &Frame,
        rest: &mut RemainingPayload<impl Iterator<Item = Span>>,
        from: usize,
        to: usize,
    ) -> Result<Frame, SegmentError> {
        let mut segment = Frame::empty();
        self.write_part(frame, rest, (from, to), &mut segment)?;
        Ok(segment)
    }

    /// Makes an empty frame the part of `frame` with the payload `from .. to`. The segment sends
    /// payload in the snapshot from there, because it may have been inspected.
    #[inline]
    fn write_part(
        &self,
        frame: &Frame,
        rest: &mut RemainingPayload<impl Iterator<Item = Span>>,
        (from, to): (usize, usize),
        segment: &mut Frame,
    ) -> Result<(), SegmentError> {
        let headers = self.tcp.payload_at;
        let private = frame.header().len();
        let mut bytes = self.bytes;
        let mut len = headers;
        if from < private {
            let payload = from..to.min(private);
            len += payload.len();
            if len > SNAPSHOT_MAX || payload.end > SNAPSHOT_MAX {
                return Err(ParseError::TooShort.into());
            }
            bytes.copy_within(payload, headers);
        }
        let bytes = bytes.get(..len).ok_or(ParseError::TooShort)?;
        if !segment.put_header(bytes) {
            return Err(ParseError::TooShort.into());
        }
        rest.take(to.saturating_sub(from.max(private)), segment);
        segment.token = frame.token;
        segment.fixed_id = frame.fixed_id;
        self.write_network(segment.header_mut(), from, to)?;
        self.write_tcp(segment, from, to)
    }

    fn write_network(&self, header: &mut [u8], from: usize, to: usize) -> Result<(), SegmentError> {
        let at = self.network_at;
        let length = self.tcp.payload_at + (to - from) - at;
        let fits = match self.network {
            Network::Ipv4(ip) => {
                let before = (from - self.tcp.payload_at) / usize::from(self.gso.size);
                let id = ip.id.wrapping_add(self.id_step.wrapping_mul(before as u16));
                let fits = put(header, at + 2, &(length as u16).to_be_bytes())
                    && put(header, at + 4, &id.to_be_bytes())
                    && put(header, at + 10, &[0, 0]);
                let sum = !Self::sum_of(header.get(at..ip.transport_at).unwrap_or(&[]));
                fits && put(header, at + 10, &sum.to_be_bytes())
            }
            Network::Ipv6(_) => put(header, at + 4, &((length - 40) as u16).to_be_bytes()),
            Network::Arp(_) | Network::Other => false,
        };
        if fits {
            Ok(())
        } else {
            Err(SegmentError::WrongKind)
        }
    }

    fn sum_of(bytes: &[u8]) -> u16 {
        let mut sum = Sum::default();
        sum.add_bytes(bytes);
        sum.folded()
    }

    fn write_tcp(&self, segment: &mut Frame, from: usize, to: usize) -> Result<(), SegmentError> {
        let at = self.tcp.at;
        let before = from - self.tcp.payload_at;
        let sequence = self.tcp.sequence.wrapping_add(before as u32);
        let mut flags = self.tcp.flags;
        if to != self.end {
            flags &= !(flags::FIN | flags::PSH);
        }
        if before != 0 {
            flags &= !flags::CWR;
        }
        let several = to - from > usize::from(self.gso.size);
        segment.offload.gso = several.then_some(self.gso);
        let pseudo = self.pseudo(segment.len() - at);
        let header = segment.header_mut();
        let fits = put(header, at + 4, &sequence.to_be_bytes())
            && put(header, at + TCP_FLAGS, &[flags])
            && put(
                header,
                at + TCP_CHECKSUM,
                &Sum::new(pseudo).folded().to_be_bytes(),
            );
        if !fits {
            return Err(ParseError::TooShort.into());
        }
        segment.offload.checksum = Checksum::Blank {
            start: at as u16,
            offset: TCP_CHECKSUM as u16,
        };
        if !self.blank {
            finish(segment).map_err(|error| match error {
                FinishError::Fault(_) => SegmentError::Fault,
                _ => SegmentError::WrongChecksum,
            })?;
        }
        Ok(())
    }

    fn pseudo(&self, len: usize) -> u32 {
        match self.network {
            Network::Ipv4(ip) => pseudo_v4(ip.source, ip.destination, ip.protocol, len),
            Network::Ipv6(ip) => pseudo_v6(ip.source, ip.destination, ip.protocol, len),
            Network::Arp(_) | Network::Other => 0,
        }
    }
}

/// The payload that no segment has yet.
struct RemainingPayload<I> {
    pieces: I,
    current: Span,
}

impl RemainingPayload<()> {
    fn new(frame: &Frame, offset: usize) -> RemainingPayload<impl Iterator<Item = Span> + '_> {
        RemainingPayload {
            pieces: frame.payload_from(offset),
            current: Span::EMPTY,
        }
    }
}

impl<I: Iterator<Item = Span>> RemainingPayload<I> {
    /// Moves the next `len` bytes to the end of `segment`.
    fn take(&mut self, mut len: usize, segment: &mut Frame) {
        while len > 0 {
            if self.current.is_empty() {
                let Some(next) = self.pieces.next() else {
                    return;
                };
                self.current = next;
            }
            let span = self.current.take(len);
            self.current = self.current.skip(len);
            len -= span.len();
            segment.push(Piece {
                span,
                buffer: BufferId::NONE,
            });
        }
    }
}
