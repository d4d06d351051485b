//! Tests the simulated cable.

mod common;

use common::{bytes, contents, counter, pool};
use nic::sim::{SimCable, SimNic};
use nic::{Caps, Checksum, Frame, Gso, GsoKind, Nic, Offload, Pool};

fn send(nic: &mut SimNic, now_ns: u64, frame: &[u8], buffers: &mut Pool) -> nic::TxReport {
    let mut frames = [Frame::from_bytes(frame, buffers).unwrap()];
    let report = nic.tx(now_ns, &frames, &[0]);
    frames[0].recycle(buffers);
    report
}

fn receive(nic: &mut SimNic, now_ns: u64, buffers: &mut Pool) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let count = nic.rx(now_ns, 64, buffers, &mut frames);
    assert_eq!(count, frames.len());
    let received = contents(&frames);
    frames.iter_mut().for_each(|frame| frame.recycle(buffers));
    received
}

#[test]
fn frames_cross_both_ways_in_order() {
    let (mut a, mut b) = SimCable::default().ends();
    let mut buffers = pool(16, 2048);
    let mut frames: Vec<Frame> = (0..3)
        .map(|mark| Frame::from_bytes(&bytes(mark, 100), &mut buffers).unwrap())
        .collect();
    let report = a.tx(5, &frames, &[2, 0, 9]);
    assert_eq!((report.sent, report.bytes), (2, 200));
    frames
        .iter_mut()
        .for_each(|frame| frame.recycle(&mut buffers));
    assert_eq!(receive(&mut a, 5, &mut buffers), Vec::<Vec<u8>>::new());
    assert_eq!(
        receive(&mut b, 5, &mut buffers),
        [bytes(2, 100), bytes(0, 100)]
    );
    send(&mut b, 6, &bytes(7, 60), &mut buffers);
    assert_eq!(receive(&mut b, 6, &mut buffers), Vec::<Vec<u8>>::new());
    assert_eq!(receive(&mut a, 6, &mut buffers), [bytes(7, 60)]);
    assert_eq!(buffers.available(), 16);
}

#[test]
fn the_budget_is_respected() {
    let (mut a, mut b) = SimCable::default().ends();
    let mut buffers = pool(16, 2048);
    for mark in 0..5 {
        send(&mut a, 0, &bytes(mark, 60), &mut buffers);
    }
    let mut out = Vec::new();
    assert_eq!(b.rx(0, 2, &mut buffers, &mut out), 2);
    assert_eq!(b.rx(0, 0, &mut buffers, &mut out), 0);
    assert_eq!(b.rx(0, 9, &mut buffers, &mut out), 3);
    assert_eq!(
        contents(&out),
        (0..5).map(|mark| bytes(mark, 60)).collect::<Vec<_>>()
    );
}

#[test]
fn delay_and_rate_determine_the_arrival_time() {
    let cable = SimCable {
        bytes_per_s: Some(1_000_000),
        delay_ns: 500,
        ..SimCable::default()
    };
    let (mut a, mut b) = cable.ends();
    let mut buffers = pool(16, 2048);
    // 100 bytes take 100 µs.
    send(&mut a, 1000, &bytes(0, 100), &mut buffers);
    send(&mut a, 1000, &bytes(1, 100), &mut buffers);
    assert_eq!(b.next_due(1000), Some(101_500));
    assert_eq!(a.next_due(1000), None);
    assert!(receive(&mut b, 101_499, &mut buffers).is_empty());
    assert_eq!(receive(&mut b, 101_500, &mut buffers), [bytes(0, 100)]);
    assert_eq!(b.next_due(101_500), Some(201_500));
    assert_eq!(receive(&mut b, 201_500, &mut buffers), [bytes(1, 100)]);
    assert_eq!(b.next_due(201_500), None);
    // After an idle time, a frame does not wait for earlier frames.
    send(&mut a, 1_000_000, &bytes(2, 100), &mut buffers);
    assert_eq!(b.next_due(0), Some(1_100_500));
}

#[test]
fn a_full_cable_refuses_and_recovers() {
    let (mut a, mut b) = SimCable {
        capacity_bytes: 250,
        ..SimCable::default()
    }
    .ends();
    let mut buffers = pool(16, 2048);
    assert_eq!(send(&mut a, 0, &bytes(0, 125), &mut buffers).sent, 1);
    assert_eq!(send(&mut a, 0, &bytes(1, 125), &mut buffers).sent, 1);
    let report = send(&mut a, 0, &bytes(2, 125), &mut buffers);
    assert_eq!((report.sent, report.full, report.bytes), (0, 1, 0));
    assert_eq!(receive(&mut b, 0, &mut buffers).len(), 2);
    assert_eq!(send(&mut a, 0, &bytes(3, 250), &mut buffers).sent, 1);
}

#[test]
fn equal_seeds_lose_the_same_frames() {
    let run = |seed| {
        let (mut a, mut b) = SimCable {
            loss: 0.5,
            seed,
            ..SimCable::default()
        }
        .ends();
        let mut buffers = pool(64, 128);
        for mark in 0..200 {
            assert_eq!(send(&mut a, 0, &[mark; 20], &mut buffers).sent, 1);
        }
        let mut got = Vec::new();
        loop {
            let more = receive(&mut b, 0, &mut buffers);
            if more.is_empty() {
                break;
            }
            got.extend(more.iter().map(|frame| frame[0]));
        }
        assert_eq!(counter(&a, "lost") + got.len() as u64, 200);
        assert_eq!(counter(&b, "lost"), 0);
        got
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert!((70..130).contains(&run(3).len()));
}

#[test]
fn loss_can_be_total_or_none() {
    for (loss, arrive) in [(0.0, 50), (1.0, 0)] {
        let (mut a, mut b) = SimCable {
            loss,
            ..SimCable::default()
        }
        .ends();
        let mut buffers = pool(64, 128);
        for _ in 0..50 {
            send(&mut a, 0, &[1; 20], &mut buffers);
        }
        assert_eq!(receive(&mut b, 0, &mut buffers).len(), arrive);
    }
}

#[test]
fn supported_offloads_pass_others_are_rejected() {
    let mut buffers = pool(64, 2048);
    let whole = Offload {
        checksum: Checksum::Blank {
            start: 34,
            offset: 16,
        },
        gso: Some(Gso {
            kind: GsoKind::Tcp4,
            size: 1400,
        }),
    };
    let mut big = Frame::from_bytes(&bytes(1, 9000), &mut buffers).unwrap();
    let (mut a, _) = SimCable::default().ends();
    assert_eq!(a.tx(0, std::slice::from_ref(&big), &[0]).refused, 1);
    big.offload = whole;
    assert_eq!(a.tx(0, std::slice::from_ref(&big), &[0]).refused, 1);
    let mut blank = Frame::from_bytes(&bytes(1, 90), &mut buffers).unwrap();
    blank.offload.checksum = whole.checksum;
    assert_eq!(a.tx(0, &[blank], &[0]).refused, 1);

    let caps = Caps {
        checksum: true,
        tso: true,
        max_frame: 1514,
    };
    let (mut a, mut b) = SimCable {
        caps,
        ..SimCable::default()
    }
    .ends();
    assert_eq!(b.caps(), caps);
    assert_eq!(a.tx(0, &[big], &[0]).sent, 1);
    let mut out = Vec::new();
    assert_eq!(b.rx(0, 1, &mut buffers, &mut out), 1);
    assert_eq!(out[0].offload, whole);
    assert_eq!(out[0].to_vec().unwrap(), bytes(1, 9000));
    let exact = Frame::from_bytes(&bytes(1, 1514), &mut buffers).unwrap();
    assert_eq!(a.tx(0, &[exact], &[0]).sent, 1);
    let long = Frame::from_bytes(&bytes(1, 1515), &mut buffers).unwrap();
    assert_eq!(a.tx(0, &[long], &[0]).refused, 1);
}

#[test]
fn frames_without_a_buffer_are_lost_and_counted() {
    let (mut a, mut b) = SimCable::default().ends();
    let mut buffers = pool(4, 2048);
    send(&mut a, 0, &bytes(0, 60), &mut buffers);
    send(&mut a, 0, &bytes(1, 60), &mut buffers);
    let mut few = pool(1, 2048);
    let mut out = Vec::new();
    assert_eq!(b.rx(0, 9, &mut few, &mut out), 1);
    assert_eq!(counter(&b, "no_buffer"), 1);
    assert_eq!(contents(&out), [bytes(0, 60)]);
}

#[test]
fn a_vlan_tag_does_not_count_towards_the_length() {
    let (mut a, _b) = SimCable {
        caps: Caps {
            max_frame: 100,
            ..Caps::default()
        },
        ..SimCable::default()
    }
    .ends();
    let mut buffers = pool(64, 2048);
    let mut attempt = |tag: [u8; 2], len| {
        let mut bytes = bytes(0, len);
        bytes[12..14].copy_from_slice(&tag);
        send(&mut a, 0, &bytes, &mut buffers).sent
    };
    for tag in [[0x81, 0], [0x88, 0xa8]] {
        assert_eq!((attempt(tag, 104), attempt(tag, 105)), (1, 0));
    }
    for tag in [[0x81, 1], [0x88, 0xa9], [8, 0]] {
        assert_eq!((attempt(tag, 100), attempt(tag, 101)), (1, 0));
    }
}
