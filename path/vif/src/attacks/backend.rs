//! Attacks on the netback.

use super::*;
use crate::counters::VifDrop;
use crate::netfront::Sizes;
use crate::netif::{MAX_SLOTS, TxResponse, rsp};
use crate::testing::{ipv4_tcp, packet};
use abi::PAGE;
use nic::{Checksum, Frame, Offload};

#[test]
fn attack_01_producer_overrun_disables_one_vif() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let mut other = Rig::new(sizes());
        rig.raw_tx().set_req_prod(257);
        assert_eq!(
            rig.back.from_guest(64, &mut Vec::new()),
            Err(Fatal::Overrun)
        );
        assert_eq!(rig.back.fatal(), Some(Fatal::Overrun));
        // The interface stays disabled even if the index becomes valid again.
        rig.raw_tx().set_req_prod(1);
        assert_eq!(
            rig.back.from_guest(64, &mut Vec::new()),
            Err(Fatal::Overrun)
        );
        assert!(!rig.back.has_work());
        let source = TestMemory::new(1);
        let frames = [frame_at(&source, 0, &packet(60, 1), 60)];
        let report = rig.back.to_guest(&frames, &[0]);
        assert_eq!(
            (report.delivered, report.drops.get(VifDrop::Disabled)),
            (0, 1)
        );
        rig.back.publish();
        assert_eq!(rig.raw_rx().rsp_prod(), 0);
        assert!(other.send(&packet(60, 1), Offload::default()));
        assert_eq!(other.take_from_guest(64).len(), 1);
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
        let source = TestMemory::new(1);
        let frames = [frame_at(&source, 0, &packet(60, 1), 60)];
        let report = rig.back.to_guest(&frames, &[0, 0]);
        assert_eq!(report.drops.get(VifDrop::Disabled), 2);
        assert_eq!(rig.back.fatal(), Some(Fatal::Overrun));
    });
}

/// XSA-405: each request gets exactly one response, whether or not it was valid.
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
            rig.take_from_guest(64);
            let answered = raw.rsp_prod();
            assert!(answered <= raw.req_prod());
            assert!(
                raw.req_prod() - answered <= 8,
                "only an incomplete packet waits"
            );
        }
        raw.send(&[
            tx_part(&rig, 0, 60, 0),
            tx_part(&rig, 0, 60, 0),
            tx_part(&rig, 0, 60, 0),
        ]);
        rig.take_from_guest(64);
        assert_eq!(raw.rsp_prod(), raw.req_prod());
    });
}

/// XSA-155: the backend uses the copy that it checked, even if the slot changes afterwards.
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
            "the snapshot keeps the checked bytes"
        );
        assert_eq!(frames[0].to_vec().unwrap(), [0; 60]);
        rig.back.from_guest_done();
        assert_eq!(TxResponse::decode(raw.response_at(0)).id, 7);
    });
}

/// XSA-423, XSA-432: a packet with too many slots is rejected and its grants released; an endless
/// packet disables the interface.
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
            assert!(rig.take_from_guest(64).is_empty());
            assert_eq!(raw.rsp_prod(), raw.req_prod());
        }
        assert_eq!(
            rig.back
                .counters()
                .from_guest_drops
                .get(VifDrop::TooManySlots),
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

/// A header split over several slots is complete in the snapshot.
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

/// The backend rejects an invalid posted buffer and uses the others.
#[test]
fn attack_06_offsets_of_posted_buffers() {
    over_each_format(|| {
        for offset in [2049, 4096, u16::MAX] {
            let mut rig = Rig::new(sizes());
            let raw = rig.raw_rx();
            let request = RxRequest::decode(raw.request_at(0));
            raw.request(0, RxRequest { offset, ..request }.encode());
            let source = TestMemory::new(1);
            let frames = [
                frame_at(&source, 0, &packet(60, 1), 60),
                frame_at(&source, 0, &packet(61, 1), 61),
            ];
            let report = rig.back.to_guest(&frames, &[0, 1]);
            assert_eq!(
                (report.delivered, report.drops.get(VifDrop::BadRequest)),
                (1, 1)
            );
            // Nothing is written for a rejected frame.
            assert_eq!(rig.back.grants_mut().writes, 1);
            rig.back.publish();
            assert_eq!(RxResponse::decode(raw.response_at(0)).status, rsp::ERROR);
        }
    });
}

/// Rejects a packet whose sizes add up to more than 16 bits.
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
        assert!(rig.take_from_guest(64).is_empty());
        assert_eq!(
            rig.back
                .counters()
                .from_guest_drops
                .get(VifDrop::SizeMismatch),
            1
        );
        // 30 × u16::MAX wraps 16 bits and far exceeds any page.
        let words: Vec<_> = (0..30)
            .map(|n| tx_part(&rig, n, u16::MAX, if n < 29 { txf::MORE_DATA } else { 0 }))
            .collect();
        raw.send(&words);
        assert!(rig.take_from_guest(64).is_empty());
        assert_eq!(rig.back.counters().from_guest_drops.total(), 2);
        assert_eq!(raw.rsp_prod(), 50);
        // One part is a byte too long for its page, the other just fits.
        let at_the_end = |id, size| {
            let part = TxRequest::decode(tx_part(&rig, id, size, 0));
            let offset = PAGE as u16 - 60;
            TxRequest { offset, ..part }.encode()
        };
        let words = [at_the_end(30, 61), at_the_end(31, 60)];
        raw.send(&words);
        assert_eq!(rig.take_from_guest(64).len(), 1);
        let drops = &rig.back.counters().from_guest_drops;
        assert_eq!((drops.get(VifDrop::CrossesPage), drops.total()), (2, 3));
    });
}

/// XSA-90, XSA-374, XSA-424: errors on the error path. Makes each copy of a batch fail once.
#[test]
fn attack_08_faults_are_injected_everywhere() {
    over_each_format(|| {
        let source = TestMemory::new(8);
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
            // All buffers were returned: the whole pool is posted again.
            assert_eq!(rig.raw_rx().req_prod(), 128 + 6);
        }
    });
}

/// XSA-392: a guest that stops consuming costs the backend bounded time and no memory.
#[test]
fn attack_09_guest_stops_consuming() {
    over_each_format(|| {
        let mut rig = Rig::new(Sizes {
            rx_pages: 4,
            ..sizes()
        });
        let source = TestMemory::new(1);
        let frames: Vec<_> = (0..64)
            .map(|_| frame_at(&source, 0, &packet(60, 1), 60))
            .collect();
        let mut delivered = 0;
        for _ in 0..100 {
            delivered += rig.deliver_to_guest(&frames);
        }
        assert_eq!(delivered, 8);
        let drops = rig.back.counters().to_guest_drops;
        assert_eq!(drops.get(VifDrop::NoRequest), 64 * 100 - 8);
    });
}

/// Errors on the error path, for packets from the guest: malformed packets whose grants fail one by
/// one, in every order. Each request gets one response, and no access stays open.
#[test]
fn attack_08_malformed_packets_whose_grants_fail() {
    over_each_format(|| {
        let kinds = [
            (60, 0),
            (0, 0),
            (5000, txf::MORE_DATA),
            (60, txf::MORE_DATA),
            (14, txf::EXTRA_INFO),
            (1000, txf::CSUM_BLANK),
        ];
        for number in 0..kinds.len().pow(4) {
            let mut rig = Rig::new(sizes());
            let raw = rig.raw_tx();
            let digit = |place: u32| number / kinds.len().pow(place) % kinds.len();
            let bad_gref = number % 5;
            let words: Vec<_> = (0..4)
                .map(|n| {
                    let (size, flags) = kinds[digit(n)];
                    let gref = match bad_gref == n as usize {
                        true => 0,
                        false => tx_gref(&rig, n),
                    };
                    let (offset, id) = (0, n as u16);
                    TxRequest {
                        gref,
                        offset,
                        flags,
                        id,
                        size,
                    }
                    .encode()
                })
                .collect();
            raw.send(&words);
            // Terminates every incomplete packet.
            raw.send(&[tx_part(&rig, 9, 60, 0), tx_part(&rig, 9, 60, 0)]);
            rig.take_from_guest(64);
            rig.back.publish();
            assert!(!rig.back.grants_mut().reading, "{number}");
            let waits = raw.req_prod() - raw.rsp_prod();
            assert!(waits <= 1, "{number}: {waits} without an answer");
            assert_eq!(rig.back.fatal(), None, "{number}");
        }
    });
}

/// XSA-332: a guest keeps ringing the doorbell without sending requests. Each ring costs the
/// backend one read of the index: it finds no work, and still sees the next request.
#[test]
fn attack_10_events_without_requests() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let event = rig.event_page();
        for round in 0..1000 {
            for (word, value) in [(0, u32::MAX), (64, round), (128, 1), (192, round % 3)] {
                event.store_u32(word, value).unwrap();
            }
            rig.raw_tx().set_rsp_event(round.wrapping_mul(0x9e37_79b9));
            rig.raw_rx().set_rsp_event(round);
            assert!(!rig.back.has_work() && !rig.back.is_dirty());
            assert!(!rig.back.prepare_sleep(), "it may sleep");
            rig.back.disarm();
            assert_eq!(rig.back.from_guest(64, &mut Vec::new()), Ok(0));
        }
        assert!(rig.send(&packet(60, 1), Offload::default()));
        assert!(rig.back.has_work());
        assert_eq!(rig.take_from_guest(64).len(), 1);
    });
}

/// XSA-391: a guest that keeps re-arming notifications gets at most one per turn, and only for
/// published responses.
#[test]
fn attack_11_guest_rearms_notifications_always() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let event = rig.event_page();
        let source = TestMemory::new(1);
        let frames: Vec<_> = (0..4)
            .map(|_| frame_at(&source, 0, &packet(60, 1), 60))
            .collect();
        let wants_all = |rig: &Rig, ahead| {
            event.store_u32(192, 1).unwrap();
            let raw = rig.raw_rx();
            raw.set_rsp_event(raw.rsp_prod().wrapping_add(ahead));
            let raw = rig.raw_tx();
            raw.set_rsp_event(raw.rsp_prod().wrapping_add(ahead));
        };
        for turn in 1..=16 {
            wants_all(&rig, 1);
            assert_eq!(rig.deliver_to_guest(&frames), 4);
            assert!(rig.send(&packet(60, 1), Offload::default()));
            rig.take_from_guest(64);
            rig.back.publish();
            shmem::sync::fence(std::sync::atomic::Ordering::SeqCst);
            let rings = (0..100).filter(|_| {
                let rings = rig.back.notify().is_some();
                wants_all(&rig, 0);
                rings
            });
            assert_eq!(rings.count(), 1, "turn {turn}");
            assert_eq!(rig.back.counters().notifications, turn);
        }
    });
}

/// CVE-2026-46323: the backend holds every grant of a packet and answers none of its requests until
/// the packet is done.
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
        // `from_guest_done` was not called: the next batch ends the previous one.
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
