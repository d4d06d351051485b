//! Tests devices that wrap devices: faults, traces, limits.

mod common;

use common::{TestNic, bytes, contents, counter, pool};
use nic::fault::{Faults, Faulty};
use nic::frame::SNAPSHOT_MIN;
use nic::limited::Limited;
use nic::trace::{TraceDirection, Traced};
use nic::{Checksum, Frame, Nic, Pool};
use proptest::prelude::*;

fn marks(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.iter().map(|frame| frame[0]).collect()
}

fn numbered(count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|mark| bytes(mark, 100)).collect()
}

fn frames(count: u8, buffers: &mut Pool) -> Vec<Frame> {
    numbered(count)
        .iter()
        .map(|b| Frame::from_bytes(b, buffers).unwrap())
        .collect()
}

const NONE: Faults = Faults {
    drop: 0.0,
    duplicate: 0.0,
    reorder: 0.0,
    corrupt: 0.0,
    seed: 4,
};

#[test]
fn without_faults_frames_pass_unchanged() {
    let inner = TestNic {
        due_ns: Some(8),
        ..TestNic::with(numbered(5))
    };
    let mut nic = Faulty::new(inner.clone(), NONE);
    let mut buffers = pool(16, 256);
    let mut out = Vec::new();
    assert_eq!(nic.rx(0, 2, &mut buffers, &mut out), 2);
    assert_eq!(nic.rx(0, 9, &mut buffers, &mut out), 3);
    assert_eq!(contents(&out), numbered(5));
    let report = nic.tx(0, &out, &[4, 1]);
    assert_eq!((report.sent, report.bytes), (2, 200));
    assert_eq!(inner.sent.borrow()[..], [bytes(4, 100), bytes(1, 100)]);
    assert_eq!((nic.caps(), nic.next_due(0)), (inner.caps(), Some(8)));
    assert_eq!(counter(&nic, "inner"), 1);
    for name in [
        "fault_dropped",
        "fault_duplicated",
        "fault_reordered",
        "fault_corrupted",
    ] {
        assert_eq!(counter(&nic, name), 0);
    }
}

#[test]
fn dropped_frames_return_their_buffers() {
    let inner = TestNic::with(numbered(5));
    let mut nic = Faulty::new(inner.clone(), Faults { drop: 1.0, ..NONE });
    let mut buffers = pool(5, 256);
    let mut out = Vec::new();
    assert_eq!(nic.rx(0, 9, &mut buffers, &mut out), 0);
    assert_eq!((out.len(), buffers.available()), (0, 5));
    let sent = frames(2, &mut buffers);
    let report = nic.tx(0, &sent, &[0, 1]);
    assert_eq!((report.sent, report.bytes), (2, 200));
    assert!(inner.sent.borrow().is_empty());
    assert_eq!(counter(&nic, "fault_dropped"), 7);
}

#[test]
fn duplicates_follow_within_the_budget() {
    let inner = TestNic::with(numbered(2));
    let mut nic = Faulty::new(
        inner.clone(),
        Faults {
            duplicate: 1.0,
            ..NONE
        },
    );
    let mut buffers = pool(9, 256);
    let mut out = Vec::new();
    assert_eq!(nic.rx(0, 3, &mut buffers, &mut out), 3);
    assert_eq!(nic.next_due(5), Some(5));
    assert_eq!(nic.rx(0, 3, &mut buffers, &mut out), 1);
    assert_eq!(nic.next_due(5), None);
    assert_eq!(marks(&contents(&out)), [0, 0, 1, 1]);
    // The device returns the buffers of queued frames before their supply is dropped.
    inner.arriving.borrow_mut().extend(numbered(1));
    assert_eq!(nic.rx(0, 1, &mut buffers, &mut out), 1);
    nic.release(&mut buffers);
    assert_eq!(
        (out.len(), nic.next_due(5), buffers.available()),
        (5, None, 4)
    );
    // Duplicates have separate memory.
    out.iter_mut().for_each(|frame| frame.recycle(&mut buffers));
    assert_eq!(buffers.available(), 9);
    let sent = frames(2, &mut buffers);
    nic.tx(0, &sent, &[0, 1]);
    assert_eq!(marks(&inner.sent.borrow()), [0, 0, 1, 1]);
    assert_eq!(counter(&nic, "fault_duplicated"), 5);
}

#[test]
fn reordered_frames_are_swapped() {
    let inner = TestNic::with(numbered(3));
    let mut nic = Faulty::new(
        inner.clone(),
        Faults {
            reorder: 1.0,
            ..NONE
        },
    );
    let mut buffers = pool(9, 256);
    let mut out = Vec::new();
    assert_eq!(nic.rx(0, 9, &mut buffers, &mut out), 3);
    assert_eq!(marks(&contents(&out)), [1, 2, 0]);
    let sent = frames(3, &mut buffers);
    nic.tx(0, &sent, &[0, 1, 2]);
    assert_eq!(marks(&inner.sent.borrow()), [1, 2, 0]);
    assert_eq!(counter(&nic, "fault_reordered"), 6);
}

#[test]
fn corruption_flips_one_header_bit() {
    let wrong_bits = |found: &[u8], expected: &[u8]| -> u32 {
        assert_eq!(found[SNAPSHOT_MIN..], expected[SNAPSHOT_MIN..]);
        found
            .iter()
            .zip(expected)
            .map(|(a, b)| (a ^ b).count_ones())
            .sum()
    };
    let inner = TestNic::with(numbered(3));
    let mut nic = Faulty::new(
        inner.clone(),
        Faults {
            corrupt: 1.0,
            ..NONE
        },
    );
    let mut buffers = pool(9, 256);
    let mut out = Vec::new();
    nic.rx(0, 9, &mut buffers, &mut out);
    for (found, expected) in contents(&out).iter().zip(&numbered(3)) {
        assert_eq!(wrong_bits(found, expected), 1);
    }
    let sent = frames(3, &mut buffers);
    nic.tx(0, &sent, &[0, 1, 2]);
    assert_eq!(contents(&sent), numbered(3));
    for (found, expected) in inner.sent.borrow().iter().zip(&numbered(3)) {
        assert_eq!(wrong_bits(found, expected), 1);
    }
    assert_eq!(counter(&nic, "fault_corrupted"), 6);
    // A frame without a header has no bit to flip.
    nic.tx(0, &[Frame::empty()], &[0]);
}

#[test]
fn a_trace_keeps_the_last_frames() {
    let inner = TestNic {
        due_ns: Some(8),
        ..TestNic::with([bytes(1, 100), bytes(2, 20)])
    };
    let mut nic = Traced::new(inner.clone(), 3);
    let mut buffers = pool(9, 16);
    let mut out = frames(1, &mut buffers);
    out[0].offload.checksum = Checksum::Valid;
    nic.tx(1, &out, &[0, 0]);
    assert_eq!(nic.rx(2, 9, &mut pool(9, 64), &mut out), 2);
    let last: Vec<_> = nic.last().collect();
    assert_eq!(last.len(), 3);
    assert_eq!(
        (last[0].at_ns, last[0].direction, last[0].len),
        (1, TraceDirection::Tx, 100)
    );
    assert_eq!(
        (last[0].pieces, last[0].offload.checksum),
        (7, Checksum::Valid)
    );
    assert_eq!(last[0].header(), &bytes(0, 100)[..64]);
    assert_eq!(
        (last[2].at_ns, last[2].direction, last[2].len),
        (2, TraceDirection::Rx, 20)
    );
    assert_eq!(last[2].header(), bytes(2, 20));
    assert_eq!((nic.caps(), nic.next_due(0)), (inner.caps(), Some(8)));
    assert_eq!(counter(&nic, "inner"), 1);
    assert_eq!(inner.sent.borrow().len(), 2);
}

#[test]
fn an_empty_trace_records_nothing() {
    let mut nic = Traced::new(TestNic::with(numbered(2)), 0);
    nic.rx(0, 9, &mut pool(9, 256), &mut Vec::new());
    assert_eq!(nic.last().count(), 0);
}

/// Rate of 1 byte per µs, in bytes per second.
const RATE: u64 = 1_000_000;
const US: u64 = 1000;

#[test]
fn receiving_respects_the_rate() {
    let inner = TestNic::with(numbered(4));
    let mut nic = Limited::new(inner.clone(), RATE, 150, Box::new(pool(4, 256)));
    let mut buffers = pool(9, 256);
    let mut out = Vec::new();
    // 150 bytes are one and a half frames: two frames are received, and the second overdraws the
    // bucket.
    assert_eq!(nic.rx(0, 9, &mut buffers, &mut out), 2);
    assert_eq!(inner.arriving.borrow().len(), 2);
    assert_eq!(nic.rx(50 * US, 9, &mut buffers, &mut out), 0);
    // The next poll is due only when a full burst is available.
    assert_eq!(nic.next_due(50 * US), Some(200 * US));
    assert_eq!(nic.rx(51 * US, 9, &mut buffers, &mut out), 1);
    assert_eq!(nic.rx(151 * US, 9, &mut buffers, &mut out), 1);
    assert_eq!(contents(&out), numbered(4));
    // If no frame is waiting, the device, not the limit, determines the time.
    assert_eq!(nic.rx(1000 * US, 9, &mut buffers, &mut out), 0);
    assert_eq!(nic.next_due(1000 * US), None);
}

#[test]
fn the_budget_ends_a_poll_before_the_limit() {
    let inner = TestNic {
        due_ns: Some(3),
        ..TestNic::with(numbered(4))
    };
    let mut nic = Limited::new(inner, RATE, 100_000, Box::new(pool(4, 256)));
    let mut out = Vec::new();
    assert_eq!(nic.rx(0, 3, &mut pool(9, 256), &mut out), 3);
    assert_eq!(nic.next_due(0), Some(3));
}

#[test]
fn sending_respects_rate_and_order() {
    let inner = TestNic::default();
    let mut nic = Limited::new(inner.clone(), RATE, 200, Box::new(pool(2, 256)));
    let mut buffers = pool(9, 256);
    let sent = frames(5, &mut buffers);
    let report = nic.tx(0, &sent, &[0, 1, 2, 3, 4, 77]);
    assert_eq!((report.sent, report.full, report.bytes), (4, 1, 400));
    assert_eq!(marks(&inner.sent.borrow()), [0, 1]);
    assert_eq!(nic.next_due(0), Some(100 * US));
    assert_eq!(nic.rx(99 * US, 9, &mut buffers, &mut Vec::new()), 0);
    assert_eq!(inner.sent.borrow().len(), 2);
    nic.rx(100 * US, 9, &mut buffers, &mut Vec::new());
    assert_eq!(marks(&inner.sent.borrow()), [0, 1, 2]);
    // A new frame is queued after waiting frames.
    nic.tx(150 * US, &sent, &[4]);
    assert_eq!(marks(&inner.sent.borrow()), [0, 1, 2]);
    nic.tx(200 * US, &sent, &[]);
    nic.tx(300 * US, &sent, &[]);
    assert_eq!(inner.sent.borrow()[..], numbered(5));
    assert_eq!(nic.next_due(300 * US), None);
    assert_eq!(
        (counter(&nic, "queued"), counter(&nic, "queued_full")),
        (3, 0)
    );
    assert_eq!(counter(&nic, "inner"), 1);
}

#[test]
fn rejected_frames_are_not_queued() {
    let inner = TestNic::default();
    let mut nic = Limited::new(inner.clone(), RATE, 100, Box::new(pool(1, 256)));
    let mut buffers = pool(9, 256);
    let mut sent = frames(3, &mut buffers);
    sent[1].offload.checksum = Checksum::Blank {
        start: 34,
        offset: 16,
    };
    let report = nic.tx(0, &sent, &[0, 1, 2]);
    assert_eq!((report.sent, report.refused, report.full), (2, 1, 0));
    assert_eq!(nic.caps(), inner.caps());
}

proptest! {
    #[test]
    fn limits_lose_and_invent_no_frame(
        burst in 1u32..2000,
        steps in prop::collection::vec((0u64..300, 0u8..5, 0u8..5), 1..60),
    ) {
        let inner = TestNic::default();
        let mut nic = Limited::new(inner.clone(), RATE, burst, Box::new(pool(8, 64)));
        let mut buffers = pool(64, 128);
        let (mut now, mut arrived, mut received) = (0, 0u64, 0u64);
        let (mut accepted, mut next) = (Vec::new(), 0u8);
        let mut out = Vec::new();
        for (wait, receive, send) in steps {
            now += wait * US;
            let more = (0..receive).map(|_| { arrived += 1; bytes(0, 100) });
            inner.arriving.borrow_mut().extend(more.collect::<Vec<_>>());
            nic.rx(now, 3, &mut buffers, &mut out);
            received += out.len() as u64;
            for mut frame in out.drain(..) {
                prop_assert_eq!(frame.len(), 100);
                frame.recycle(&mut buffers);
            }
            prop_assert_eq!(received + inner.arriving.borrow().len() as u64, arrived);
            prop_assert!(received * 100 <= now / US + u64::from(burst) + 100);
            for _ in 0..send {
                let mut frame = [Frame::from_bytes(&[next; 100], &mut buffers).unwrap()];
                let report = nic.tx(now, &frame, &[0]);
                prop_assert_eq!(report.sent + report.full, 1);
                if report.sent == 1 {
                    accepted.push(next);
                }
                next = next.wrapping_add(1);
                frame[0].recycle(&mut buffers);
            }
            let left = marks(&inner.sent.borrow());
            prop_assert!(left.len() as u64 * 100 <= now / US + u64::from(burst) + 100);
        }
        now += 1_000_000 * US;
        nic.tx(now, &[], &[]);
        for _ in 0..8 {
            now += 1_000_000 * US;
            nic.tx(now, &[], &[]);
        }
        prop_assert_eq!(marks(&inner.sent.borrow()), accepted);
    }
}
