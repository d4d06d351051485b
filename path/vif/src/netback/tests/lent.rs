//! Buffers that a device has from turn to turn.

use super::*;
use crate::netback::{Loan, Returned, ToGuest};
use crate::netif::{ExtraInfo, Features, RxRequest, RxResponse, rsp};
use crate::testing::ipv4_tcp;
use crate::{Drop, Fatal};
use nic::{BufferId, Checksum, Frame, Gso, GsoKind, Piece};

const FRAME: usize = 1519;
/// What a device leaves free in front of a frame.
const HEADROOM: usize = 256;

fn rig() -> Rig {
    let any_order = Features::ALL.with(Features::RX_ANY_ORDER);
    Rig::with(sizes(), any_order, any_order)
}

/// What a device does: writes a frame behind its headroom.
fn came(loan: &Loan, bytes: &[u8]) -> Frame {
    let span = loan.span.skip(HEADROOM).take(bytes.len());
    span.write(bytes).unwrap();
    let buffer = loan.id;
    Frame::new(Piece { span, buffer }, bytes.len()).unwrap()
}

fn lend(rig: &mut Rig, most: usize, leave: usize) -> Vec<Loan> {
    let mut out = Vec::new();
    rig.back.lend(most, leave, &mut out);
    out
}

fn deliver(rig: &mut Rig, frame: &Frame) -> ToGuest {
    let mut report = ToGuest::default();
    rig.back.deliver(frame, &mut report);
    rig.back.publish();
    report
}

#[test]
fn lent_buffers_come_back_in_any_order_and_nothing_is_copied() {
    over_each_format(|| {
        let mut rig = rig();
        assert!(rig.back.can_lend(FRAME));
        let posted = rig.back.posted(u32::MAX) as usize;
        for round in 0..20u64 {
            let mut loans = lend(&mut rig, 32, 0);
            assert_eq!((loans.len(), rig.back.lent()), (32, 32));
            loans.rotate_left(7 * (round as usize % 4));
            loans.swap(3, 30);
            let mut sent = Vec::new();
            for (n, loan) in (0..).zip(&loans) {
                let bytes = packet(60 + 40 * n, round * 100 + n as u64);
                let page = rig.memory().area().page(loan.frame).unwrap();
                let there = page.sub(loan.offset.into(), 2048).unwrap();
                assert_eq!(there.addr(), loan.span.addr(), "the frame that is named");
                let frame = came(loan, &bytes);
                assert_eq!(deliver(&mut rig, &frame).delivered, 1);
                sent.push(bytes);
            }
            assert_eq!(rig.receive(64), sent);
        }
        assert_eq!((rig.back.lent(), rig.back.grants_mut().held), (0, 0));
        assert_eq!(rig.back.grants_mut().writes, 0);
        assert_eq!(rig.back.posted(u32::MAX) as usize, posted, "all are back");
    });
}

#[test]
fn other_frames_pass_by_what_a_device_has() {
    over_each_format(|| {
        let mut rig = rig();
        let posted = rig.back.posted(u32::MAX) as usize;
        let loans = lend(&mut rig, usize::MAX / 2, 8);
        assert_eq!(loans.len(), posted - 8, "some stay for them");
        let source = Memory::new(2);
        let small = packet(60, 1);
        let large = ipv4_tcp(5000, 3);
        let mut merged = frame_at(&source, 0, &large, large.len());
        merged.offload = Offload {
            checksum: Checksum::Blank {
                start: 34,
                offset: 16,
            },
            gso: Some(Gso {
                kind: GsoKind::Tcp4,
                size: 1448,
            }),
        };
        assert_eq!(rig.back.slots_for(&merged), 4);
        let small_frame = frame_at(&source, 4096 + 2048, &small, 60);
        let second = RxRequest::decode(rig.raw_rx().request_at(posted as u32 - 7));
        assert_eq!(rig.give(&[merged, small_frame]), 2);
        // The extra info says whose place it takes, so nothing has to be where it was posted.
        let [one, two] = rig.raw_rx().response_at(1);
        assert_eq!(ExtraInfo::decode(one, two).gso.place, second.id);
        assert_eq!(rig.receive(64), [large, small]);
        let late = packet(700, 9);
        let frame = came(&loans[5], &late);
        assert_eq!(deliver(&mut rig, &frame).delivered, 1);
        assert_eq!(rig.receive(64), [late]);
    });
}

#[test]
fn buffers_without_a_frame_are_answered_and_taken_up_again() {
    let mut rig = rig();
    let loans = lend(&mut rig, 3, 0);
    rig.back.give_back(loans[1].id, Returned::Unused);
    rig.back.give_back(loans[0].id, Returned::Failed);
    // Once is enough, and what was never lent is not answered.
    for id in [loans[0].id, BufferId(77), BufferId::NONE] {
        rig.back.give_back(id, Returned::Failed);
    }
    rig.back.publish();
    let status = |n| RxResponse::decode(rig.raw_rx().response_at(n)).status;
    assert_eq!([status(0), status(1)], [rsp::DROPPED, rsp::ERROR]);
    assert_eq!((rig.back.lent(), rig.back.grants_mut().held), (1, 1));
    assert!(rig.receive(64).is_empty());
    let drops = rig.front.counters().to_guest_drops;
    assert_eq!(drops.get(Drop::PeerError), 1);
}

#[test]
fn what_does_not_lie_in_its_buffer_is_an_error() {
    let mut rig = rig();
    let loans = lend(&mut rig, 4, 0);
    let inside = came(&loans[0], &packet(100, 1));
    let elsewhere = Frame::new(
        Piece {
            buffer: loans[0].id,
            ..came(&loans[1], &packet(100, 1)).pieces[0]
        },
        100,
    );
    let report = deliver(&mut rig, &elsewhere.unwrap());
    assert_eq!(report.drops.get(Drop::CrossesPage), 1);
    // It is not lent any more.
    assert_eq!(deliver(&mut rig, &inside), ToGuest::default());
    let short = came(&loans[2], &packet(13, 1));
    assert_eq!(deliver(&mut rig, &short).drops.get(Drop::TooShort), 1);
}

/// Frames merged from buffers that do not lie side by side: the segment size takes the place of a
/// request that the device does not have.
#[test]
fn a_merged_frame_takes_one_request_more() {
    over_each_format(|| {
        let mut rig = rig();
        let posted = rig.back.posted(u32::MAX) as usize;
        let loans = lend(&mut rig, posted - 2, 2);
        let bytes = ipv4_tcp(3 * 1000, 5);
        let (first, rest) = bytes.split_at(54 + 1000);
        let mut frame = came(&loans[9], first);
        for (n, part) in [3, 7].into_iter().zip(rest.chunks(1000)) {
            frame.push(came(&loans[n], part).pieces[0]);
        }
        frame.offload = Offload {
            checksum: Checksum::Blank {
                start: 34,
                offset: 16,
            },
            gso: Some(Gso {
                kind: GsoKind::Tcp4,
                size: 1000,
            }),
        };
        frame.header_mut()[20] = 0;
        let sent = frame.to_vec().unwrap();
        assert_eq!(deliver(&mut rig, &frame).delivered, 1);
        assert_eq!(rig.back.posted(u32::MAX), 1);
        assert_eq!(rig.receive(64), [sent]);
        assert_eq!(rig.back.lent(), posted - 5);
        // Without one it cannot be said.
        let source = Memory::new(1);
        while rig.back.posted(1) > 0 {
            let small = packet(60, 1);
            assert_eq!(rig.give(&[frame_at(&source, 0, &small, 60)]), 1);
        }
        let mut again = came(&loans[20], first);
        again.push(came(&loans[21], &rest[..1000]).pieces[0]);
        again.offload = frame.offload;
        let report = deliver(&mut rig, &again);
        assert_eq!(report.drops.get(Drop::NoRequest), 2);
    });
}

#[test]
fn requests_that_are_no_buffers_are_answered_at_once() {
    over_each_format(|| {
        let mut rig = rig();
        let all = lend(&mut rig, 200, 0).len();
        let page = RxRequest::decode(rig.raw_rx().request_at(0)).gref;
        let readonly = rig.layout.tx_small().start + 1;
        let bad = [(2049, page), (0, readonly), (0, u32::MAX), (u16::MAX, page)];
        let requests = bad.map(|(offset, gref)| {
            RxRequest {
                id: 7,
                offset,
                gref,
            }
            .encode()
        });
        rig.raw_rx().send(&requests);
        assert!(lend(&mut rig, 200, 0).is_empty());
        assert_eq!(rig.back.lent(), all, "and nothing is held for them");
        assert_eq!(rig.back.grants_mut().held, all as u64);
        rig.back.publish();
        for n in 0..4 {
            let response = RxResponse::decode(rig.raw_rx().response_at(n));
            assert_eq!((response.id, response.status), (7, rsp::ERROR));
        }
        let drops = rig.back.counters().to_guest_drops;
        assert_eq!(
            (drops.get(Drop::BadRequest), drops.get(Drop::Grant)),
            (2, 2)
        );
    });
}

#[test]
fn the_end_of_an_interface_lets_go_of_what_is_lent() {
    let mut rig = rig();
    assert_eq!(lend(&mut rig, 40, 0).len(), 40);
    assert_eq!(rig.back.into_grants().held, 0);
}

#[test]
fn where_responses_keep_an_order_nothing_is_lent() {
    let mut rig = Rig::new(sizes());
    assert!(!rig.back.can_lend(FRAME));
    assert!(lend(&mut rig, 10, 0).is_empty());
}

/// A driver domain that answers by names it makes up.
#[test]
fn netif_27_a_response_names_a_buffer_that_is_posted_once() {
    over_each_format(|| {
        let response = |id, flags| {
            RxResponse {
                id,
                offset: 0,
                flags,
                status: 100,
            }
            .encode()
        };
        let more = crate::netif::rxf::MORE_DATA;
        let info = crate::netif::rxf::EXTRA_INFO;
        let extra = |id| {
            ExtraInfo::of(Gso {
                kind: GsoKind::Tcp4,
                size: 100,
            })
            .in_place_of(id)
            .encode()
        };
        for wrong in [
            vec![response(128, 0)],
            vec![response(u16::MAX, 0)],
            vec![response(9, 0), response(9, 0)],
            vec![response(9, more), response(9, 0)],
            vec![response(9, info), extra(9)],
            vec![response(9, info), extra(500)],
        ] {
            let mut rig = rig();
            rig.raw_rx_back().answer(&wrong);
            let received = rig.front.receive(64, &mut Vec::new());
            assert_eq!(received, Err(Fatal::ResponseId), "{wrong:?}");
        }
        let mut rig = rig();
        rig.raw_rx_back().answer(&[response(78, 0), response(4, 0)]);
        let received = rig.front.receive(64, &mut Vec::new());
        assert_eq!(received, Ok(2));
    });
}
