//! The packet that nearly always comes: the twin of the one before it, further on.
//!
//! Twins have the same headers, but for what every packet of a stream has of its own: sequence
//! number, IPv4 identification, checksums. Whatever the rules ask of a packet by itself or beside
//! the first one, the packet before was asked, and its twin would answer the same; so the rules
//! need not be read again. What is a packet's own is predicted, and compared, too. The tests hold
//! this short way against the long one.

use super::layout::{Layout, Segment, array, be16};
use super::verify;
use crate::packet::checksum::fold;
use crate::packet::{TCP_CHECKSUM, flags};
use nic::{Checksum, Frame, Piece};
use std::ops::Range;

/// Header bytes that are compared: those of every frame's snapshot.
const TWIN: usize = nic::frame::HOT;
/// Words of 16 bytes that are compared at a time.
const PARTS: usize = TWIN / 16;
/// How far all but the last part reach: IPv4's headers, with timestamps and a tag.
const MOST: usize = TWIN - 16;

/// Bytes of a header, where instructions that compare 16 of them want them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(16))]
struct Part([u64; 2]);

fn parts(bytes: &[u8; TWIN]) -> [Part; PARTS] {
    let (words, _) = bytes.as_chunks::<8>();
    let word = |at: usize| words.get(at).map_or(0, |word| u64::from_ne_bytes(*word));
    std::array::from_fn(|part| Part([word(2 * part), word(2 * part + 1)]))
}

/// Which header bits twins have in common, by layout.
#[derive(Clone, Debug)]
pub(super) struct Twins {
    mask: [Part; PARTS],
    layout: Layout,
}

impl Twins {
    pub(super) fn new(layout: Layout) -> Self {
        let (ip, tcp) = (layout.network(), layout.tcp());
        let mut mask = [0; TWIN];
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

    /// Bits in which a header is not a twin's, in these of its parts.
    #[inline(always)]
    fn differences(&self, a: &[u8; TWIN], b: &[Part; PARTS], which: Range<usize>) -> u64 {
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

/// What the next packet of an aggregate is expected to be, and the payload of those that were as
/// expected. What a packet is compared with lies in as few cache lines as can be: with IPv4, two.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Next {
    /// Payload that came this way and is not in the aggregate's frame yet.
    pub(super) pieces: Vec<Piece>,
    pub(super) sequence: u32,
    /// The poll in which it was last noted that there are packets, where that matters.
    pub(super) round: u32,
    /// Bytes of the frame.
    len: u16,
    /// Number of the layout's [`Twins`].
    pub(super) program: u16,
    /// How many packets fit; 0: nothing is expected, every packet goes the long way.
    pub(super) room: u16,
    /// Sum of the IPv4 header's words that twins have in common.
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

impl Next {
    /// Takes what twins of this packet will have in common with it. What is their own, and how many
    /// fit, is still to be said; false: no twins are to be expected.
    pub(super) fn learn(&mut self, program: u16, frame: &Frame, segment: &Segment) -> bool {
        let layout = segment.layout;
        self.room = 0;
        let (Ok(len), Some(header)) = (
            u16::try_from(layout.payload() + segment.payload),
            frame.snapshot_room().first_chunk(),
        ) else {
            return false;
        };
        // CWR is the first packet's alone. The places where twins are compared, see `is`.
        let alone = segment.flags & flags::CWR != 0;
        if alone || layout.payload() > TWIN || layout.tcp() > TCP_MAX || layout.network() > IP_MAX {
            return false;
        }
        self.header = parts(header);
        self.program = program;
        self.len = len;
        self.payload_at = layout.payload_at;
        self.tcp_at = layout.tcp_at;
        self.rest = match layout.v6 {
            false => unchanging(frame, layout),
            true => 0,
        };
        self.blank = match frame.offload.checksum {
            Checksum::Blank { .. } => checksum_field(frame, layout.tcp()),
            Checksum::Unknown | Checksum::Valid => 0,
        };
        true
    }

    /// Whether this may be the packet: it has the sequence number.
    #[inline]
    pub(super) fn may_be(&self, frame: &Frame) -> bool {
        let sequence = array(frame, self.tcp() + 4);
        u32::from_be_bytes(sequence) == self.sequence && self.room > 0
    }

    /// Where the TCP header is: [`Next::learn`] keeps it within this mask, and the compiler knows.
    #[inline]
    fn tcp(&self) -> usize {
        usize::from(self.tcp_at) & TCP_MAX
    }

    /// Whether this is the packet, if it [may be](Next::may_be). Then it is all in this piece.
    #[inline(always)]
    pub(super) fn is(&self, twins: &Twins, frame: &Frame) -> Option<Piece> {
        let [piece] = frame.pieces.as_slice() else {
            return None;
        };
        let shape = piece.span.len() == usize::from(self.len)
            && frame.header_len() >= usize::from(self.payload_at)
            && frame.bare() == 0
            && frame.offload.gso.is_none();
        let header = frame.snapshot_room().first_chunk()?;
        if !shape || twins.differences(header, &self.header, 0..PARTS - 1) != 0 {
            return None;
        }
        // In a cache line of its own.
        if usize::from(self.payload_at) > MOST
            && twins.differences(header, &self.header, PARTS - 1..PARTS) != 0
        {
            return None;
        }
        if !twins.layout.v6 {
            // From the identification to the checksum: one load.
            let ip = twins.layout.network() & IP_MAX;
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
                verify::tcp(frame, twins.layout, len, field).is_ok()
            }
        };
        right.then_some(*piece)
    }

    /// Takes the payload of [the packet](Next::is), which is this piece, and expects the one after
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

/// Where an IP header may be, at most: behind two tags. With all bits below set, so that it is a
/// mask as well.
const IP_MAX: usize = 31;
/// Where a TCP header may be, at most.
const TCP_MAX: usize = 63;

/// Sum of an IPv4 header's words, without options, but for identification and checksum.
fn unchanging(frame: &Frame, layout: Layout) -> u16 {
    let words = [0, 2, 6, 8, 12, 14, 16, 18];
    let words = words.map(|at| u32::from(be16(frame, layout.network() + at)));
    fold(words.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::super::{Flush, Lro, Settings};
    use super::*;
    use crate::packet::checksum::Sum;
    use shmem::Area;

    const HEADER: usize = 14 + 20 + 32;
    const PAYLOAD: usize = 100;
    const LEN: usize = HEADER + PAYLOAD;

    /// Packet `n` of a stream, one bit of its headers changed, and then its IP checksum made right.
    fn packet(n: u16, changed: Option<usize>) -> Frame {
        let mut bytes = [0; LEN];
        bytes[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, LEN as u8 - 14]);
        bytes[18..20].copy_from_slice(&(u16::MAX - 1).wrapping_add(n).to_be_bytes());
        bytes[20..24].copy_from_slice(&[0x40, 0, 64, 6]);
        bytes[26..36].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0, 9]);
        let sequence = (u32::MAX - 150).wrapping_add(u32::from(n) * PAYLOAD as u32);
        bytes[38..42].copy_from_slice(&sequence.to_be_bytes());
        bytes[46..54].copy_from_slice(&[0x80, 0x10, 0xff, 0xff, 0x12, 0x34, 0, 0]);
        bytes[54..58].copy_from_slice(&[1, 1, 8, 10]);
        let mut ip = Sum::default();
        if let Some(bit) = changed {
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        bytes[24..26].fill(0);
        ip.add_bytes(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&(!ip.folded()).to_be_bytes());
        let area = Area::anonymous(LEN).unwrap();
        let memory = area.at(0, LEN).unwrap();
        memory.write(&bytes).unwrap();
        let buffer = nic::BufferId::NONE;
        let span = memory;
        // The snapshot has all headers, and nothing here reads the payload.
        let mut frame = Frame::new(Piece { span, buffer }, LEN).unwrap();
        frame.offload.checksum = Checksum::Valid;
        frame
    }

    /// An engine that holds packet 0.
    fn engine() -> Lro {
        let settings = Settings {
            flush: Flush::Polls(u32::MAX),
            ..Settings::default()
        };
        let mut lro = Lro::new(settings, 5);
        let mut out = Vec::new();
        lro.poll(0, &mut vec![packet(0, None)], &mut out);
        assert!(out.is_empty());
        lro
    }

    /// Whether a packet goes the short way.
    fn short(lro: &mut Lro, packet: &Frame) -> bool {
        lro.receive_expected(0, 0, packet, &mut Vec::new())
    }

    #[test]
    fn all_but_the_first_go_the_short_way() {
        let mut lro = engine();
        assert!((1..9).all(|n| short(&mut lro, &packet(n, None))));
        assert!(!short(&mut lro, &packet(8, None)), "once only");
    }

    #[test]
    fn any_other_bit_makes_a_packet_go_the_long_way() {
        for bit in 0..HEADER * 8 {
            // The TCP checksum is known to be right, whatever it is; the IP checksum is made right.
            let own = (50..52).contains(&(bit / 8)) || (24..26).contains(&(bit / 8));
            let packet = packet(1, Some(bit));
            assert_eq!(short(&mut engine(), &packet), own, "byte {}", bit / 8);
        }
    }
}
