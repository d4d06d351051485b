//! One test for each attack of the field's list that a virtual interface has to survive. Those
//! that end at the ring or in the records are in `ring::tests` and `netif::tests`.

use crate::Fatal;
use crate::counters::Drop;
use crate::netfront::{GrantError, GrantTable, Sizes};
use crate::netif::{
    FATAL_SLOTS, MAX_SLOTS, RxRequest, RxResponse, TxRequest, TxResponse, rsp, rxf, txf,
};
use crate::testing::{
    Memory, Rig, frame_at, hostile_backend, hostile_frontend, ipv4_tcp, over_each_format, packet,
    sizes,
};
use abi::{DomId, GrantEntry};
use nic::{Checksum, Frame, Gso, GsoKind, Offload};
use proptest::prelude::*;

fn tx_gref(rig: &Rig, page: u32) -> u32 {
    rig.layout.tx_small().start + page + 1
}

fn tx_part(rig: &Rig, id: u16, size: u16, flags: u16) -> [u32; 3] {
    TxRequest {
        gref: tx_gref(rig, 1),
        offset: 0,
        flags,
        id,
        size,
    }
    .encode()
}

#[test]
fn attack_01_producer_beyond_ring_disables_this_vif_only() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let mut other = Rig::new(sizes());
        rig.raw_tx().set_req_prod(257);
        assert_eq!(
            rig.back.from_guest(64, &mut Vec::new()),
            Err(Fatal::Overrun)
        );
        assert_eq!(rig.back.fatal(), Some(Fatal::Overrun));
        // For good, even if the index becomes possible again.
        rig.raw_tx().set_req_prod(1);
        assert_eq!(
            rig.back.from_guest(64, &mut Vec::new()),
            Err(Fatal::Overrun)
        );
        assert!(!rig.back.has_work());
        let source = Memory::new(1);
        let frames = [frame_at(&source, 0, &packet(60, 1), 60)];
        let report = rig.back.to_guest(&frames, &[0]);
        assert_eq!((report.delivered, report.drops.get(Drop::Disabled)), (0, 1));
        rig.back.publish();
        assert_eq!(rig.raw_rx().rsp_prod(), 0);
        assert!(other.send(&packet(60, 1), Offload::default()));
        assert_eq!(other.take(64).len(), 1);
    });
}

#[test]
fn attack_01_in_the_ring_to_the_guest() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let prod = rig.raw_rx().req_prod();
        rig.raw_rx().set_req_prod(prod + 256);
        assert_eq!(rig.back.posted(256), 0);
        assert_eq!(rig.back.fatal(), Some(Fatal::Overrun));
        let mut rig = Rig::new(sizes());
        rig.raw_rx().set_req_prod(u32::MAX);
        let source = Memory::new(1);
        let frames = [frame_at(&source, 0, &packet(60, 1), 60)];
        let report = rig.back.to_guest(&frames, &[0, 0]);
        assert_eq!(report.drops.get(Drop::Disabled), 2);
        assert_eq!(rig.back.fatal(), Some(Fatal::Overrun));
    });
}

#[test]
fn attack_01_at_the_frontend() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        rig.raw_tx_back().set_rsp_prod(1);
        assert_eq!(rig.front.reap(), Err(Fatal::Overrun));
        assert!(rig.front.transmit(&mut Vec::new()).is_err());
        let mut rig = Rig::new(sizes());
        rig.raw_rx_back()
            .set_rsp_prod(rig.raw_rx_back().req_prod() + 1);
        assert_eq!(rig.front.receive(64, &mut Vec::new()), Err(Fatal::Overrun));
        assert!(!rig.front.has_work());
    });
}

/// CVE-2026-72380: a response id out of range, unsolicited, or twice.
#[test]
fn attack_02_response_ids() {
    over_each_format(|| {
        let send = |rig: &mut Rig| {
            for n in 0..3 {
                assert!(rig.send(&packet(60, n), Offload::default()));
            }
            let ids: Vec<u16> = (0..3)
                .map(|n| TxRequest::decode(rig.raw_tx_back().request_at(n)).id)
                .collect();
            ids
        };
        let answer = |rig: &Rig, id: u16, status: i16| {
            rig.raw_tx_back()
                .answer(&[TxResponse { id, status }.encode()]);
        };
        // In order or not, fine or not: every id once.
        let mut rig = Rig::new(sizes());
        let free = rig.front.buffers().available();
        let ids = send(&mut rig);
        for (n, id) in ids.iter().rev().enumerate() {
            answer(&rig, *id, if n == 1 { rsp::DROPPED } else { rsp::OKAY });
        }
        assert_eq!(rig.front.reap(), Ok(3));
        assert_eq!(rig.front.buffers().available(), free);
        assert_eq!(
            rig.front.counters().from_guest_drops.get(Drop::PeerError),
            1
        );

        let unsolicited = 40;
        for bad in [unsolicited, 104, 105, u16::MAX] {
            let mut rig = Rig::new(sizes());
            send(&mut rig);
            answer(&rig, bad, rsp::OKAY);
            assert_eq!(rig.front.reap(), Err(Fatal::ResponseId), "{bad}");
            assert_eq!(rig.front.fatal(), Some(Fatal::ResponseId));
        }
        let mut rig = Rig::new(sizes());
        let ids = send(&mut rig);
        answer(&rig, ids[0], rsp::OKAY);
        answer(&rig, ids[0], rsp::OKAY);
        assert_eq!(rig.front.reap(), Err(Fatal::ResponseId), "twice");
        let mut rig = Rig::new(sizes());
        send(&mut rig);
        answer(&rig, 0, rsp::NULL);
        assert_eq!(
            rig.front.reap(),
            Err(Fatal::ResponseId),
            "no extra info was sent"
        );
    });
}

#[test]
fn attack_02_receive_ids() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let back = rig.raw_rx_back();
        let posted = RxRequest::decode(back.request_at(0)).id;
        let response = |id| {
            RxResponse {
                id,
                offset: 0,
                flags: 0,
                status: 60,
            }
            .encode()
        };
        back.answer(&[response(posted + 1)]);
        assert_eq!(
            rig.front.receive(64, &mut Vec::new()),
            Err(Fatal::ResponseId)
        );
    });
}

/// XSA-405: one response for each request, whatever was wrong with them.
#[test]
fn attack_03_one_response_for_each_request() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let raw = rig.raw_tx();
        for round in 0..200_u32 {
            let flags = [0, txf::MORE_DATA, txf::EXTRA_INFO, txf::CSUM_BLANK];
            let words: Vec<_> = (0..4)
                .map(|n| {
                    let at = (round + n) as usize;
                    tx_part(
                        &rig,
                        at as u16,
                        [60, 0, 5000, 14][at / 3 % 4],
                        flags[at % 4],
                    )
                })
                .collect();
            raw.send(&words);
            rig.take(64);
            let answered = raw.rsp_prod();
            assert!(answered <= raw.req_prod());
            assert!(
                raw.req_prod() - answered <= 8,
                "only a packet that is not all there waits"
            );
        }
        raw.send(&[
            tx_part(&rig, 0, 60, 0),
            tx_part(&rig, 0, 60, 0),
            tx_part(&rig, 0, 60, 0),
        ]);
        rig.take(64);
        assert_eq!(raw.rsp_prod(), raw.req_prod());
    });
}

/// XSA-155: what is checked is what is used, though the slot changes in between.
#[test]
fn attack_04_double_fetch() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let raw = rig.raw_tx();
        raw.send(&[tx_part(&rig, 7, 60, 0)]);
        let mut frames = Vec::new();
        assert_eq!(rig.back.from_guest(64, &mut frames), Ok(1));
        raw.request(0, [u32::MAX; 3]);
        let page = rig
            .memory()
            .area()
            .page(rig.layout.tx_small().start + 1)
            .unwrap();
        page.fill(0xee).unwrap();
        assert_eq!(frames[0].len(), 60);
        assert_eq!(
            frames[0].header(),
            [0; 60],
            "the snapshot stays what was looked at"
        );
        assert_eq!(frames[0].to_vec().unwrap(), [0; 60]);
        rig.back.from_guest_done();
        assert_eq!(TxResponse::decode(raw.response_at(0)).id, 7);
    });
}

/// The receive side of the same: the buffer changes after the frontend looked.
#[test]
fn attack_04_double_fetch_at_the_frontend() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let source = Memory::new(1);
        let bytes = packet(60, 9);
        assert_eq!(rig.give(&[frame_at(&source, 0, &bytes, 60)]), 1);
        let mut frames = Vec::new();
        assert_eq!(rig.front.receive(64, &mut frames), Ok(1));
        for n in rig.layout.rx_pool() {
            rig.memory().area().page(n).unwrap().fill(0xee).unwrap();
        }
        rig.raw_rx_back().response(0, [u32::MAX; 2]);
        assert_eq!(frames[0].to_vec().unwrap(), bytes);
        rig.front.receive_done(&mut frames);
    });
}

/// XSA-423, XSA-432: too many slots are refused with everything given back; a packet without end
/// ends the interface.
#[test]
fn attack_05_too_many_slots() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let raw = rig.raw_tx();
        for parts in [u32::from(MAX_SLOTS) + 1, FATAL_SLOTS] {
            let words: Vec<_> = (0..parts)
                .map(|n| {
                    let more = if n + 1 < parts { txf::MORE_DATA } else { 0 };
                    tx_part(&rig, n as u16, if n == 0 { 4000 } else { 10 }, more)
                })
                .collect();
            raw.send(&words);
            assert!(rig.take(64).is_empty());
            assert_eq!(raw.rsp_prod(), raw.req_prod());
        }
        assert_eq!(
            rig.back.counters().from_guest_drops.get(Drop::TooManySlots),
            2
        );
        let words: Vec<_> = (0..=FATAL_SLOTS)
            .map(|_| tx_part(&rig, 0, 4000, txf::MORE_DATA))
            .collect();
        raw.send(&words);
        assert_eq!(
            rig.back.from_guest(64, &mut Vec::new()),
            Err(Fatal::EndlessPacket)
        );
    });
}

/// The header split over slots: the snapshot is made over all of them.
#[test]
fn attack_05_header_split() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let bytes = ipv4_tcp(40, 1);
        let page = rig
            .memory()
            .area()
            .page(rig.layout.tx_small().start + 1)
            .unwrap();
        page.write(&bytes).unwrap();
        let raw = rig.raw_tx();
        let gref = tx_gref(&rig, 1);
        let cut = 13_u16;
        let parts: Vec<_> = (0..bytes.len() as u16)
            .step_by(usize::from(cut))
            .map(|at| {
                let rest = bytes.len() as u16 - at;
                TxRequest {
                    gref,
                    offset: at,
                    flags: if rest > cut { txf::MORE_DATA } else { 0 }
                        | if at == 0 { txf::CSUM_BLANK } else { 0 },
                    id: at,
                    size: if at == 0 {
                        bytes.len() as u16
                    } else {
                        rest.min(cut)
                    },
                }
                .encode()
            })
            .collect();
        raw.send(&parts);
        let mut frames = Vec::new();
        assert_eq!(rig.back.from_guest(64, &mut frames), Ok(1));
        assert_eq!(frames[0].header(), &bytes[..]);
        assert_eq!(
            frames[0].offload.checksum,
            Checksum::Blank {
                start: 34,
                offset: 16
            }
        );
        rig.back.from_guest_done();
    });
}

/// XSA-448 and the like at the frontend: lengths of nothing, and beyond the buffer that was
/// posted. (At the backend: `netback::tests::txpkt2rsp::invalid`.)
#[test]
fn attack_06_offsets_and_lengths_at_the_frontend() {
    over_each_format(|| {
        let cases: &[(i16, i32, Drop)] = &[
            (0, 0, Drop::ZeroSize),
            (13, 0, Drop::TooShort),
            (-1, 0, Drop::PeerError),
            (i16::MIN, 0, Drop::PeerError),
            (2048, 1, Drop::CrossesPage),
            (2049, 0, Drop::CrossesPage),
            (i16::MAX, 0, Drop::CrossesPage),
            (60, 2047, Drop::CrossesPage),
            (60, 4096, Drop::CrossesPage),
            // Into the other half of the page, where another packet lies.
            (60, -2048, Drop::CrossesPage),
            (60, -1, Drop::CrossesPage),
        ];
        for &(status, shift, reason) in cases {
            let mut rig = Rig::new(sizes());
            let back = rig.raw_rx_back();
            // The second request: its buffer is the upper half of a page.
            for n in 0..2 {
                let request = RxRequest::decode(back.request_at(n));
                let bad = n == 1;
                let offset = i32::from(request.offset) + if bad { shift } else { 0 };
                let status = if bad { status } else { 60 };
                let offset = offset as u16;
                back.answer(&[RxResponse {
                    id: request.id,
                    offset,
                    flags: 0,
                    status,
                }
                .encode()]);
            }
            assert_eq!(rig.receive(64).len(), 1, "{status} {shift}");
            let drops = &rig.front.counters().to_guest_drops;
            assert_eq!(
                (drops.get(reason), drops.total()),
                (1, 1),
                "{status} {shift}"
            );
            assert_eq!(
                rig.raw_rx().req_prod(),
                130,
                "both buffers are posted again"
            );
        }
    });
}

/// A posted buffer that is none: refused, and the others used.
#[test]
fn attack_06_offsets_of_posted_buffers() {
    over_each_format(|| {
        for offset in [2049, 4096, u16::MAX] {
            let mut rig = Rig::new(sizes());
            let raw = rig.raw_rx();
            let request = RxRequest::decode(raw.request_at(0));
            raw.request(0, RxRequest { offset, ..request }.encode());
            let source = Memory::new(1);
            let frames = [
                frame_at(&source, 0, &packet(60, 1), 60),
                frame_at(&source, 0, &packet(61, 1), 61),
            ];
            let report = rig.back.to_guest(&frames, &[0, 1]);
            assert_eq!(
                (report.delivered, report.drops.get(Drop::BadRequest)),
                (1, 1)
            );
            // Nothing is written for a frame that is refused.
            assert_eq!(rig.back.grants_mut().writes, 1);
            rig.back.publish();
            assert_eq!(RxResponse::decode(raw.response_at(0)).status, rsp::ERROR);
        }
    });
}

/// Sizes that overflow 16 bits when they are added up.
#[test]
fn attack_07_oversize_and_wrap() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let raw = rig.raw_tx();
        let mut words = vec![tx_part(&rig, 0, u16::MAX, txf::MORE_DATA)];
        for n in 1..20 {
            words.push(tx_part(
                &rig,
                n,
                4096,
                if n < 19 { txf::MORE_DATA } else { 0 },
            ));
        }
        raw.send(&words);
        assert!(rig.take(64).is_empty());
        assert_eq!(
            rig.back.counters().from_guest_drops.get(Drop::SizeMismatch),
            1
        );
        // 30 × u16::MAX: wraps 16 bits, and is far beyond any page.
        let words: Vec<_> = (0..30)
            .map(|n| tx_part(&rig, n, u16::MAX, if n < 29 { txf::MORE_DATA } else { 0 }))
            .collect();
        raw.send(&words);
        assert!(rig.take(64).is_empty());
        assert_eq!(rig.back.counters().from_guest_drops.total(), 2);
        assert_eq!(raw.rsp_prod(), 50);
    });
}

/// The same at the frontend: many parts that make more than a packet can be.
#[test]
fn attack_07_oversize_at_the_frontend() {
    over_each_format(|| {
        let mut rig = Rig::new(Sizes {
            rx_pages: 64,
            ..sizes()
        });
        let back = rig.raw_rx_back();
        let parts = 33;
        for n in 0..parts {
            let request = RxRequest::decode(back.request_at(n));
            let flags = if n + 1 < parts { rxf::MORE_DATA } else { 0 };
            let (id, offset) = (request.id, request.offset);
            back.answer(&[RxResponse {
                id,
                offset,
                flags,
                status: 2048,
            }
            .encode()]);
        }
        assert!(rig.receive(64).is_empty());
        assert_eq!(rig.front.counters().to_guest_drops.get(Drop::TooLong), 1);
    });
}

/// XSA-90, XSA-374, XSA-424: errors on the error path. Each copy of a batch fails once.
#[test]
fn attack_08_faults_are_injected_everywhere() {
    over_each_format(|| {
        let source = Memory::new(8);
        for fail_after in 0..12 {
            let mut rig = Rig::new(sizes());
            let mut frames: Vec<Frame> = (0..3)
                .map(|n| frame_at(&source, n * 8192, &packet(5000, n as u64), 3000))
                .collect();
            frames[1].pieces[1].span = shmem::Span::EMPTY;
            rig.back.grants_mut().writes_left = fail_after;
            let frames = [frames.remove(0), frames.remove(1)];
            let report = rig.back.to_guest(&frames, &[0, 1]);
            rig.back.publish();
            assert_eq!(u64::from(report.delivered) + report.drops.total(), 2);
            assert_eq!(
                rig.receive(64).len() as u32,
                report.delivered,
                "{fail_after}"
            );
            // Everything came back: the pool is posted whole again.
            assert_eq!(rig.raw_rx().req_prod(), 128 + 6);
        }
    });
}

/// XSA-392: a guest that stops consuming costs a bounded time and no memory.
#[test]
fn attack_09_guest_stops_consuming() {
    over_each_format(|| {
        let mut rig = Rig::new(Sizes {
            rx_pages: 4,
            ..sizes()
        });
        let source = Memory::new(1);
        let frames: Vec<_> = (0..64)
            .map(|_| frame_at(&source, 0, &packet(60, 1), 60))
            .collect();
        let mut delivered = 0;
        for _ in 0..100 {
            delivered += rig.give(&frames);
        }
        assert_eq!(delivered, 8);
        let drops = rig.back.counters().to_guest_drops;
        assert_eq!(drops.get(Drop::NoRequest), 64 * 100 - 8);
    });
}

#[test]
fn attack_09_driver_stops_consuming() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let bytes = packet(60, 1);
        let mut frames: Vec<Frame> = (0..64).filter_map(|_| rig.guest_frame(&bytes)).collect();
        assert_eq!(frames.len(), 64);
        let mut held = frames.split_off(32);
        assert_eq!(rig.front.transmit(&mut frames).unwrap().sent, 32);
        assert_eq!(rig.front.transmit(&mut held).unwrap().sent, 32);
        rig.front.publish();
        assert!(
            rig.guest_frame(&bytes).is_none(),
            "nothing is left to read into"
        );
        assert_eq!(rig.front.transmit(&mut Vec::new()).unwrap().sent, 0);
        assert_eq!(rig.take(64).len(), 64);
        assert_eq!(rig.front.reap(), Ok(64));
        assert!(rig.guest_frame(&bytes).is_some());
    });
}

/// XSA-396: a grant that is in use is not given out again.
#[test]
fn attack_15_grant_in_use() {
    let memory = Memory::new(1);
    let table_span = memory.area().page(0).unwrap();
    let mut table = GrantTable::new(table_span);
    let gref = table.grant(DomId(3), 77, true).unwrap();
    let entry = || GrantEntry(table_span.load_u64(gref.index() as usize * 8).unwrap());
    assert_eq!(
        (entry().domain(), entry().frame(), entry().readonly()),
        (DomId(3), 77, true)
    );
    let used = entry().with_flags(entry().flags() | GrantEntry::READING);
    table_span
        .store_u64(gref.index() as usize * 8, used.0)
        .unwrap();
    assert_eq!(table.end(gref), Err(GrantError::InUse));
    assert_eq!(table.available(), 510);
    table_span
        .store_u64(gref.index() as usize * 8, used.with_flags(1).0)
        .unwrap();
    assert_eq!(table.end(gref), Ok(()));
    assert_eq!(entry(), GrantEntry::INVALID);
    assert_eq!(table.end(gref), Err(GrantError::NoSuch));
    assert_eq!(table.end(abi::GrantRef(1 << 19)), Err(GrantError::NoSuch));
    assert_eq!(table.available(), 511);
    for _ in 0..511 {
        assert_ne!(table.grant(DomId(3), 1, false).unwrap().index(), 0);
    }
    assert_eq!(table.grant(DomId(3), 1, false), Err(GrantError::Full));
}

/// XSA-403, XSA-216: nothing that lay in the pages before is granted, and nothing but a frame's
/// own bytes is written.
#[test]
fn attack_22_stale_bytes() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let whole = |rig: &Rig, n: u32| {
            let mut bytes = vec![0; abi::PAGE];
            rig.memory()
                .area()
                .page(n)
                .unwrap()
                .read(&mut bytes)
                .unwrap();
            bytes
        };
        let event = rig.layout.event();
        let mut page = whole(&rig, event);
        // What the rings have there.
        page.drain(256..768);
        assert!(page.iter().all(|byte| *byte == 0));
        for n in event + 1..rig.layout.frames() {
            assert!(whole(&rig, n).iter().all(|byte| *byte == 0), "frame {n}");
        }
        let source = Memory::new(1);
        source.area().span().fill(0xaa).unwrap();
        let bytes = vec![0x55; 61];
        assert_eq!(rig.give(&[frame_at(&source, 0, &bytes, 61)]), 1);
        let written: usize = rig
            .layout
            .rx_pool()
            .map(|n| whole(&rig, n).iter().filter(|byte| **byte != 0).count())
            .sum();
        assert_eq!(written, 61);
    });
}

/// CVE-2026-45890's kin and row 28: loops are bounded by what the driver allows, not by what the
/// guest says.
#[test]
fn attack_28_endless_descriptor_loop() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let raw = rig.raw_tx();
        // A chain of extra infos that goes on for ever.
        let mut words = vec![tx_part(&rig, 0, 60, txf::EXTRA_INFO)];
        words.extend([[0x0101, 0, 0]; 100]);
        raw.send(&words);
        assert_eq!(
            rig.back.from_guest(64, &mut Vec::new()),
            Err(Fatal::EndlessPacket)
        );
        // Small bad packets count against the budget.
        let mut rig = Rig::new(sizes());
        let raw = rig.raw_tx();
        let words: Vec<_> = (0..200).map(|n| tx_part(&rig, n, 0, 0)).collect();
        raw.send(&words);
        assert_eq!(rig.back.from_guest(10, &mut Vec::new()), Ok(0));
        assert_eq!(raw.rsp_prod(), 10);
        // At the frontend.
        let mut rig = Rig::new(sizes());
        let back = rig.raw_rx_back();
        for n in 0..=FATAL_SLOTS {
            let RxRequest { id, offset, .. } = RxRequest::decode(back.request_at(n));
            back.answer(&[RxResponse {
                id,
                offset,
                flags: rxf::MORE_DATA,
                status: 60,
            }
            .encode()]);
        }
        assert_eq!(
            rig.front.receive(64, &mut Vec::new()),
            Err(Fatal::EndlessPacket)
        );
    });
}

/// firecracker#3905: offloads only as negotiated. (The other way:
/// `netback::tests::rxpkt2rsp::offloads_that_the_guest_does_not_take`,
/// `netback::tests::txpkt2rsp::offload_that_was_not_negotiated`.)
#[test]
fn attack_30_offloads_at_the_frontend() {
    over_each_format(|| {
        use crate::netif::Features;
        let bytes = ipv4_tcp(2000, 3);
        let checksum = Checksum::Blank {
            start: 34,
            offset: 16,
        };
        let gso = Some(Gso {
            kind: GsoKind::Tcp4,
            size: 1000,
        });
        for (features, plain, whole) in [
            (Features::ALL, true, true),
            (Features::CHECKSUM, true, false),
            // The checksum is filled in before it is sent.
            (Features::PLAIN, true, false),
        ] {
            let mut rig = Rig::with(sizes(), Features::ALL, features);
            assert_eq!(
                rig.send(
                    &bytes,
                    Offload {
                        checksum,
                        gso: None
                    }
                ),
                plain
            );
            assert_eq!(rig.send(&bytes, Offload { checksum, gso }), whole);
        }
        let mut rig = Rig::new(sizes());
        assert!(!rig.send(
            &bytes,
            Offload {
                checksum: Checksum::Unknown,
                gso
            }
        ));
        assert_eq!(
            rig.front.counters().from_guest_drops.get(Drop::BadOffload),
            1
        );
    });
}

/// Offloads on packets to which they do not belong, or that the guest did not ask for.
#[test]
fn attack_30_offloads_from_a_hostile_driver() {
    over_each_format(|| {
        use crate::netif::{ExtraInfo, Features};
        let case = |features: Features, bytes: &[u8], flags: u16, gso: Option<Gso>| {
            let mut rig = Rig::with(sizes(), features, Features::ALL);
            let back = rig.raw_rx_back();
            let request = RxRequest::decode(back.request_at(0));
            let page = rig.memory().area().page(request.gref - 1).unwrap();
            page.skip(usize::from(request.offset)).write(bytes).unwrap();
            let flags = flags | if gso.is_some() { rxf::EXTRA_INFO } else { 0 };
            let status = bytes.len() as i16;
            let response = RxResponse {
                id: request.id,
                offset: request.offset,
                flags,
                status,
            };
            back.answer(&[response.encode()]);
            if let Some(gso) = gso {
                back.answer(&[ExtraInfo::of(gso).encode()]);
            }
            let mut frames = Vec::new();
            let _ = rig.front.receive(64, &mut frames);
            let found = frames.first().map(|frame| frame.offload);
            rig.front.receive_done(&mut frames);
            rig.front.publish();
            let slots = 1 + u32::from(gso.is_some());
            assert_eq!(
                rig.raw_rx().req_prod(),
                128 + slots,
                "every buffer is posted again"
            );
            found
        };
        let tcp = ipv4_tcp(1000, 1);
        let gso = |kind| Some(Gso { kind, size: 500 });
        let checksum = Checksum::Blank {
            start: 34,
            offset: 16,
        };
        let blank = rxf::CSUM_BLANK;
        let v4 = gso(GsoKind::Tcp4);
        let all = Features::ALL;
        assert_eq!(
            case(all, &tcp, blank, v4),
            Some(Offload { checksum, gso: v4 })
        );
        assert_eq!(
            case(all, &tcp, blank, None),
            Some(Offload {
                checksum,
                gso: None
            })
        );
        let valid = Offload {
            checksum: Checksum::Valid,
            gso: None,
        };
        assert_eq!(case(all, &tcp, rxf::DATA_VALIDATED, None), Some(valid));
        assert_eq!(
            case(all, &tcp, 0, v4),
            None,
            "segments whose checksum is not blank"
        );
        assert_eq!(
            case(all, &tcp, blank, gso(GsoKind::Tcp6)),
            None,
            "the wrong kind"
        );
        assert_eq!(
            case(all, &packet(1000, 1), blank, None),
            None,
            "no checksum to fill in"
        );
        assert_eq!(
            case(all, &tcp[..50], blank, None),
            None,
            "its place is not in the packet"
        );
        assert_eq!(
            case(Features::CHECKSUM, &tcp, blank, v4),
            None,
            "segments not asked for"
        );
        assert_eq!(
            case(Features::PLAIN, &tcp, blank, None),
            None,
            "blank checksums not asked for"
        );
    });
}

/// CVE-2026-46323: every grant of a packet is held, and every request unanswered, until the
/// packet is done with.
#[test]
fn attack_31_grants_are_held_until_the_last_response() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        assert!(rig.send(&packet(5000, 3), Offload::default()));
        let mut frames = Vec::new();
        assert_eq!(rig.back.from_guest(64, &mut frames), Ok(1));
        assert!(rig.back.grants_mut().reading);
        rig.back.publish();
        assert_eq!(rig.raw_tx().rsp_prod(), 0);
        assert_eq!(rig.front.reap(), Ok(0));
        rig.back.from_guest_done();
        assert!(!rig.back.grants_mut().reading);
        assert_eq!(rig.raw_tx().rsp_prod(), 2);
        // Forgotten: the next batch ends the one before.
        assert!(rig.send(&packet(60, 3), Offload::default()));
        assert!(rig.send(&packet(60, 4), Offload::default()));
        frames.clear();
        assert_eq!(rig.back.from_guest(1, &mut frames), Ok(1));
        frames.clear();
        assert_eq!(rig.back.from_guest(1, &mut frames), Ok(1));
        assert_eq!(rig.raw_tx().rsp_prod(), 3);
        let grants = rig.back.into_grants();
        assert!(!grants.reading);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Row 29 and all the others: no panic, whatever a guest writes.
    #[test]
    fn attack_29_any_frontend(data in prop::collection::vec(any::<u8>(), 0..3000)) {
        hostile_frontend(&data);
    }

    #[test]
    fn attack_29_any_backend(data in prop::collection::vec(any::<u8>(), 0..3000)) {
        hostile_backend(&data);
    }
}
