//! Header prediction (Van Jacobson): most packets are exactly those that their stream predicts.
//!
//! The headers of two consecutive packets of a stream differ only in sequence number, IPv4
//! identification and checksums. So each packet of an aggregate predicts the next one: the constant
//! fields from its header, the other fields by arithmetic. One masked comparison then replaces all
//! rules: the previous packet satisfied the rules for single packets and for following ones, and
//! the predicted packet has the same bits. Any other packet takes the slow path, which evaluates
//! the rules. The tests compare the two paths.

use super::layout::{SnapshotLayout, TcpSegment, array, be16};
use super::verify;
use crate::packet::checksum::fold;
use crate::packet::{TCP_CHECKSUM, flags};
use nic::{Checksum, Frame, Piece};
use std::ops::Range;

/// Compared header bytes: those in every frame's snapshot.
const COMPARED: usize = nic::frame::SNAPSHOT_MIN;
/// Number of 16-byte words that are compared.
const PARTS: usize = COMPARED / 16;
/// End of all parts except the last one. Covers the headers of IPv4, with TCP timestamps and a tag.
const FIRST_PARTS: usize = COMPARED - 16;

/// Header bytes, aligned for instructions that compare 16 of them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(16))]
struct HeaderBits([u64; 2]);

fn parts(bytes: &[u8; COMPARED]) -> [HeaderBits; PARTS] {
    let (words, _) = bytes.as_chunks::<8>();
    let word = |at: usize| words.get(at).map_or(0, |word| u64::from_ne_bytes(*word));
    std::array::from_fn(|part| HeaderBits([word(2 * part), word(2 * part + 1)]))
}

/// Header bits that are constant within a stream, by layout.
#[derive(Clone, Debug)]
pub(super) struct PredictionMask {
    mask: [HeaderBits; PARTS],
    layout: SnapshotLayout,
}

impl PredictionMask {
    pub(super) fn new(layout: SnapshotLayout) -> Self {
        let (ip, tcp) = (layout.network(), layout.tcp());
        let mut mask = [0; COMPARED];
        mask.iter_mut()
            .take(layout.payload())
            .for_each(|byte| *byte = 0xff);
        let mut own = |at: usize, len: usize| {
            mask.iter_mut()
                .skip(at)
                .take(len)
                .for_each(|byte| *byte = 0);
        };
        own(tcp + 4, 4);
        own(tcp + TCP_CHECKSUM, 2);
        if !layout.v6 {
            own(ip + 4, 2);
            own(ip + 10, 2);
        }
        Self {
            mask: parts(&mask),
            layout,
        }
    }

    /// Returns the constant bits in which two headers differ within these parts.
    #[inline(always)]
    fn differences(&self, a: &[u8; COMPARED], b: &[HeaderBits; PARTS], which: Range<usize>) -> u64 {
        let (a, _) = a.as_chunks::<8>();
        let word = |at: usize| u64::from_ne_bytes(a[at]);
        which.fold(0, |differences, part| {
            let (mask, b) = (self.mask[part].0, b[part].0);
            let low = (word(2 * part) ^ b[0]) & mask[0];
            let high = (word(2 * part + 1) ^ b[1]) & mask[1];
            differences | low | high
        })
    }
}

/// Prediction of the next packet of an aggregate, and the payload of predicted packets. The
/// compared fields occupy as few cache lines as possible: two with IPv4.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Prediction {
    /// Payload of predicted packets not yet moved into the aggregate's frame.
    pub(super) pieces: Vec<Piece>,
    pub(super) sequence: u32,
    /// The poll in which predicted packets were last accounted for, if the settings depend on it.
    pub(super) round: u32,
    /// Length of the frame in bytes.
    len: u16,
    /// Index of the layout's [`PredictionMask`].
    pub(super) program: u16,
    /// Number of packets that still fit; 0: no prediction, so every packet takes the slow path.
    pub(super) room: u16,
    /// Checksum over the constant words of the IPv4 header.
    rest: u16,
    /// IPv4 identification.
    pub(super) id: u16,
    /// TCP checksum field of a packet with a blank checksum; 0: unknown.
    blank: u16,
    /// Increment of the identification.
    pub(super) step: u16,
    payload_at: u8,
    tcp_at: u8,
    /// Header of the last packet.
    header: [HeaderBits; PARTS],
}

impl Prediction {
    /// Copies the constant fields from a packet. The caller sets the other fields and the number of
    /// packets that fit. Returns false if no packet can be predicted from this one.
    pub(super) fn learn(&mut self, program: u16, frame: &Frame, segment: &TcpSegment) -> bool {
        let layout = segment.layout;
        self.room = 0;
        let (Ok(len), Some(header)) = (
            u16::try_from(layout.payload() + segment.payload),
            frame.snapshot_array().first_chunk(),
        ) else {
            return false;
        };
        // Only a first packet may have CWR. The limits bound the offsets that `matches` reads.
        let alone = segment.flags & flags::CWR != 0;
        if alone
            || layout.payload() > COMPARED
            || layout.tcp() > TCP_MAX
            || layout.network() > IP_MAX
        {
            return false;
        }
        self.header = parts(header);
        self.program = program;
        self.len = len;
        self.payload_at = layout.payload_at;
        self.tcp_at = layout.tcp_at;
        self.rest = match layout.v6 {
            false => constant_words(frame, layout),
            true => 0,
        };
        self.blank = match frame.offload.checksum {
            Checksum::Blank { .. } => checksum_field(frame, layout.tcp()),
            Checksum::Unknown | Checksum::Valid => 0,
        };
        true
    }

    /// Returns whether this may be the predicted packet, because it has the predicted sequence
    /// number.
    #[inline]
    pub(super) fn may_match(&self, frame: &Frame) -> bool {
        let sequence = array(frame, self.tcp() + 4);
        u32::from_be_bytes(sequence) == self.sequence && self.room > 0
    }

    /// Returns the offset of the TCP header. [`Prediction::learn`] keeps it within the mask, which
    /// lets the compiler omit bounds checks.
    #[inline]
    fn tcp(&self) -> usize {
        usize::from(self.tcp_at) & TCP_MAX
    }

    /// Returns the single piece of this packet if it is the predicted one. Requires
    /// [`Prediction::may_match`].
    #[inline(always)]
    pub(super) fn matches(&self, mask: &PredictionMask, frame: &Frame) -> Option<Piece> {
        let [piece] = frame.pieces.as_slice() else {
            return None;
        };
        let shape = piece.span.len() == usize::from(self.len)
            && frame.header_len() >= usize::from(self.payload_at)
            && frame.bare() == 0
            && frame.offload.gso.is_none();
        let header = frame.snapshot_array().first_chunk()?;
        if !shape || mask.differences(header, &self.header, 0..PARTS - 1) != 0 {
            return None;
        }
        // The last part lies in a separate cache line.
        if usize::from(self.payload_at) > FIRST_PARTS
            && mask.differences(header, &self.header, PARTS - 1..PARTS) != 0
        {
            return None;
        }
        if !mask.layout.v6 {
            // One load covers the identification to the checksum.
            let ip = mask.layout.network() & IP_MAX;
            let found = u64::from_be_bytes(array(frame, ip + 4));
            let sum = u32::from(self.rest) + u32::from(self.id);
            let sum = !((sum + (sum >> 16)) as u16);
            if ((found >> 48) as u16, found as u16) != (self.id, sum) {
                return None;
            }
        }
        let field = checksum_field(frame, self.tcp());
        let right = match frame.offload.checksum {
            Checksum::Valid => field != 0,
            Checksum::Blank { start, offset } => {
                let place = usize::from(start) == self.tcp() && usize::from(offset) == TCP_CHECKSUM;
                place && field == self.blank && field != 0
            }
            Checksum::Unknown => {
                let (len, field) = (usize::from(self.len), u16::from_be(field));
                verify::tcp(frame, mask.layout, len, field).is_ok()
            }
        };
        right.then_some(*piece)
    }

    /// Appends the piece of [the predicted packet](Prediction::matches), and predicts the next
    /// packet.
    #[inline(always)]
    pub(super) fn append(&mut self, piece: Piece) {
        self.pieces.push(Piece {
            span: piece.span.skip(usize::from(self.payload_at)),
            buffer: piece.buffer,
        });
        let payload = u32::from(self.len) - u32::from(self.payload_at);
        self.sequence = self.sequence.wrapping_add(payload);
        self.id = self.id.wrapping_add(self.step);
        self.room -= 1;
    }
}

/// Returns the TCP checksum field, in memory byte order.
#[inline]
fn checksum_field(frame: &Frame, tcp: usize) -> u16 {
    u16::from_ne_bytes(array(frame, tcp + TCP_CHECKSUM))
}

/// Largest offset of an IP header: behind two tags. All lower bits are set, so it is also a mask.
const IP_MAX: usize = 31;
/// Largest offset of a TCP header.
const TCP_MAX: usize = 63;

/// Returns the sum of the words of an IPv4 header without options, except identification and
/// checksum.
fn constant_words(frame: &Frame, layout: SnapshotLayout) -> u16 {
    let words = [0, 2, 6, 8, 12, 14, 16, 18];
    let words = words.map(|at| u32::from(be16(frame, layout.network() + at)));
    fold(words.iter().sum())
}
