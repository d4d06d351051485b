//! Layouts of an aggregate's buffers. No buffer is lost.

use crate::common::{area_of, frame_of};
use crate::packets::{Tcp, stream, timestamp};
use crate::rig::{WIRE, by_flow, payloads, run, wide, wire};
use net::lro::{AggregateForm, Reason, Settings};
use net::packet::segment::segment;
use nic::{BufferId, Caps, Checksum, Frame, GsoKind, Piece};

fn form(form: AggregateForm) -> Settings {
    Settings { form, ..wide() }
}

/// Returns a frame whose pieces end at `cuts`, in buffers starting at `first`.
fn buffered(bytes: &[u8], cuts: &[usize], first: u32) -> Frame {
    let plain = frame_of(bytes, cuts);
    let mut frame = Frame::empty();
    for (piece, n) in plain.pieces.iter().zip(first..) {
        frame.push(Piece {
            span: piece.span,
            buffer: BufferId(n),
        });
    }
    frame.snapshot().unwrap();
    frame
}

fn ids(frame: &Frame) -> Vec<u32> {
    frame.pieces.iter().map(|piece| piece.buffer.0).collect()
}

/// LR-40, LR-41: header, offloads and pieces in both forms.
#[test]
fn an_aggregate_is_a_frame_with_one_header() {
    for v6 in [false, true] {
        let packets = stream(v6, 3, 1448);
        let tcp = packets[0].tcp_at();
        for which in [AggregateForm::Skb, AggregateForm::Page] {
            let frames = packets
                .iter()
                .zip([0, 10, 20])
                .map(|(packet, n)| buffered(&packet.bytes(), &[], n))
                .collect();
            let (out, _) = run(form(which), frames);
            let [aggregate] = &out[..] else {
                panic!("{} packets", out.len())
            };
            assert_eq!(aggregate.len(), tcp + 20 + 3 * 1448);
            let gso = aggregate.offload.gso.unwrap();
            let kind = if v6 { GsoKind::Tcp6 } else { GsoKind::Tcp4 };
            assert_eq!((gso.kind, gso.size), (kind, 1448));
            let blank = Checksum::Blank {
                start: tcp as u16,
                offset: 16,
            };
            assert_eq!(aggregate.offload.checksum, blank);
            assert_eq!(ids(aggregate), [0, 10, 20]);
            let header = tcp + 20;
            let lens = aggregate.pieces.iter().map(|piece| piece.span.len());
            let first = match which {
                AggregateForm::Skb => 1448 + header,
                AggregateForm::Page => 1448,
            };
            assert_eq!(lens.collect::<Vec<_>>(), [first, 1448, 1448]);
            let expected: Vec<_> = packets.iter().map(Tcp::bytes).collect();
            assert_eq!(wire(&out), expected);
        }
    }
}

/// LR-42: packets from another guest of the machine merge: the header is in one slot, the data in
/// others, the checksum blank (Hatori & Oi, V.B).
#[test]
fn header_slot_and_data_slot() {
    for which in [AggregateForm::Skb, AggregateForm::Page] {
        for cuts in [
            vec![54],
            vec![54, 500],
            vec![10, 54, 80],
            vec![100],
            vec![60, 60],
        ] {
            let mut frames = Vec::new();
            let packets = stream(false, 3, 1000);
            for (n, packet) in (0..).zip(&packets) {
                let mut bytes = packet.bytes();
                let pseudo = net::packet::checksum::pseudo_v4(
                    [10, 0, 0, 1].into(),
                    [10, 0, 0, 2].into(),
                    6,
                    1020,
                );
                let sum = net::packet::checksum::fold(pseudo);
                bytes[50..52].copy_from_slice(&sum.to_be_bytes());
                let mut frame = buffered(&bytes, &cuts, n * 10);
                frame.offload.checksum = Checksum::Blank {
                    start: 34,
                    offset: 16,
                };
                frames.push(frame);
            }
            let (out, _) = run(form(which), frames);
            assert_eq!(payloads(&out), [3000], "{cuts:?}");
            let mut held = ids(&out[0]);
            held.sort_unstable();
            let each = cuts.len() as u32 + 1;
            let expected: Vec<_> = (0..3).flat_map(|n| n * 10..n * 10 + each).collect();
            assert_eq!(held, expected, "{cuts:?}");
            let expected: Vec<_> = packets.iter().map(Tcp::bytes).collect();
            assert_eq!(wire(&out), expected, "{cuts:?}");
            // The checksums are blank again, for a port that computes them.
            let caps = Caps {
                checksum: true,
                tso: false,
                max_frame: 1514,
            };
            let mut segments = Vec::new();
            segment(&out[0], caps, &mut segments).unwrap();
            assert_eq!(wire(&segments), expected);
        }
    }
}

/// LR-41: contiguous payload is joined to one fragment, and the buffers are kept.
#[test]
fn contiguous_payload_is_joined() {
    let packets = stream(false, 3, 1000);
    let payload: Vec<_> = packets.iter().flat_map(|p| p.payload.clone()).collect();
    let memory = area_of(&payload);
    for (which, spans) in [
        (AggregateForm::Skb, vec![54, 1000, 1000, 1000]),
        (AggregateForm::Page, vec![3000]),
    ] {
        let frames = (0..3u32)
            .map(|n| {
                let mut frame = Frame::empty();
                let header = packets[n as usize].bytes()[..54].to_vec();
                frame.push(Piece {
                    span: area_of(&header),
                    buffer: BufferId(2 * n),
                });
                frame.push(Piece {
                    span: memory.sub(n as usize * 1000, 1000).unwrap(),
                    buffer: BufferId(2 * n + 1),
                });
                frame.snapshot().unwrap();
                frame
            })
            .collect();
        let (out, _) = run(form(which), frames);
        let lens = out[0].pieces.iter().map(|piece| piece.span.len());
        assert_eq!(lens.filter(|len| *len > 0).collect::<Vec<_>>(), spans);
        let mut held = ids(&out[0]);
        held.sort_unstable();
        assert_eq!(held, [0, 1, 2, 3, 4, 5]);
        let expected: Vec<_> = packets.iter().map(Tcp::bytes).collect();
        assert_eq!(wire(&out), expected);
    }
}

/// LR-43: frames with bare headers, which segmentation produces, also merge.
#[test]
fn frames_with_bare_headers_merge() {
    for which in [AggregateForm::Skb, AggregateForm::Page] {
        for len in [1000, 30] {
            let packets = stream(false, 4, len);
            let frames = packets.iter().map(|p| frame_of(&p.bytes(), &[])).collect();
            let (out, _) = run(wide(), frames);
            let mut segments = Vec::new();
            segment(&out[0], WIRE, &mut segments).unwrap();
            let (again, _) = run(form(which), segments);
            let expected: Vec<_> = packets.iter().map(Tcp::bytes).collect();
            assert_eq!(by_flow(&wire(&again)), by_flow(&expected));
            assert_eq!(again.len(), 1, "{len}");
        }
    }
}

/// LR-43: payload that no piece holds cannot be appended, but a packet with such payload may be the
/// first.
#[test]
fn bare_payload_is_not_appended() {
    for which in [AggregateForm::Skb, AggregateForm::Page] {
        let packets = stream(false, 4, 30);
        let mut frames: Vec<_> = packets.iter().map(|p| frame_of(&p.bytes(), &[])).collect();
        frames[2] = Frame::with_header(&packets[2].bytes()).unwrap();
        let (out, lro) = run(form(which), frames);
        assert_eq!(payloads(&out), [60, 60]);
        assert_eq!(lro.counters().flushed(Reason::Bare), 1);
        let expected: Vec<_> = packets.iter().map(Tcp::bytes).collect();
        assert_eq!(wire(&out), expected);
    }
}

/// LR-40: a header that extends beyond the hot part of the snapshot is fetched.
#[test]
fn headers_beyond_the_snapshot_minimum_merge() {
    for v6 in [false, true] {
        let packets: Vec<_> = stream(v6, 3, 200)
            .into_iter()
            .map(|packet| {
                packet.with(|p| {
                    p.tags = 1;
                    p.options = [timestamp(1, 2), vec![1; 8]].concat();
                })
            })
            .collect();
        assert_eq!(crate::rig::geometry(wide(), &packets), [600]);
    }
}

/// LR-40: a single packet is flushed unchanged.
#[test]
fn singletons_are_untouched() {
    for which in [AggregateForm::Skb, AggregateForm::Page] {
        let bytes = Tcp::v4(5, 300).bytes();
        let mut frame = buffered(&bytes, &[54], 3);
        frame.token = 9;
        let pieces = frame.pieces.clone();
        let (out, _) = run(form(which), vec![frame]);
        assert_eq!(out[0].to_vec().unwrap(), bytes);
        assert_eq!((out[0].offload, out[0].token), (Default::default(), 9));
        assert_eq!(out[0].pieces, pieces);
    }
}
