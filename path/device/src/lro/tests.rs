//! Tests of the device's merger.

use super::*;
use net::packet::segment::segment;
use nic::{Caps, Offload};
use runtime::testing::{HEADERS, packet};
use shmem::Area;

const BUFFER: usize = 2048;
/// A port without offloads.
const WIRE: Caps = Caps {
    checksum: false,
    tso: false,
    max_frame: 1518,
};

fn merger(interrupt_us: u32, buffers: usize) -> LroMerger {
    let rings = Rings {
        interrupt_us,
        ..Rings::default()
    };
    let area = Area::anonymous(buffers * BUFFER).unwrap();
    LroMerger::new(rings, Pool::new(area, BUFFER))
}

fn received(packets: &[Vec<u8>]) -> Vec<Arrival> {
    let arrival = |bytes: &Vec<u8>| Arrival {
        bytes: bytes.clone(),
        valid: true,
        merged: None,
    };
    packets.iter().map(arrival).collect()
}

fn stream(flow: u8, count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|n| packet(flow, n)).collect()
}

/// Returns the packets of a frame as they were on the wire.
fn segment_again(arrival: &Arrival) -> Vec<Vec<u8>> {
    let Some(merged) = arrival.merged else {
        return vec![arrival.bytes.clone()];
    };
    let area = Area::anonymous(64 * BUFFER).unwrap();
    let mut frame = Frame::from_bytes(&arrival.bytes, &mut Pool::new(area, BUFFER)).unwrap();
    let offload: Offload = merged.offload(frame.len()).unwrap();
    frame.offload = offload;
    frame.fixed_id = merged.fixed_id;
    let mut parts = Vec::new();
    segment(&frame, WIRE, &mut parts).unwrap();
    parts.iter().map(|part| part.to_vec().unwrap()).collect()
}

/// D-39: the device merges two streams, each in order, within the interrupt delay. The results can
/// be segmented into the same packets again.
#[test]
fn merged_streams_can_be_segmented_again() {
    let mut merger = merger(50, 256);
    let packets = [stream(1, 20), stream(2, 20)].concat();
    let mut out = Vec::new();
    merger.pass(1000, &mut received(&packets), &mut out);
    assert!(out.is_empty() && merger.due_ns().is_some_and(|at_ns| at_ns <= 51_000));
    merger.flush(51_000, &mut out);
    assert_eq!((out.len(), merger.due_ns()), (2, None));
    let found: Vec<_> = out.iter().flat_map(segment_again).collect();
    assert!(found == packets, "the packets differ");
    let stat = merger.stage().borrow().stat();
    assert_eq!(
        (&stat["segments"], &stat["aggregates"]),
        (&40.into(), &2.into())
    );
}

/// D-39: without interrupt moderation, the end of a turn flushes all aggregates.
#[test]
fn no_frame_is_held_without_moderation() {
    let mut merger = merger(0, 256);
    let mut out = Vec::new();
    merger.pass(1000, &mut received(&stream(1, 5)), &mut out);
    assert_eq!((out.len(), merger.due_ns()), (1, None));
}

/// If the memory for merging is full, the device flushes the held frames in order.
#[test]
fn full_memory_flushes_without_loss() {
    let mut merger = merger(50, 8);
    let packets = stream(1, 50);
    let mut out = Vec::new();
    merger.pass(1000, &mut received(&packets), &mut out);
    merger.flush(2000, &mut out);
    let found: Vec<_> = out.iter().flat_map(segment_again).collect();
    assert!(found == packets, "the packets differ");
    assert!(out.len() < packets.len() / 2, "{}", out.len());
}

/// A packet with an invalid checksum is not merged.
#[test]
fn damaged_packet_is_not_merged() {
    let mut merger = merger(50, 256);
    let mut all = received(&stream(1, 3));
    all[1].valid = false;
    all[1].bytes[HEADERS + 5] ^= 1;
    let damaged = all[1].bytes.clone();
    let mut out = Vec::new();
    merger.pass(1000, &mut all, &mut out);
    merger.flush(2000, &mut out);
    let alone = out.iter().filter(|arrival| arrival.bytes == damaged);
    assert_eq!(alone.clone().count(), 1);
    assert!(
        alone
            .clone()
            .all(|arrival| arrival.merged.is_none() && !arrival.valid)
    );
}
