//! Frames received into several buffers of a guest, and frames with pending segmentation.

use super::*;
use crate::VifDrop;
use crate::netif::{BackRecord, Features};
use crate::testing::{back_record, ipv4_tcp};
use nic::{Buffer, BufferId, Checksum, Frame, Gso, GsoKind, Piece};

/// Length of the longest frame with pending segmentation.
const FRAME_BYTES_MAX: usize = 65_535 + 19;
const SIZE: u16 = 1448;

/// A guest that accepts packets of `max_slots` slots; with `meta`, responses carry segment sizes.
fn rig(meta: bool, max_slots: u16) -> Rig {
    let features = match meta {
        true => Features::ALL.with(Features::RX_META),
        false => Features::ALL,
    };
    let back = BackRecord {
        max_slots,
        ..back_record(features)
    };
    Rig::with_record(sizes(), Features::ALL, back)
}

/// Acts as the device: fills the next buffers with `bytes`, in order.
fn received(rig: &mut Rig, bytes: &[u8], gso: bool) -> Frame {
    let mut frame = Frame::empty();
    let mut rest = bytes;
    while !rest.is_empty() {
        let Buffer { id, span } = rig.back.post(FRAME_BYTES_MAX).unwrap();
        assert_eq!(span.len(), 2048, "all of a buffer");
        let (part, behind) = rest.split_at(rest.len().min(span.len()));
        rest = behind;
        let span = span.take(part.len());
        span.write(part).unwrap();
        frame.push(Piece { span, buffer: id });
    }
    frame.snapshot().unwrap();
    if gso {
        frame.offload.checksum = Checksum::Blank {
            start: 34,
            offset: 16,
        };
        let kind = GsoKind::Tcp4;
        frame.offload.gso = Some(Gso { kind, size: SIZE });
    }
    frame
}

#[test]
fn buffers_for_a_segment_follow_its_length() {
    over_each_format(|| {
        let rig = self::rig(true, 40);
        let needed = [60, 2048, 2049, FRAME_BYTES_MAX].map(|bytes| rig.back.buffers_for(bytes));
        assert_eq!(needed, [Some(1), Some(1), Some(2), Some(33)]);
        assert_eq!(rig.back.buffers_for(40 * 2048 + 1), None);
        let few = self::rig(true, 18);
        assert_eq!(
            few.back.buffers_for(FRAME_BYTES_MAX),
            None,
            "more slots than the guest accepts"
        );
        let rig = self::rig(false, 40);
        assert_eq!(rig.back.buffers_for(2048), Some(1));
        let sizeless = "there is no place for a segment size";
        assert_eq!(rig.back.buffers_for(2049), None, "{sizeless}");
    });
}

#[test]
fn a_segment_of_64_kb_is_the_guest_s_without_a_copy() {
    over_each_format(|| {
        let mut rig = rig(true, 40);
        // A frame in one buffer, the longest frame, a frame in one buffer to be segmented, and a
        // longer frame without segmentation.
        let frames = [(1000, false), (65_481, true), (1900, true), (4000, false)];
        for round in 0..5 {
            let sent = frames.map(|(payload, gso)| (ipv4_tcp(payload, round), gso));
            for (bytes, gso) in &sent {
                let frame = received(&mut rig, bytes, *gso);
                rig.back.accept(&frame);
            }
            let report = rig.back.post_end();
            assert_eq!((report.delivered, report.drops.total()), (4, 0));
            rig.back.publish();
            let mut got = Vec::new();
            rig.front.receive(64, &mut got).unwrap();
            assert_eq!(got.len(), sent.len());
            for (frame, (bytes, gso)) in got.iter().zip(&sent) {
                assert!(frame.to_vec().unwrap() == *bytes, "{} bytes", bytes.len());
                let size = frame.offload.gso.map(|gso| gso.size);
                assert_eq!(size, gso.then_some(SIZE));
            }
            rig.front.receive_done(&mut got);
            rig.front.publish();
        }
        assert_eq!(rig.back.grants_mut().writes, 0);
        assert_eq!(rig.back.counters().meta_requests, 0);
        assert_eq!(rig.back.posted(256), 128, "all buffers are posted again");
    });
}

/// The parts of a frame lie in consecutive buffers, or the frame is dropped.
#[test]
fn nonconsecutive_parts_are_dropped() {
    over_each_format(|| {
        let mut rig = rig(true, 40);
        let mut apart = received(&mut rig, &ipv4_tcp(6000, 1), true);
        apart.pieces.swap(1, 2);
        let mut gap = received(&mut rig, &ipv4_tcp(3000, 2), true);
        let between = rig.back.post(FRAME_BYTES_MAX).unwrap();
        let last = rig.back.post(FRAME_BYTES_MAX).unwrap();
        gap.pieces[1].span = last.span.take(gap.pieces[1].span.len());
        gap.pieces[1].buffer = last.id;
        let mut nowhere = received(&mut rig, &ipv4_tcp(3000, 3), true);
        nowhere.pieces[1].buffer = BufferId(200);
        let good = ipv4_tcp(3000, 4);
        let frame = received(&mut rig, &good, true);
        rig.back.refuse(between.id);
        for frame in [&apart, &gap, &nowhere, &frame] {
            rig.back.accept(frame);
        }
        let report = rig.back.post_end();
        assert_eq!(report.delivered, 1);
        assert!(report.drops.get(VifDrop::BadOffload) > 0);
        rig.back.publish();
        assert_eq!(rig.receive(64), [good]);
    });
}

/// Without a slot for its size, a single-buffer frame still to be segmented is dropped.
#[test]
fn gso_frame_without_size_slot_is_dropped() {
    over_each_format(|| {
        let mut rig = rig(false, 40);
        let buffer = rig.back.post(2048).unwrap();
        let bytes = ipv4_tcp(1900, 1);
        buffer.span.take(bytes.len()).write(&bytes).unwrap();
        let piece = Piece {
            span: buffer.span,
            buffer: buffer.id,
        };
        let mut frame = Frame::new(piece, bytes.len()).unwrap();
        frame.offload.checksum = Checksum::Blank {
            start: 34,
            offset: 16,
        };
        let kind = GsoKind::Tcp4;
        frame.offload.gso = Some(Gso { kind, size: SIZE });
        rig.back.accept(&frame);
        assert_eq!(rig.back.post_end().drops.get(VifDrop::BadOffload), 1);
    });
}
