//! Packets from hostile senders into large receive offload.

use crate::input::Input;
use abi::PAGE;
use net::lro::{AggregateForm, Flush, Lro, MergeRules, Psh, Settings};
use net::packet::segment;
use nic::{BufferId, Caps, Checksum, Frame, Gso, GsoKind, Piece};
use shmem::Area;

/// Maximum number of packets that exist at a time, each in a page.
const PAGES: usize = 64;
/// The wire's limits.
const WIRE: Caps = Caps {
    checksum: false,
    tso: false,
    max_frame: 70_000,
};

/// Passes a stream of mostly consecutive packets, with changes, through an engine whose settings,
/// polls and times the input selects. Checks that buffers and payload are conserved, and that
/// aggregates keep their limits and can be segmented.
pub fn lro(bytes: &[u8]) {
    thread_local!(static MEMORY: Area = Area::anonymous(PAGES * PAGE).expect("memory"));
    let mut input = Input::new(bytes);
    let first = settings(&mut input);
    let mut lro = Lro::new(first, input.u64());
    let mut peer = Peer::default();
    let (mut batch, mut out) = (Vec::new(), Vec::new());
    let (mut now, mut sent, mut pieces) = (0, 0, 0);
    while !input.is_empty() && sent < PAGES {
        match input.below(12) {
            0 => {
                now += u64::from(input.u16()) * 10;
                lro.poll(now, &mut batch, &mut out);
            }
            1 => lro.expire(now + u64::from(input.u16()), &mut out),
            2 => lro.flush_oldest(input.below(5), now, &mut out),
            3 if input.below(8) == 0 => lro.set(settings(&mut input)),
            _ => {
                let place = MEMORY.with(|area| area.at(sent * PAGE, PAGE));
                let packet = peer.packet(&mut input);
                let frame = frame(&mut input, &packet, place.expect("a page"), sent as u32);
                pieces += frame.pieces.len();
                batch.push(frame);
                sent += 1;
            }
        }
        let there: usize = out
            .iter()
            .chain(&batch)
            .map(|frame| frame.pieces.len())
            .sum();
        assert_eq!(there + lro.held(), pieces, "a buffer is lost or doubled");
    }
    lro.poll(now, &mut batch, &mut out);
    lro.drain(now, &mut out);
    assert_eq!((lro.held(), lro.next_due()), (0, None));
    let counters = lro.counters();
    assert_eq!(counters.segments, counters.aggregates + counters.merged);
    outcome(&out, pieces);
}

/// Checks that everything was passed on, and that aggregates are within their limits and can be
/// segmented.
fn outcome(out: &[Frame], pieces: usize) {
    assert_eq!(
        out.iter().map(|frame| frame.pieces.len()).sum::<usize>(),
        pieces
    );
    for frame in out.iter().filter(|frame| merged(frame)) {
        assert!(frame.len() <= 65_535 + 22);
        let mut segments = Vec::new();
        segment::segment(frame, WIRE, &mut segments).expect("an aggregate can be cut");
        let total: usize = segments.iter().map(Frame::len).sum();
        assert!(total > frame.len());
    }
}

/// Returns whether the engine has merged it: its checksum is blank and it has a segment size, which
/// no input packet has.
fn merged(frame: &Frame) -> bool {
    let blank = matches!(frame.offload.checksum, Checksum::Blank { .. });
    blank && frame.offload.gso.is_some()
}

fn settings(input: &mut Input<'_>) -> Settings {
    Settings {
        rules: if input.bool() {
            MergeRules::Gro
        } else {
            MergeRules::Lro
        },
        psh: if input.bool() { Psh::Flush } else { Psh::Merge },
        form: if input.bool() {
            AggregateForm::Skb
        } else {
            AggregateForm::Page
        },
        flush: match input.below(4) {
            0 => Flush::Poll,
            1 => Flush::Polls(u32::from(input.u8())),
            2 => Flush::After {
                us: u32::from(input.u8()),
            },
            _ => Flush::Adaptive,
        },
        hold_max_us: u32::from(input.u8()),
        flows: input.below(8),
        segments: usize::from(input.u8()),
        bytes: usize::from(input.u16()) * 2,
    }
}

/// A sender's state.
#[derive(Default)]
struct Peer {
    sequence: u32,
    id: u16,
}

impl Peer {
    fn packet(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let v6 = input.below(8) == 0;
        let payload = if input.below(8) == 0 {
            input.below(256)
        } else {
            200
        };
        let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if v6 {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            packet.extend(((20 + payload) as u16).to_be_bytes());
            packet.extend([6, 64]);
            packet.extend([0xfd; 32]);
        } else {
            packet.extend([8, 0, 0x45, 0]);
            packet.extend(((40 + payload) as u16).to_be_bytes());
            packet.extend(self.id.to_be_bytes());
            packet.extend([0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let mut sum = net::packet::checksum::Sum::default();
            sum.add_bytes(packet.get(14..).unwrap_or(&[]));
            let sum = !sum.folded();
            if let Some(field) = packet.get_mut(24..26) {
                field.copy_from_slice(&sum.to_be_bytes());
            }
        }
        packet.extend([0x30, 0x39, 0, 80]);
        packet.extend(self.sequence.to_be_bytes());
        packet.extend([0, 0, 0, 9, 0x50, 0x10, 0xff, 0xff, 1, 1, 0, 0]);
        packet.resize(packet.len() + payload, 7);
        self.sequence = self.sequence.wrapping_add(payload as u32);
        self.id = self.id.wrapping_add(1);
        // One packet in four has a byte or two that the peer selects.
        if input.below(4) == 0 {
            for _ in 0..=input.below(2) {
                let at = input.below(100);
                let value = input.u8();
                if let Some(byte) = packet.get_mut(at) {
                    *byte = value;
                }
            }
        }
        packet
    }
}

fn frame(input: &mut Input<'_>, packet: &[u8], place: shmem::Span, id: u32) -> Frame {
    place.write(packet).expect("own memory");
    let mut frame = Frame::empty();
    let mut rest = place.take(packet.len());
    if input.below(4) == 0 {
        let head = rest.take(input.below(128));
        rest = rest.skip(head.len());
        frame.push(Piece {
            span: head,
            buffer: BufferId(1000 + id),
        });
    }
    frame.push(Piece {
        span: rest,
        buffer: BufferId(id),
    });
    frame.snapshot().expect("own memory");
    if input.below(8) != 0 {
        frame.offload.checksum = Checksum::Valid;
    }
    if input.below(32) == 0 {
        frame.offload.gso = Some(Gso {
            kind: GsoKind::Tcp4,
            size: input.u16(),
        });
    }
    frame
}
