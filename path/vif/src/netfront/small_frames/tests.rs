//! Valid and invalid responses of a driver domain on the fast path.

use crate::netfront::TX_SMALL_BYTES;
use crate::netif::{Features, RxRequest, RxResponse, rsp, rxf};
use crate::testing::{Rig, TestMemory, back_record, frame_at, over_each_format, packet, sizes};
use crate::{Fatal, VifDrop};
use nic::{BufferId, Buffers, Piece};

/// Acts as the driver domain: answers the next requests with responses that `spoil` may change.
fn answer(rig: &Rig, count: usize, spoil: impl Fn(usize, RxResponse) -> RxResponse) {
    let raw = rig.raw_rx_back();
    for n in 0..count {
        let request = RxRequest::decode(raw.request_at(raw.rsp_prod()));
        let fine = RxResponse {
            id: request.id,
            offset: request.offset,
            flags: 0,
            status: 60,
        };
        raw.answer(&[spoil(n, fine).encode()]);
    }
}

#[test]
fn other_packets_wait_for_the_slow_path() {
    over_each_format(|| {
        for other in [
            |fine| RxResponse {
                status: rsp::ERROR,
                ..fine
            },
            |fine| RxResponse {
                status: rsp::DROPPED,
                ..fine
            },
            |fine| RxResponse { status: 0, ..fine },
            |fine| RxResponse { status: 13, ..fine },
            |fine| RxResponse {
                flags: rxf::DATA_VALIDATED,
                ..fine
            },
            |fine| RxResponse {
                flags: rxf::CSUM_BLANK,
                ..fine
            },
            |fine: RxResponse| RxResponse {
                offset: fine.offset + 2048,
                ..fine
            },
            |fine: RxResponse| RxResponse {
                offset: fine.offset + 1989,
                ..fine
            },
        ] as [fn(RxResponse) -> RxResponse; 8]
        {
            let mut rig = Rig::new(sizes());
            answer(&rig, 3, |n, fine| if n == 1 { other(fine) } else { fine });
            let mut pieces = Vec::new();
            assert_eq!(rig.front.receive_small_frames(64, 2048, &mut pieces), Ok(1));
            assert_eq!(rig.front.receive_small_frames(64, 2048, &mut pieces), Ok(0));
            assert_eq!((pieces.len(), pieces[0].span.len()), (1, 60));
            assert_eq!(rig.front.counters().to_guest_drops.total(), 0);
            let mut frames = Vec::new();
            let taken = rig.front.receive(64, &mut frames);
            assert!(
                matches!(taken, Ok(1 | 2)),
                "the other direction has a response"
            );
            rig.front.receive_done(&mut frames);
            rig.front.small_frames_done(&mut pieces);
            rig.front.publish();
            let posted = rig.raw_rx_back().req_prod();
            let all = rig.layout.sizes().rx_pages * 2;
            assert_eq!(posted, all + 3, "every buffer is posted again, once");
        }
    });
}

#[test]
fn unsolicited_response_is_fatal_after_valid_ones() {
    over_each_format(|| {
        let first = |rig: &Rig| RxRequest::decode(rig.raw_rx_back().request_at(0)).id;
        for (wrong, what) in [(0, "twice"), (1, "another")] {
            let mut rig = Rig::new(sizes());
            let id = first(&rig);
            answer(&rig, 2, |n, fine| RxResponse {
                id: match n {
                    0 => fine.id,
                    _ if wrong == 0 => id,
                    _ => fine.id ^ 2,
                },
                ..fine
            });
            let mut pieces = Vec::new();
            let taken = rig.front.receive_small_frames(64, 2048, &mut pieces);
            assert_eq!(taken, Err(Fatal::ResponseId), "{what}");
            assert_eq!(pieces.len() as u64, rig.front.counters().to_guest);
            assert_eq!(rig.front.fatal(), Some(Fatal::ResponseId));
        }
        let mut rig = Rig::new(sizes());
        rig.raw_rx_back().set_rsp_prod(1000);
        let taken = rig.front.receive_small_frames(64, 2048, &mut Vec::new());
        assert_eq!(taken, Err(Fatal::Overrun));
    });
}

#[test]
fn elastic_pools_have_no_fast_path() {
    let elastic = Rig::with_threshold(sizes(), Features::ALL, back_record(Features::ALL), Some(4));
    let flip = back_record(Features::ALL.with(Features::RX_FLIP));
    let flip = Rig::with_record(sizes(), Features::ALL, flip);
    for mut rig in [elastic, flip] {
        let source = TestMemory::new(1);
        let frame = frame_at(&source, 0, &packet(60, 1), 60);
        assert_eq!(rig.deliver_to_guest(&[frame]), 1);
        let mut pieces = Vec::new();
        assert_eq!(rig.front.receive_small_frames(64, 2048, &mut pieces), Ok(0));
        assert_eq!(rig.receive(64), [packet(60, 1)]);
    }
}

#[test]
fn foreign_frame_is_dropped_and_excess_stays() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let free = rig.front.buffers().available();
        let mut taken = Vec::new();
        rig.front.buffers().take_many(3, &mut taken);
        let piece = |n: usize, len| Piece {
            span: taken[n].span.take(len),
            buffer: taken[n].buffer,
        };
        let elsewhere = TestMemory::new(1).area().at(0, 60).unwrap();
        let mut pieces = vec![
            piece(0, 60),
            piece(0, 60),
            piece(1, 13),
            Piece {
                span: elsewhere,
                ..piece(2, 60)
            },
            Piece {
                buffer: BufferId::NONE,
                ..piece(2, 60)
            },
            Piece {
                buffer: BufferId(1 << 20),
                ..piece(2, 60)
            },
        ];
        let report = rig.front.transmit_small_frames(&mut pieces).unwrap();
        assert_eq!((report.sent, report.dropped, pieces.len()), (1, 5, 0));
        assert_eq!(
            rig.front.counters().from_guest_drops.get(VifDrop::NoBuffer),
            5
        );
        rig.front.publish();
        assert_eq!(rig.take_from_guest(64).len(), 1);
        assert_eq!(rig.front.reap(), Ok(1));
        assert_eq!(rig.front.buffers().available(), free);

        let mut sent = 0;
        let slots = crate::ring::slots(0);
        let mut rig = Rig::new(crate::netfront::Sizes {
            tx_small_pages: 200,
            ..sizes()
        });
        let mut pieces = Vec::new();
        rig.front.buffers().take_many(usize::MAX, &mut pieces);
        assert_eq!(pieces.len(), 400);
        pieces
            .iter_mut()
            .for_each(|piece| piece.span = piece.span.take(TX_SMALL_BYTES));
        while !pieces.is_empty() {
            sent += rig.front.transmit_small_frames(&mut pieces).unwrap().sent;
            assert_eq!(pieces.len() as u32, 400 - sent);
            assert!(sent == slots || pieces.is_empty());
            rig.front.publish();
            for _ in 0..4 {
                rig.take_from_guest(64);
            }
            rig.front.reap().unwrap();
        }
        assert_eq!((sent, rig.front.buffers().available()), (400, 400));
    });
}
