//! Header prediction (Van Jacobson): most packets are the ones that their stream makes expect.
//!
//! The headers of two packets in a row of one stream differ only in sequence number, IPv4
//! identification and checksums. So each packet of an aggregate predicts the next one: the constant
//! fields by its own header, the other fields by arithmetic. One masked comparison then stands for
//! all rules: what the rules ask of a packet by itself, or beside the first one, the packet before
//! has passed, and the predicted packet has the same bits. A packet that is not as predicted takes
//! the slow path, which reads the rules. The tests hold the two paths against each other.

use super::layout::{Layout, Segment, array, be16};
use super::verify;
use crate::packet::checksum::fold;
use crate::packet::{TCP_CHECKSUM, flags};
use nic::{Checksum, Frame, Piece};
use std::ops::Range;

/// Header bytes that are compared: those of every frame's snapshot.
const COMPARED: usize = nic::frame::HOT;
/// Words of 16 bytes that are compared at a time.
const PARTS: usize = COMPARED / 16;
/// How far all but the last part reach: IPv4's headers, with timestamps and a tag.
const MOST: usize = COMPARED - 16;

/// Bytes of a header, where instructions that compare 16 of them want them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(16))]
struct Part([u64; 2]);

fn parts(bytes: &[u8; COMPARED]) -> [Part; PARTS] {
    let (words, _) = bytes.as_chunks::<8>();
    let word = |at: usize| words.get(at).map_or(0, |word| u64::from_ne_bytes(*word));
    std::array::from_fn(|part| Part([word(2 * part), word(2 * part + 1)]))
}

/// Which header bits do not change from one packet of a stream to the next, by layout.
#[derive(Clone, Debug)]
pub(super) struct PredictionMask {
    mask: [Part; PARTS],
    layout: Layout,
}

impl PredictionMask {
    pub(super) fn new(layout: Layout) -> Self {
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

    /// Constant bits in which two headers differ, in these of their parts.
    #[inline(always)]
    fn differences(&self, a: &[u8; COMPARED], b: &[Part; PARTS], which: Range<usize>) -> u64 {
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

/// What the next packet of an aggregate is predicted to be, and the payload of the packets that
/// were as predicted. The fields that a packet is compared with lie in as few cache lines as
/// possible: with IPv4, in two.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Prediction {
    /// Payload of predicted packets that is not in the aggregate's frame yet.
    pub(super) pieces: Vec<Piece>,
    pub(super) sequence: u32,
    /// The poll in which predicted packets were last taken note of, where that matters.
    pub(super) round: u32,
    /// Bytes of the frame.
    len: u16,
    /// Number of the layout's [`PredictionMask`].
    pub(super) program: u16,
    /// How many packets fit; 0: nothing is predicted, every packet takes the slow path.
    pub(super) room: u16,
    /// Sum of the constant words of the IPv4 header.
    rest: u16,
    /// IPv4 identification.
    pub(super) id: u16,
    /// The TCP checksum field of a packet whose checksum is blank; 0: not known.
    blank: u16,
    /// From one identification to the next.
    pub(super) step: u16,
    payload_at: u8,
    tcp_at: u8,
    /// The last packet's.
    header: [Part; PARTS],
}

impl Prediction {
    /// Takes over the constant fields from a packet. The other fields, and how many packets fit,
    /// are still to be set. False: nothing can be predicted from this packet.
    pub(super) fn learn(&mut self, program: u16, frame: &Frame, segment: &Segment) -> bool {
        let layout = segment.layout;
        self.room = 0;
        let (Ok(len), Some(header)) = (
            u16::try_from(layout.payload() + segment.payload),
            frame.snapshot_room().first_chunk(),
        ) else {
            return false;
        };
        // Only a first packet may have CWR. The limits are those of the places that `matches`
        // reads.
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

    /// Whether this may be the predicted packet: it has the sequence number.
    #[inline]
    pub(super) fn may_match(&self, frame: &Frame) -> bool {
        let sequence = array(frame, self.tcp() + 4);
        u32::from_be_bytes(sequence) == self.sequence && self.room > 0
    }

    /// Where the TCP header is: [`Prediction::learn`] keeps it within this mask, and the compiler
    /// knows.
    #[inline]
    fn tcp(&self) -> usize {
        usize::from(self.tcp_at) & TCP_MAX
    }

    /// The one piece of this packet, if it is the predicted one. Asked only where it
    /// [may be](Prediction::may_match).
    #[inline(always)]
    pub(super) fn matches(&self, mask: &PredictionMask, frame: &Frame) -> Option<Piece> {
        let [piece] = frame.pieces.as_slice() else {
            return None;
        };
        let shape = piece.span.len() == usize::from(self.len)
            && frame.header_len() >= usize::from(self.payload_at)
            && frame.bare() == 0
            && frame.offload.gso.is_none();
        let header = frame.snapshot_room().first_chunk()?;
        if !shape || mask.differences(header, &self.header, 0..PARTS - 1) != 0 {
            return None;
        }
        // In a cache line of its own.
        if usize::from(self.payload_at) > MOST
            && mask.differences(header, &self.header, PARTS - 1..PARTS) != 0
        {
            return None;
        }
        if !mask.layout.v6 {
            // From the identification to the checksum: one load.
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

    /// Takes the piece of [the predicted packet](Prediction::matches), and predicts the one after
    /// it.
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

/// The TCP checksum field, in the order of bytes that it has in memory.
#[inline]
fn checksum_field(frame: &Frame, tcp: usize) -> u16 {
    u16::from_ne_bytes(array(frame, tcp + TCP_CHECKSUM))
}

/// Where an IP header may be, at most: behind two tags. All bits below are set, so that it is a
/// mask as well.
const IP_MAX: usize = 31;
/// Where a TCP header may be, at most.
const TCP_MAX: usize = 63;

/// Sum of the words of an IPv4 header without options, but for identification and checksum.
fn constant_words(frame: &Frame, layout: Layout) -> u16 {
    let words = [0, 2, 6, 8, 12, 14, 16, 18];
    let words = words.map(|at| u32::from(be16(frame, layout.network() + at)));
    fold(words.iter().sum())
}
