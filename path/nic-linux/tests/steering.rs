//! Tests steering by destination MAC on real TAPs. Without root, a TAP driver or bpf(2), every test
//! is skipped and logs why.
#![allow(clippy::unwrap_used, unsafe_code)]

mod common;

use abi::machine::ALL_MACS;
use common::{ETHERTYPE, Guests, MACS, OTHER, SHARED_ONLY, Sender, frame_to};
use nic::frame::SNAPSHOT_MAX;
use nic::vmq::{QueueId, VmqError};
use nic::{Checksum, Gso, GsoKind, Nic, Pool};
use shmem::Area;
use std::time::Instant;
use testing::TIMEOUT;

/// Polls all queues until `count` frames have arrived. Returns the frames' bytes by queue; the
/// shared queue is last.
fn collect(guests: &mut Guests, count: usize) -> Vec<Vec<Vec<u8>>> {
    let mut by_queue = vec![Vec::new(); MACS.len() + 1];
    let mut pool = Pool::new(Area::anonymous(256 * 2048).unwrap(), 2048);
    let until = Instant::now() + TIMEOUT;
    while by_queue.iter().map(Vec::len).sum::<usize>() < count && Instant::now() < until {
        for (n, frames) in by_queue.iter_mut().take(MACS.len()).enumerate() {
            frames.extend(guests.poll(QueueId(n as u32)));
        }
        let mut frames = Vec::new();
        guests.nic.rx(0, 64, &mut pool, &mut frames);
        for mut frame in frames {
            let bytes = frame.to_vec().unwrap();
            // The kernel's stack also sends frames occasionally.
            if bytes[12..14] == ETHERTYPE {
                by_queue.last_mut().unwrap().push(bytes);
            }
            frame.recycle(&mut pool);
        }
    }
    by_queue
}

#[test]
fn frames_reach_the_queue_of_their_mac() {
    let Some(mut guests) = Guests::new() else {
        return;
    };
    for n in 0..MACS.len() {
        guests.alloc_queue(n);
    }
    let sender = Sender::new(&guests.namespace);
    let targets = [MACS[0], MACS[1], OTHER, MACS[2], SHARED_ONLY];
    for round in 0..200u32 {
        for mac in targets {
            sender.send(&frame_to(mac, round));
        }
    }
    let by_queue = collect(&mut guests, 1000);
    for (n, mac) in MACS.iter().enumerate() {
        assert_eq!(by_queue[n].len(), 200, "queue {n}");
        for (round, frame) in by_queue[n].iter().enumerate() {
            assert_eq!(frame[..6], mac[..]);
            assert_eq!(
                frame[14..18],
                (round as u32).to_be_bytes(),
                "frames are in order"
            );
        }
    }
    assert_eq!(by_queue[MACS.len()].len(), 400);
}

#[test]
fn mac_moves_immediately_and_queue_drains() {
    let Some(mut guests) = Guests::new() else {
        return;
    };
    let queue = guests.alloc_queue(0);
    let sender = Sender::new(&guests.namespace);
    sender.send(&frame_to(MACS[0], 1));
    guests.vmq().disable_queue(queue).unwrap();
    sender.send(&frame_to(MACS[0], 2));
    assert_eq!(guests.vmq().free_queue(queue), Err(VmqError::Draining));
    assert_eq!(
        guests.vmq().set_mac(queue, MACS[1]),
        Err(VmqError::Draining)
    );
    let mut in_queue = Vec::new();
    let until = Instant::now() + TIMEOUT;
    while guests.vmq().is_draining(queue) {
        assert!(Instant::now() < until, "no grace period has passed");
        in_queue.extend(guests.poll(queue));
    }
    assert_eq!(in_queue, [frame_to(MACS[0], 1)]);
    guests.vmq().set_mac(queue, MACS[1]).unwrap();
    guests.vmq().enable_queue(queue).unwrap();
    sender.send(&frame_to(MACS[1], 3));
    sender.send(&frame_to(MACS[0], 4));
    let by_queue = collect(&mut guests, 3);
    assert_eq!(by_queue[queue.0 as usize], [frame_to(MACS[1], 3)]);
    let shared = [frame_to(MACS[0], 2), frame_to(MACS[0], 4)];
    assert_eq!(by_queue[MACS.len()], shared);
}

#[test]
fn the_number_of_steered_macs_is_limited() {
    let Some(guests) = Guests::new() else {
        return;
    };
    let steering = &guests.steering;
    let queues = MACS.len() as u32;
    assert!(steering.steer(MACS[0], Some(queues)).is_err());
    assert!(
        steering.steer(MACS[0], None).is_ok(),
        "removing an unsteered MAC succeeds"
    );
    let mac = |number: u32| {
        let [.., a, b] = number.to_be_bytes();
        [2, 0, 0, 0, a, b]
    };
    for number in 0..2 * queues {
        steering.steer(mac(number), Some(0)).unwrap();
    }
    let refused = steering.steer(mac(2 * queues), Some(0)).unwrap_err();
    assert_eq!(refused.to_string(), "Argument list too long (os error 7)");
    steering.steer(ALL_MACS, None).unwrap();
    for number in 0..queues {
        steering.steer(mac(1000 + number), Some(number)).unwrap();
    }
}

/// A driver domain does this first, because it does not know how the previous driver domain steered
/// frames.
#[test]
fn recover_steers_all_frames_to_the_shared_queue() {
    let Some(mut guests) = Guests::new() else {
        return;
    };
    for n in 0..MACS.len() {
        guests.alloc_queue(n);
    }
    guests.steering.steer(ALL_MACS, None).unwrap();
    let sender = Sender::new(&guests.namespace);
    for mac in MACS {
        sender.send(&frame_to(mac, 1));
    }
    let by_queue = collect(&mut guests, MACS.len());
    let counts: Vec<usize> = by_queue.iter().map(Vec::len).collect();
    let (shared, queues) = counts.split_last().unwrap();
    assert_eq!(*shared, MACS.len());
    assert!(queues.iter().all(|frames| *frames == 0), "{queues:?}");
}

/// With split headers the kernel writes the payload after the space for the header, and does not
/// write to this space.
#[test]
fn split_headers_stay_out_of_the_buffers() {
    let Some(mut guests) = Guests::new() else {
        return;
    };
    let queue = guests.alloc_queue_with(1, true);
    let sender = Sender::new(&guests.namespace);
    let lengths = [60, SNAPSHOT_MAX - 1, SNAPSHOT_MAX, SNAPSHOT_MAX + 1, 1514];
    let sent = lengths.map(|len| {
        let mut frame = frame_to(MACS[1], len as u32);
        frame.extend((frame.len()..len).map(|at| at as u8));
        frame
    });
    let mut received = Vec::new();
    let until = Instant::now() + TIMEOUT;
    sent.iter().for_each(|frame| sender.send(frame));
    while received.len() < sent.len() && Instant::now() < until {
        received.extend(guests.poll_with(queue, |frame| {
            assert_eq!(
                (frame.bare(), frame.pieces.len()),
                (frame.len().min(SNAPSHOT_MAX), 1)
            );
            let rest = frame.pieces[0].span;
            let mut after_header = vec![0; rest.len()];
            rest.read(&mut after_header).unwrap();
            (frame.header().to_vec(), after_header, rest)
        }));
    }
    assert_eq!(received.len(), sent.len());
    for ((header, after_header, rest), sent) in received.into_iter().zip(sent) {
        assert_eq!([header.clone(), after_header].concat(), sent);
        // Buffers begin at multiples of 2048 bytes in an area of whole pages, and were zeroed.
        let buffer = rest.addr() & !2047;
        assert_eq!(rest.addr() - buffer, header.len());
        let place = guests.buffer_at(buffer);
        let mut space = vec![0xff; header.len()];
        place.read(&mut space).unwrap();
        assert_eq!(
            space,
            vec![0; header.len()],
            "a header of {} bytes",
            header.len()
        );
    }
}

/// Returns a TCP packet with `bytes` of payload and pending segmentation, once after a virtio-net
/// header, and once without it.
fn segment_to(mac: [u8; 6], bytes: usize) -> (Vec<u8>, Vec<u8>) {
    const HEADERS: usize = 54;
    let mut frame = frame_to(mac, 0);
    frame.truncate(12);
    frame.extend([0x08, 0x00, 0x45, 0]);
    frame.extend(((HEADERS - 14 + bytes) as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([
        0x1f, 0x90, 0x1f, 0x91, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff,
    ]);
    frame.extend([0, 0, 0, 0]);
    assert_eq!(frame.len(), HEADERS);
    frame.extend((0..bytes).map(|at| (at * 7 + at / 251) as u8));
    let mut sent = vec![1, 1];
    for number in [HEADERS as u16, 1448, 34, 16] {
        sent.extend(number.to_ne_bytes());
    }
    sent.extend(&frame);
    (sent, frame)
}

/// Each packet with pending segmentation arrives whole, in the minimum number of buffers and in the
/// order in which these were posted, with and without split headers. Short frames between them use
/// one buffer.
#[test]
fn segments_fill_buffers_in_posting_order() {
    for split in [false, true] {
        let Some(mut guests) = Guests::with_offloads(true) else {
            return;
        };
        let queue = guests.alloc_queue_with(0, split);
        let sender = Sender::new(&guests.namespace);
        sender.offload();
        for payload in [1500, 10_000, 60_000, 3000, 1449, 60_000] {
            let (sent, segment) = segment_to(MACS[0], payload);
            let short = frame_to(MACS[0], payload as u32);
            sender.send(&[&[0; 10][..], &short].concat());
            sender.send(&sent);
            let mut received = Vec::new();
            let until = Instant::now() + TIMEOUT;
            while received.len() < 2 && Instant::now() < until {
                received.extend(guests.poll_with(queue, |frame| {
                    let buffers = (frame.len().max(1)).div_ceil(2048);
                    assert_eq!(frame.pieces.len(), buffers, "{} bytes", frame.len());
                    (frame.offload, frame.to_vec().unwrap())
                }));
            }
            let [(_, first), (offload, second)] = received.as_slice() else {
                panic!("{} frames", received.len());
            };
            assert_eq!(*first, short);
            assert!(*second == segment, "{payload} bytes arrived changed");
            let size = 1448;
            let gso = Some(Gso {
                kind: GsoKind::Tcp4,
                size,
            });
            assert_eq!(offload.gso, gso);
            assert!(matches!(
                offload.checksum,
                Checksum::Blank {
                    start: 34,
                    offset: 16
                }
            ));
        }
    }
}
