//! Frames in both directions, with and without each feature.

use nic::{Checksum, Frame, Gso, GsoKind, Nic, Notified, Offload};
use vhost_edge::features::virtio::*;
use vhost_edge::testing::rig::offer;
use vhost_edge::testing::{Rig, Session};

const LARGE: usize = 60_000;

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 256) as u8).collect()
}

/// Returns a TCP packet over IPv4 of `len` bytes with a blank checksum.
fn tcp(len: usize, flags: u8) -> Vec<u8> {
    let [high, low] = ((len - 14) as u16).to_be_bytes();
    let mut packet = bytes(len);
    let head = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, high, low];
    let rest = [0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet[..18].copy_from_slice(&head);
    packet[18..34].copy_from_slice(&rest);
    packet[34..54].copy_from_slice(&[
        0, 80, 0, 90, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0,
    ]);
    packet
}

fn large(rig: &mut Rig, kind: GsoKind, flags: u8) -> Frame {
    let mut frame = Frame::from_bytes(&tcp(LARGE, flags), &mut rig.pool).unwrap();
    frame.offload = Offload {
        checksum: Checksum::Blank {
            start: 34,
            offset: 16,
        },
        gso: Some(Gso { kind, size: 1448 }),
    };
    frame
}

fn header_of(features: u64) -> usize {
    match features & (MRG_RXBUF | VERSION_1) {
        0 => 10,
        _ => 12,
    }
}

/// Returns every combination of the features that change the layout of frames in a ring.
fn layouts() -> impl Iterator<Item = u64> {
    let bits = [MRG_RXBUF, INDIRECT_DESC, EVENT_IDX, VERSION_1, ANY_LAYOUT];
    (0..1_u32 << bits.len()).map(move |choice| {
        let chosen = (0..bits.len()).filter(|bit| choice >> bit & 1 != 0);
        chosen.map(|bit| bits[bit]).sum()
    })
}

#[test]
fn frames_pass_in_both_directions_in_every_layout() {
    for (features, fast) in layouts().flat_map(|features| [(features, true), (features, false)]) {
        let mut rig = Rig::running(offer(1), 64, features);
        rig.fast = fast;
        let header = header_of(features);
        let indirect = features & INDIRECT_DESC != 0;
        for len in [14, 60, 64, 1514, 1518] {
            let sent = [vec![0; header], bytes(len)].concat();
            for split in [
                vec![sent.len()],
                vec![header, len],
                vec![1, 5, 7, len + header],
            ] {
                rig.front.post(1, &split, indirect, &sent).unwrap();
                // The last buffer of the third row is longer than the rest of the frame.
                let extra: usize = split.iter().sum::<usize>() - sent.len();
                let got = rig.rx_bytes(0);
                assert_eq!(
                    got.len(),
                    usize::from(len + extra <= 1518),
                    "{len} {split:?}"
                );
                if let Some(got) = got.first() {
                    assert_eq!(got[..len], bytes(len));
                }
                assert!(rig.front.take_back(1).is_some());
            }
        }
        for len in [14, 60, 1514] {
            rig.front.post(0, &[5, 3, 2048], indirect, &[]).unwrap();
            assert_eq!(rig.tx_bytes(0, &bytes(len)).sent, 1);
            let got = rig.front.received(0, header).unwrap();
            assert_eq!(got[header..], bytes(len), "{features:x} {len}");
            assert!(got[..header.min(10)].iter().all(|byte| *byte == 0));
        }
        assert_eq!(rig.buffers_out(), 0);
    }
}

#[test]
fn a_64_kb_segment_passes_as_one_packet() {
    for merge in [0, MRG_RXBUF] {
        let features = merge | VERSION_1 | CSUM | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | HOST_TSO4;
        let mut rig = Rig::running(offer(1), 256, features);
        let mut header = [0; 12];
        header[0] = 1;
        header[1] = 1;
        header[4..6].copy_from_slice(&1448_u16.to_le_bytes());
        header[6] = 34;
        header[8] = 16;
        let packet = tcp(LARGE, 0x10);
        let sent = [&header[..], &packet].concat();
        let mut split = vec![12];
        split.extend((0..LARGE).step_by(4096).map(|at| 4096.min(LARGE - at)));
        rig.front.post(1, &split, false, &sent).unwrap();
        let mut frames = rig.rx(0, 64);
        let frame = &mut frames[0];
        assert_eq!(frame.to_vec().unwrap(), packet);
        let kind = GsoKind::Tcp4;
        assert_eq!(frame.offload.gso, Some(Gso { kind, size: 1448 }));
        frame.recycle(&mut rig.pool);

        let posts = if merge == 0 { 1 } else { 40 };
        let lengths = if merge == 0 {
            vec![4096; 17]
        } else {
            vec![1536]
        };
        for _ in 0..posts {
            rig.front.post(0, &lengths, false, &[]).unwrap();
        }
        let mut frame = large(&mut rig, GsoKind::Tcp4, 0x10);
        assert_eq!(rig.tx(0, std::slice::from_ref(&frame)).sent, 1);
        frame.recycle(&mut rig.pool);
        let got = rig.front.received(0, 12).unwrap();
        assert_eq!(got[12..], packet);
        assert_eq!(got[..6], [1, 1, 54, 0, 0xa8, 5]);
        let chains = if merge == 0 {
            1
        } else {
            (LARGE + 12).div_ceil(1536)
        };
        assert_eq!(got[10..12], (chains as u16).to_le_bytes());
    }
}

#[test]
fn a_driver_without_offloads_gets_plain_packets() {
    let mut rig = Rig::running(offer(1), 128, VERSION_1 | MRG_RXBUF);
    for _ in 0..64 {
        rig.front.post(0, &[2048], false, &[]).unwrap();
    }
    let mut frame = large(&mut rig, GsoKind::Tcp4, 0x10);
    let report = rig.tx(0, std::slice::from_ref(&frame));
    frame.recycle(&mut rig.pool);
    assert_eq!((report.sent, report.refused), (1, 0));
    let mut total = 0;
    while let Some(packet) = rig.front.received(0, 12) {
        assert_eq!(
            packet[..10],
            [0; 10],
            "the driver has no offload to perform"
        );
        total += packet.len() - 12 - 54;
        assert!(packet.len() <= 12 + 1514);
    }
    assert_eq!(total, LARGE - 54);

    let mut frame = Frame::from_bytes(&tcp(1000, 0x10), &mut rig.pool).unwrap();
    frame.offload.checksum = Checksum::Blank {
        start: 34,
        offset: 16,
    };
    assert_eq!(rig.tx(0, std::slice::from_ref(&frame)).sent, 1);
    let packet = rig.front.received(0, 12).unwrap();
    assert_eq!(packet[..10], [0; 10]);
    assert_ne!(
        packet[12 + 50..12 + 52],
        [0, 0],
        "the checksum is filled in"
    );
    frame.recycle(&mut rig.pool);
}

#[test]
fn congestion_marks_need_their_feature() {
    let base = VERSION_1 | MRG_RXBUF | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6;
    for (features, packets) in [(base, 42), (base | GUEST_ECN, 1)] {
        let mut rig = Rig::running(offer(1), 128, features);
        for _ in 0..64 {
            rig.front.post(0, &[2048], false, &[]).unwrap();
        }
        let mut frame = large(&mut rig, GsoKind::Tcp4, 0x90);
        assert_eq!(rig.tx(0, std::slice::from_ref(&frame)).sent, 1);
        frame.recycle(&mut rig.pool);
        let mut count = 0;
        while let Some(packet) = rig.front.received(0, 12) {
            count += 1;
            let kind = if packets == 1 { 0x81 } else { 0 };
            assert_eq!(packet[1], kind);
        }
        assert_eq!(count, packets);
    }
}

#[test]
fn offloads_that_were_not_negotiated_are_dropped() {
    let mut rig = Rig::running(offer(1), 64, VERSION_1 | CSUM | HOST_TSO4);
    let mut send = |flags: u8, kind: u8, size: u16| {
        let mut sent = [vec![0; 12], tcp(1000, 0x10)].concat();
        sent[0] = flags;
        sent[1] = kind;
        sent[4..6].copy_from_slice(&size.to_le_bytes());
        sent[6] = 34;
        sent[8] = 16;
        rig.front.post(1, &[sent.len()], false, &sent).unwrap();
        let passed = rig.rx_bytes(0).len();
        rig.front.take_back(1).unwrap();
        passed
    };
    assert_eq!(send(1, 0, 0), 1);
    assert_eq!(send(1, 1, 500), 1);
    assert_eq!(send(1, 4, 500), 0, "no TSO over IPv6");
    assert_eq!(send(1, 0x81, 500), 0, "no congestion marks");
    assert_eq!(send(1, 1, 0), 0, "segments of no bytes");
    assert_eq!(send(0, 1, 500), 0, "segments without checksums");
    assert_eq!(rig.counter("rx_malformed"), 4);
}

#[test]
fn frames_above_the_mtu_are_dropped() {
    let mut rig = Rig::running(offer(1), 64, VERSION_1);
    rig.front.post(0, &[4096], false, &[]).unwrap();
    assert_eq!(rig.tx_bytes(0, &bytes(1515)).refused, 1);
    assert_eq!(rig.tx_bytes(0, &bytes(1514)).sent, 1);
    for (len, passes) in [(13, 0), (1518, 1), (1519, 0)] {
        let sent = [vec![0; 12], bytes(len)].concat();
        rig.front.post(1, &[sent.len()], false, &sent).unwrap();
        assert_eq!(rig.rx_bytes(0).len(), passes, "{len}");
    }
}

#[test]
fn frames_wait_in_the_ring_without_buffers() {
    let mut rig = Rig::running(offer(1), 64, VERSION_1);
    let held = rig.pool.available();
    let mut all: Vec<_> = (0..held - 2)
        .map(|_| nic::Buffers::take(&mut rig.pool).unwrap())
        .collect();
    for n in 0..4 {
        let sent = [vec![0; 12], bytes(60 + n)].concat();
        rig.front.post(1, &[sent.len()], false, &sent).unwrap();
    }
    let mut first = rig.rx(0, 64);
    assert_eq!(first.len(), 2);
    assert!(rig.ports[0].starved());
    first
        .iter_mut()
        .for_each(|frame| frame.recycle(&mut rig.pool));
    for buffer in all.drain(..) {
        nic::Buffers::put(&mut rig.pool, buffer.id);
    }
    let rest = rig.rx_bytes(0);
    assert_eq!(
        rest,
        [bytes(62), bytes(63)],
        "no frame is lost or duplicated"
    );
    assert!(!rig.ports[0].starved());
}

#[test]
fn frames_wait_while_the_driver_posts_too_little() {
    let mut rig = Rig::running(offer(1), 64, VERSION_1 | MRG_RXBUF);
    rig.ports[0].disarm();
    assert_eq!(rig.tx_bytes(0, &bytes(1000)).waiting, 1);
    for _ in 0..2 {
        rig.front.post(0, &[400], false, &[]).unwrap();
    }
    assert!(
        rig.ports[0].has_work(),
        "the driver has posted more buffers"
    );
    assert_eq!(
        rig.tx_bytes(0, &bytes(1000)).waiting,
        1,
        "it needs three buffers"
    );
    assert_eq!(rig.front.rings[0].ring.used_flags(), 1);
    rig.ports[0].arm();
    assert_eq!(rig.front.rings[0].ring.used_flags(), 0, "the driver kicks");
    assert!(!rig.ports[0].has_work());
    rig.front.post(0, &[400], false, &[]).unwrap();
    assert!(rig.ports[0].has_work());
    assert_eq!(rig.tx_bytes(0, &bytes(1000)).sent, 1);
    assert_eq!(rig.front.received(0, 12).unwrap()[12..], bytes(1000));
    // Waiting frames are lost when their ring stops.
    assert_eq!(rig.tx_bytes(0, &bytes(1000)).waiting, 1);
    assert!(!rig.ports[0].has_work());
    rig.words(11, [0, 0]);
    assert!(rig.ports[0].has_work());
    assert_eq!(rig.tx_bytes(0, &bytes(1000)).full, 1);
    assert!(!rig.ports[0].has_work());
}

#[test]
fn a_driver_is_notified_only_when_it_wants_to_be() {
    for features in [VERSION_1, VERSION_1 | EVENT_IDX] {
        let mut rig = Rig::running(offer(1), 64, features);
        while rig.front.was_called(0) {}
        let mut round = |suppressed: bool| {
            let ring = &rig.front.rings[0].ring;
            match features & EVENT_IDX {
                0 => ring.set_flags(u16::from(suppressed)),
                _ => ring.set_used_event(match suppressed {
                    true => ring.used.wrapping_add(1000),
                    false => ring.used,
                }),
            }
            rig.front.post(0, &[2048], false, &[]).unwrap();
            assert_eq!(rig.tx_bytes(0, &bytes(60)).sent, 1);
            rig.front.received(0, 12).unwrap();
            rig.front.was_called(0)
        };
        // The first chain after a start is always notified.
        round(false);
        assert!(round(false));
        assert!(!round(true));
        assert!(round(false));
    }
}

#[test]
fn kicks_are_requested_only_while_the_shim_sleeps() {
    let mut rig = Rig::running(offer(1), 64, VERSION_1);
    rig.ports[0].disarm();
    assert_eq!(rig.front.rings[1].ring.used_flags(), 1);
    rig.ports[0].arm();
    assert_eq!(rig.front.rings[1].ring.used_flags(), 0);
    assert!(!rig.ports[0].has_work());
    rig.front.post(1, &[72], false, &[0; 72]).unwrap();
    assert!(rig.ports[0].has_work());
    assert_eq!(rig.rx_bytes(0).len(), 1);

    let mut rig = Rig::running(offer(1), 64, VERSION_1 | EVENT_IDX);
    for n in 1..10 {
        rig.front.post(1, &[72], false, &[0; 72]).unwrap();
        assert_eq!(rig.rx_bytes(0).len(), 1);
        rig.ports[0].arm();
        assert_eq!(rig.front.rings[1].ring.avail_event(), n, "the next chain");
    }
}

#[test]
fn eight_queue_pairs_carry_separate_frames() {
    let mut rig = Rig::running(offer(8), 32, VERSION_1 | MRG_RXBUF);
    for pair in 0..8 {
        let frame = bytes(60 + pair);
        let sent = [vec![0; 12], frame.clone()].concat();
        rig.front
            .post(2 * pair + 1, &[sent.len()], false, &sent)
            .unwrap();
        rig.front.post(2 * pair, &[2048], false, &[]).unwrap();
    }
    for pair in 0..8 {
        assert_eq!(rig.rx_bytes(pair), [bytes(60 + pair)]);
        assert_eq!(rig.tx_bytes(pair, &bytes(100 + pair)).sent, 1);
    }
    for pair in 0..8 {
        let got = rig.front.received(2 * pair, 12).unwrap();
        assert_eq!(got[12..], bytes(100 + pair));
    }
}

#[test]
fn a_new_shim_resumes_from_the_used_index() {
    for features in [VERSION_1, VERSION_1 | EVENT_IDX | MRG_RXBUF] {
        let mut rig = Rig::running(offer(1), 16, features);
        let mut next = 0;
        let mut expected = 0;
        for round in 0..40 {
            while rig.front.rings[1].chains.len() < 10 {
                let sent = [vec![0; 12], bytes(60 + next % 50)].concat();
                rig.front.post(1, &[sent.len()], false, &sent).unwrap();
                next += 1;
            }
            let mut frames = rig.rx(0, 1 + round % 7);
            for frame in &mut frames {
                assert_eq!(frame.to_vec().unwrap(), bytes(60 + expected % 50));
                expected += 1;
                frame.recycle(&mut rig.pool);
            }
            if round % 3 == 0 {
                rig.restart();
            }
            while rig.front.take_back(1).is_some() {}
        }
        assert!(expected > 100);
    }
}
