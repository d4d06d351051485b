//! The fast path, compared and mixed with the slow path.

use crate::netif::{Features, RxRequest, RxResponse, TxRequest, TxResponse, rsp, txf};
use crate::testing::{Rig, TestMemory, over_each_format, packet, sizes};
use crate::{Fatal, VifDrop};
use abi::PAGE;
use nic::{Offload, SmallBatch, SmallFrame};

/// Returns a batch of these packets, each in a separate page.
fn batch(memory: &TestMemory, packets: &[Vec<u8>]) -> SmallBatch {
    let mut batch = SmallBatch::default();
    for (number, bytes) in packets.iter().enumerate() {
        let span = memory.area().at(number * PAGE, bytes.len());
        let span = span.expect("it fits");
        span.write(bytes).expect("own memory");
        batch.push(span).expect("own memory");
    }
    batch
}

/// Takes small frames; returns requests, their bytes, and whether more are waiting.
fn take(rig: &mut Rig, out: &mut SmallBatch) -> (usize, u64, bool) {
    let taken = rig
        .back
        .small_frames_from_guest(64, out)
        .expect("a live interface");
    (taken.requests, taken.bytes, taken.more)
}

fn bytes(small_frame: &SmallFrame) -> Vec<u8> {
    small_frame.to_frame().unwrap().to_vec().unwrap()
}

/// Returns the guest's view of the ring to the guest: every response and the bytes that the
/// response names.
fn received(rig: &Rig) -> Vec<(RxResponse, Vec<u8>)> {
    let decoded = |words| {
        let response = RxResponse::decode(words);
        let page = rig.layout.rx_pool().start + u32::from(response.id) / 2;
        let page = rig.memory().area().page(page).unwrap();
        let mut bytes = vec![0; usize::try_from(response.status).unwrap_or(0)];
        let at = page.skip(usize::from(response.offset));
        at.read(&mut bytes).unwrap();
        (response, bytes)
    };
    rig.raw_rx().responses(0).into_iter().map(decoded).collect()
}

#[test]
fn netif_30_only_cpu_payload_is_prefetched() {
    let source = TestMemory::new(2);
    let small_frames = batch(&source, &[packet(1514, 1), packet(60, 2)]);
    for (features, prefetches) in [
        (Features::ALL, 0),
        (Features::ALL.with(Features::CPU_PAYLOAD), 2),
    ] {
        let mut rig = Rig::with(sizes(), features, Features::ALL);
        let report = rig.back.small_frames_to_guest(&small_frames, &[0, 1], 0);
        assert_eq!(report.delivered, 2);
        assert_eq!(rig.back.grants_mut().prefetches, prefetches);
    }
}

#[test]
fn both_paths_deliver_the_same_frames() {
    over_each_format(|| {
        let source = TestMemory::new(64);
        let (mut short, mut other) = (Rig::new(sizes()), Rig::new(sizes()));
        let lens = [14, 15, 60, 63, 64, 65, 96, 97, 128, 129, 1514, 2047, 2048];
        let packets: Vec<_> = lens.iter().map(|len| packet(*len, *len as u64)).collect();
        let small_frames = batch(&source, &packets);
        let frames: Vec<_> = small_frames.iter().map(|s| s.to_frame().unwrap()).collect();
        let pick: Vec<u32> = (0..lens.len() as u32).rev().collect();
        for _ in 0..60 {
            let report = short.back.small_frames_to_guest(&small_frames, &pick, 0);
            assert_eq!(report, other.back.to_guest(&frames, &pick));
            short.back.publish();
            other.back.publish();
            assert_eq!(received(&short), received(&other));
            assert_eq!(short.back.counters(), other.back.counters());
            // Both guests consume their packets, so that the rings wrap and finally run out of
            // buffers.
            if short.back.counters().to_guest < 300 {
                assert_eq!(short.receive(64), other.receive(64));
            }
        }
        let drops = short.back.counters().to_guest_drops;
        assert!(
            drops.get(VifDrop::NoRequest) > 0 && drops.total() == drops.get(VifDrop::NoRequest)
        );
    });
}

#[test]
fn other_packets_wait_for_the_slow_path() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        for len in [60, 64, 9000, 61] {
            assert!(rig.send(&packet(len, len as u64), Offload::default()));
        }
        let mut small_frames = SmallBatch::default();
        assert_eq!(take(&mut rig, &mut small_frames), (2, 124, true));
        let found: Vec<_> = small_frames.iter().map(bytes).collect();
        assert_eq!(found, [packet(60, 60), packet(64, 64)]);
        rig.back.from_guest_done();
        assert_eq!(take(&mut rig, &mut small_frames), (0, 0, true));
        assert!(small_frames.is_empty());
        assert!(rig.back.has_work(), "the packet is still in the ring");
        assert_eq!(rig.take_from_guest(1), [packet(9000, 9000)]);
        assert_eq!(take(&mut rig, &mut small_frames), (1, 61, false));
        rig.back.from_guest_done();
        assert_eq!(rig.front.reap(), Ok(3 + 9000_u32.div_ceil(4096)));
        assert_eq!(rig.back.counters().from_guest, 4);
    });
}

#[test]
fn invalid_requests_are_left_to_the_slow_path() {
    over_each_format(|| {
        let good = TxRequest {
            gref: 0,
            offset: 0,
            flags: 0,
            id: 7,
            size: 60,
        };
        for bad in [
            TxRequest { size: 13, ..good },
            TxRequest { size: 0, ..good },
            TxRequest {
                offset: 4090,
                ..good
            },
            TxRequest {
                flags: txf::CSUM_BLANK,
                ..good
            },
            TxRequest {
                flags: txf::DATA_VALIDATED,
                ..good
            },
            TxRequest {
                flags: txf::EXTRA_INFO,
                ..good
            },
            TxRequest {
                flags: 0x8000,
                ..good
            },
        ] {
            let mut rig = Rig::new(sizes());
            rig.raw_tx().send(&[bad.encode()]);
            let mut small_frames = SmallBatch::default();
            assert_eq!(take(&mut rig, &mut small_frames), (0, 0, true));
            rig.back.from_guest_done();
            assert_eq!(rig.raw_tx().rsp_prod(), 0, "{bad:?}");
        }
    });
}

#[test]
fn only_ungranted_requests_get_errors() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let (tx, rx) = (rig.raw_tx(), rig.raw_rx());
        for len in [60, 61, 62] {
            assert!(rig.send(&packet(len, 1), Offload::default()));
        }
        let [first, ..] = tx.request_at(0);
        rig.table_span().store_u64(first as usize * 8, 0).unwrap();
        let mut small_frames = SmallBatch::default();
        assert_eq!(take(&mut rig, &mut small_frames), (3, 62, false));
        assert_eq!(
            small_frames.iter().map(SmallFrame::len).collect::<Vec<_>>(),
            [62]
        );
        rig.back.from_guest_done();
        let status = |words| TxResponse::decode(words).status;
        let found: Vec<_> = tx.responses(0).into_iter().map(status).collect();
        // The first page holds two buffers.
        assert_eq!(found, [rsp::ERROR, rsp::ERROR, rsp::OKAY]);
        assert_eq!(rig.back.counters().from_guest_drops.get(VifDrop::Grant), 2);

        // To the guest: a revoked buffer, and an invalid one.
        let second = RxRequest::decode(rx.request_at(1));
        rx.request(
            1,
            RxRequest {
                offset: 3000,
                ..second
            }
            .encode(),
        );
        let third = RxRequest::decode(rx.request_at(2));
        rig.table_span()
            .store_u64(third.gref as usize * 8, 0)
            .unwrap();
        let gone = [RxRequest::decode(rx.request_at(3)), third].map(|request| request.gref);
        let lost = if gone[0] == gone[1] { 2 } else { 1 };
        let source = TestMemory::new(5);
        let small_frames = batch(&source, &vec![packet(60, 1); 5]);
        let report = rig
            .back
            .small_frames_to_guest(&small_frames, &[0, 1, 2, 3, 4], 0);
        rig.back.publish();
        assert_eq!(report.drops.get(VifDrop::BadRequest), 1);
        assert_eq!(report.drops.get(VifDrop::Grant), lost);
        assert_eq!(u64::from(report.delivered), 4 - lost);
        let found = rx.responses(0).into_iter().map(RxResponse::decode);
        let found: Vec<_> = found.map(|response| response.status).collect();
        assert_eq!(
            (found[0], found[1], found[2], found[4]),
            (60, rsp::ERROR, rsp::ERROR, 60)
        );
    });
}

#[test]
fn an_inconsistent_ring_disables_the_interface() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        rig.raw_tx().set_req_prod(257);
        let mut small_frames = batch(&TestMemory::new(1), &[packet(60, 1)]);
        assert_eq!(
            rig.back.small_frames_from_guest(64, &mut small_frames),
            Err(Fatal::Overrun)
        );
        assert!(small_frames.is_empty());
        assert_eq!(rig.back.longest_small_frame(), 0);

        let mut rig = Rig::new(sizes());
        rig.raw_rx().set_req_prod(1000);
        let source = TestMemory::new(200);
        let small_frames = batch(&source, &vec![packet(60, 1); 200]);
        let pick: Vec<u32> = (0..200).collect();
        let report = rig.back.small_frames_to_guest(&small_frames, &pick, 0);
        assert_eq!(report.drops.get(VifDrop::Disabled), 200);
        assert_eq!(rig.back.fatal(), Some(Fatal::Overrun));
        assert_eq!(rig.back.counters().to_guest, 0);
    });
}
