//! Tests of merging in a guest's posted buffers. The guest receives the same packets in the same
//! order, merged where they are consecutive.

mod held;

use super::*;
use net::packet::segment::segment;
use nic::{Caps, Checksum, Piece};
use runtime::testing::{PAYLOAD, config, packet};
use vif::netfront::Sizes;
use vif::netif::Features;
use vif::testing::{FakeGrants, Rig, back_record, sizes};

const FRAME: usize = 1519;
/// A port without offloads.
const WIRE: Caps = Caps {
    checksum: false,
    tso: false,
    max_frame: 1518,
};

fn rig(meta: bool) -> Rig {
    let features = match meta {
        true => Features::ALL.with(Features::RX_META),
        false => Features::ALL,
    };
    let sizes = Sizes {
        rx_pages: 64,
        ..sizes()
    };
    let mut rig = Rig::with_record(sizes, Features::ALL, back_record(features));
    rig.back.expect_merged(true);
    rig
}

/// Acts as the device: receives these packets into the guest's posted buffers.
fn receive_into_guest(netback: &mut Netback<FakeGrants>, packets: &[Vec<u8>]) -> Vec<Frame> {
    let receive = |bytes: &Vec<u8>| {
        let buffer = netback.post(FRAME).unwrap();
        buffer.span.take(bytes.len()).write(bytes).unwrap();
        let piece = Piece {
            span: buffer.span,
            buffer: buffer.id,
        };
        Frame::new(piece, bytes.len()).unwrap()
    };
    packets.iter().map(receive).collect()
}

/// Merges and delivers a batch. Returns the number of packets in each frame that the guest
/// receives.
fn delivered(rig: &mut Rig, merger: &mut QueueLro, packets: &[Vec<u8>]) -> Vec<usize> {
    let mut frames = receive_into_guest(&mut rig.back, packets);
    merger.merge_runs(&rig.back, 1, &mut frames);
    for frame in &frames {
        rig.back.accept(frame);
    }
    let report = rig.back.post_end();
    assert_eq!(
        (report.drops.total(), report.delivered as usize),
        (0, frames.len())
    );
    rig.back.publish();
    let mut got = Vec::new();
    rig.front.receive(256, &mut got).unwrap();
    let mut originals = packets.iter();
    let lengths = got.iter().map(|frame| {
        let mut cut = Vec::new();
        match frame.offload.gso {
            None => cut.push(frame.to_vec().unwrap()),
            Some(_) => {
                assert!(matches!(frame.offload.checksum, Checksum::Blank { .. }));
                let mut parts = Vec::new();
                segment(frame, WIRE, &mut parts).unwrap();
                cut.extend(parts.iter().map(|part| part.to_vec().unwrap()));
            }
        }
        for bytes in &cut {
            assert!(
                Some(bytes) == originals.next(),
                "a packet differs or is out of order"
            );
        }
        cut.len()
    });
    let lengths = lengths.collect();
    assert!(originals.next().is_none(), "a packet is missing");
    rig.front.receive_done(&mut got);
    rig.front.publish();
    lengths
}

fn merger() -> QueueLro {
    QueueLro::new(&config(FlushConfig::Poll))
}

fn stream(flow: u8, from: u32, count: u32) -> Vec<Vec<u8>> {
    (from..from + count).map(|n| packet(flow, n)).collect()
}

#[test]
fn run_merges_up_to_the_guests_slot_limit() {
    for meta in [true, false] {
        let (mut rig, mut merger) = (rig(meta), merger());
        assert_eq!(delivered(&mut rig, &mut merger, &stream(1, 0, 10)), [10]);
        // A frame has at most 40 slots.
        let two = delivered(&mut rig, &mut merger, &stream(1, 10, 60));
        assert_eq!(two, [40, 20], "meta {meta}");
        let requests = rig.back.counters().meta_requests;
        assert_eq!(requests, if meta { 0 } else { 3 });
        assert_eq!(PAYLOAD, 1460);
    }
}

#[test]
fn interleaved_streams_are_not_merged() {
    for meta in [true, false] {
        let (mut rig, mut merger) = (rig(meta), merger());
        let mixed: Vec<_> = (0..12).map(|n| packet(1 + (n % 2) as u8, n / 2)).collect();
        assert_eq!(delivered(&mut rig, &mut merger, &mixed), [1; 12]);
        let blocks = [stream(1, 100, 5), stream(2, 100, 4), stream(3, 7, 1)].concat();
        let expected: &[usize] = match meta {
            true => &[5, 4, 1],
            // Only the first packet of the batch has an additional request for the segment size.
            false => &[5, 1, 1, 1, 1, 1],
        };
        assert_eq!(delivered(&mut rig, &mut merger, &blocks), expected);
    }
}

#[test]
fn gap_in_a_stream_ends_the_frame() {
    let gap = [stream(1, 0, 4), stream(1, 6, 5)].concat();
    let (mut with, mut without) = (rig(true), rig(false));
    assert_eq!(delivered(&mut with, &mut merger(), &gap), [4, 5]);
    assert_eq!(
        delivered(&mut without, &mut merger(), &gap),
        [4, 1, 1, 1, 1, 1]
    );
}

#[test]
fn only_plain_tcp_forms_runs() {
    let plain = packet(1, 0);
    let changed = |at: usize, byte: u8| {
        let mut bytes = plain.clone();
        bytes[at] = byte;
        bytes
    };
    let flow_of = |bytes: &[u8]| {
        let mut rig = rig(true);
        TcpFlow::of(&receive_into_guest(&mut rig.back, &[bytes.to_vec()])[0])
    };
    assert!(flow_of(&plain).is_some());
    for (at, byte) in [
        (12, 0x81),
        (13, 0x06),
        (14, 0x46),
        (23, 17),
        (20, 0x20),
        (21, 1),
    ] {
        assert_eq!(flow_of(&changed(at, byte)), None, "byte {at}");
    }
    for at in [0, 11, 26, 33, 34, 37] {
        let other = flow_of(&changed(at, plain[at] ^ 1));
        assert!(other.is_some() && other != flow_of(&plain), "byte {at}");
    }
    // The header is one byte too short for the ports.
    assert_eq!(flow_of(&plain[..37]), None);
}

#[test]
fn merging_can_be_disabled() {
    let mut merger = merger();
    assert!(merger.is_active());
    merger.set(&LroConfig {
        at: config::lro::Placement::Virtual,
        ..config(FlushConfig::Poll)
    });
    assert!(!merger.is_active());
}
