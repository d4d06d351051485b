//! Buffers that a device keeps across turns.

use super::*;
use crate::netback::{DeliveryReport, DeviceBuffer, Returned};
use crate::netif::{BackRecord, ExtraInfo, Features, MAX_SLOTS, RxRequest, RxResponse, rsp};
use crate::testing::{back_record, ipv4_tcp};
use crate::{Fatal, VifDrop};
use nic::{Buffer, BufferId, Checksum, Frame, Gso, GsoKind, Offload, Piece};

const FRAME: usize = 1519;
/// Headroom that a device leaves before a frame.
const HEADROOM: usize = 256;

fn rig() -> Rig {
    let any_order = Features::ALL.with(Features::RX_ANY_ORDER);
    Rig::with(sizes(), any_order, any_order)
}

/// Acts as the device: writes a frame behind its headroom.
fn arrived(loan: &DeviceBuffer, bytes: &[u8]) -> Frame {
    let span = loan.span.skip(HEADROOM).take(bytes.len());
    span.write(bytes).unwrap();
    let buffer = loan.id;
    Frame::new(Piece { span, buffer }, bytes.len()).unwrap()
}

fn post_to_device(rig: &mut Rig, most: usize, leave: usize) -> Vec<DeviceBuffer> {
    let mut out = Vec::new();
    rig.back.post_to_device(most, leave, &mut out);
    out
}

fn deliver(rig: &mut Rig, frame: &Frame) -> DeliveryReport {
    let mut report = DeliveryReport::default();
    rig.back.deliver(frame, &mut report);
    rig.back.publish();
    report
}

#[test]
fn posted_buffers_return_in_any_order_uncopied() {
    over_each_format(|| {
        let mut rig = rig();
        assert!(rig.back.can_post_to_device(FRAME));
        let posted = rig.back.posted(u32::MAX) as usize;
        for round in 0..20u64 {
            let mut loans = post_to_device(&mut rig, 32, 0);
            assert_eq!((loans.len(), rig.back.outstanding()), (32, 32));
            loans.rotate_left(7 * (round as usize % 4));
            loans.swap(3, 30);
            let mut sent = Vec::new();
            for (n, loan) in (0..).zip(&loans) {
                let bytes = packet(60 + 40 * n, round * 100 + n as u64);
                let page = rig.memory().area().page(loan.frame).unwrap();
                let there = page.sub(loan.offset.into(), 2048).unwrap();
                assert_eq!(
                    there.addr(),
                    loan.span.addr(),
                    "the span lies in the named frame"
                );
                let frame = arrived(loan, &bytes);
                assert_eq!(deliver(&mut rig, &frame).delivered, 1);
                sent.push(bytes);
            }
            assert_eq!(rig.receive(64), sent);
        }
        assert_eq!((rig.back.outstanding(), rig.back.grants_mut().held), (0, 0));
        assert_eq!(rig.back.grants_mut().writes, 0);
        assert_eq!(
            rig.back.posted(u32::MAX) as usize,
            posted,
            "all requests have returned"
        );
    });
}

/// Small frames get the responses of full ones.
#[test]
fn small_frames_are_delivered_like_full_ones() {
    over_each_format(|| {
        let lengths = [14, 60, 64, 1514, 2048];
        let [small, full] = [true, false].map(|is_small| {
            let mut rig = rig();
            let loans = post_to_device(&mut rig, lengths.len(), 0);
            let frames = (0..).zip(&loans).zip(lengths).map(|((n, loan), len)| {
                loan.span.take(len).write(&packet(len, n)).unwrap();
                (loan, len, n % 2 == 1)
            });
            let mut report = DeliveryReport::default();
            if is_small {
                let frames = frames.map(|(loan, len, is_valid)| (loan.id, len, is_valid));
                report = rig.back.deliver_small(frames);
            } else {
                for (loan, len, is_valid) in frames {
                    let (span, buffer) = (loan.span, loan.id);
                    let mut frame = Frame::new(Piece { span, buffer }, len).unwrap();
                    if is_valid {
                        frame.offload.checksum = Checksum::Valid;
                    }
                    rig.back.deliver(&frame, &mut report);
                }
            }
            rig.back.publish();
            assert_eq!((rig.back.outstanding(), rig.back.grants_mut().held), (0, 0));
            let responses = rig.raw_rx().responses(0);
            (report, responses, *rig.back.counters(), rig.receive(64))
        });
        assert_eq!(small, full);
        assert_eq!(small.0.delivered, 5);
    });
}

/// Buffers that a device holds will be filled without the guest, so it need not be notified early.
#[test]
fn lent_buffers_postpone_notifications() {
    let mut rig = rig();
    let _ = rig.back.notify();
    let posted = rig.back.posted(u32::MAX) as usize;
    let loans = post_to_device(&mut rig, posted - 8, 8);
    let half = posted / 2 - 4;
    let (first, second) = loans.split_at(half);
    let mut deliver = |loans: &[DeviceBuffer]| {
        let frames = loans.iter().map(|loan| (loan.id, 60, false));
        assert_eq!(rig.back.deliver_small(frames).delivered, loans.len() as u32);
        rig.back.is_short_of_buffers()
    };
    assert!(!deliver(first), "as many are lent");
    assert!(!deliver(&second[..4]), "and 8 are in the ring");
    assert!(deliver(&second[4..5]));
}

/// Only a hostile device reports these: each is an error, and no buffer counts twice.
#[test]
fn invalid_small_frames_are_errors() {
    let mut rig = rig();
    let loans = post_to_device(&mut rig, 3, 0);
    let id = |n: usize| loans[n].id;
    let frames = [(0, 13), (0, 60), (1, 2049), (2, 60), (2, 60)];
    let frames = frames.map(|(n, len)| (id(n), len, false));
    let report = rig.back.deliver_small(frames.into_iter());
    let drops = [VifDrop::TooShort, VifDrop::CrossesPage].map(|drop| report.drops.get(drop));
    assert_eq!((report.delivered, drops), (1, [1, 1]));
    assert_eq!((rig.back.outstanding(), rig.back.grants_mut().held), (0, 0));
    rig.back.publish();
    let status = |n| RxResponse::decode(rig.raw_rx().response_at(n)).status;
    assert_eq!([0, 1, 2].map(status), [rsp::ERROR, rsp::ERROR, 60]);
}

/// D-44: the guest gets the header that was checked in front of the payload that the device wrote.
#[test]
fn split_header_returns_to_the_guests_buffer() {
    over_each_format(|| {
        let mut rig = rig();
        let loans = post_to_device(&mut rig, 3, 0);
        let sent = [60, 128, 1400].map(|len| packet(len, len as u64));
        for (loan, bytes) in loans.iter().zip(&sent) {
            let (header, rest) = bytes.split_at(bytes.len().min(128));
            loan.span.skip(header.len()).write(rest).unwrap();
            let (id, span) = (loan.id, loan.span);
            let frame = Frame::split(header, Buffer { id, span }, bytes.len()).unwrap();
            assert_eq!(deliver(&mut rig, &frame).delivered, 1);
        }
        assert_eq!(rig.receive(64), sent);
        assert_eq!((rig.back.outstanding(), rig.back.grants_mut().held), (0, 0));
    });
}

#[test]
fn frames_pass_while_a_device_holds_buffers() {
    over_each_format(|| {
        let mut rig = rig();
        let posted = rig.back.posted(u32::MAX) as usize;
        let loans = post_to_device(&mut rig, usize::MAX / 2, 8);
        assert_eq!(loans.len(), posted - 8, "some requests stay in the ring");
        let source = TestMemory::new(2);
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
        assert_eq!(rig.deliver_to_guest(&[merged, small_frame]), 2);
        // The extra info names the slot it replaces, so order does not matter.
        let [one, two] = rig.raw_rx().response_at(1);
        assert_eq!(ExtraInfo::decode(one, two).gso.place, second.id);
        assert_eq!(rig.receive(64), [large, small]);
        let late = packet(700, 9);
        let frame = arrived(&loans[5], &late);
        assert_eq!(deliver(&mut rig, &frame).delivered, 1);
        assert_eq!(rig.receive(64), [late]);
    });
}

#[test]
fn unused_posted_buffers_are_answered_and_reposted() {
    let mut rig = rig();
    let loans = post_to_device(&mut rig, 3, 0);
    rig.back.return_buffer(loans[1].id, Returned::Unused);
    rig.back.return_buffer(loans[0].id, Returned::Failed);
    // The second return, and the return of an id that was never lent, have no effect.
    for id in [loans[0].id, BufferId(77), BufferId::NONE] {
        rig.back.return_buffer(id, Returned::Failed);
    }
    rig.back.publish();
    let status = |n| RxResponse::decode(rig.raw_rx().response_at(n)).status;
    assert_eq!([status(0), status(1)], [rsp::DROPPED, rsp::ERROR]);
    assert_eq!((rig.back.outstanding(), rig.back.grants_mut().held), (1, 1));
    assert!(rig.receive(64).is_empty());
    let drops = rig.front.counters().to_guest_drops;
    assert_eq!(drops.get(VifDrop::PeerError), 1);
}

#[test]
fn part_outside_its_buffer_is_an_error() {
    let mut rig = rig();
    let loans = post_to_device(&mut rig, 4, 0);
    let inside = arrived(&loans[0], &packet(100, 1));
    let elsewhere = Frame::new(
        Piece {
            buffer: loans[0].id,
            ..arrived(&loans[1], &packet(100, 1)).pieces[0]
        },
        100,
    );
    let report = deliver(&mut rig, &elsewhere.unwrap());
    assert_eq!(report.drops.get(VifDrop::CrossesPage), 1);
    // The buffer is no longer lent.
    assert_eq!(deliver(&mut rig, &inside), DeliveryReport::default());
    let short = arrived(&loans[2], &packet(13, 1));
    assert_eq!(deliver(&mut rig, &short).drops.get(VifDrop::TooShort), 1);
}

/// Frames merged from non-adjacent buffers: the segment size occupies the slot of a request that
/// the device does not hold.
#[test]
fn a_merged_frame_takes_one_request_more() {
    over_each_format(|| {
        let mut rig = rig();
        let posted = rig.back.posted(u32::MAX) as usize;
        let loans = post_to_device(&mut rig, posted - 2, 2);
        let bytes = ipv4_tcp(3 * 1000, 5);
        let (first, rest) = bytes.split_at(54 + 1000);
        let mut frame = arrived(&loans[9], first);
        for (n, part) in [3, 7].into_iter().zip(rest.chunks(1000)) {
            frame.push(arrived(&loans[n], part).pieces[0]);
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
        assert_eq!(rig.back.outstanding(), posted - 5);
        // Without a spare request the segment size has no slot.
        let source = TestMemory::new(1);
        while rig.back.posted(1) > 0 {
            let small = packet(60, 1);
            assert_eq!(rig.deliver_to_guest(&[frame_at(&source, 0, &small, 60)]), 1);
        }
        let mut again = arrived(&loans[20], first);
        again.push(arrived(&loans[21], &rest[..1000]).pieces[0]);
        again.offload = frame.offload;
        let report = deliver(&mut rig, &again);
        assert_eq!(report.drops.get(VifDrop::NoRequest), 2);
    });
}

#[test]
fn requests_without_a_buffer_are_answered_immediately() {
    over_each_format(|| {
        let mut rig = rig();
        let all = post_to_device(&mut rig, 200, 0).len();
        let page = RxRequest::decode(rig.raw_rx().request_at(0)).gref;
        let readonly = rig.layout.tx_large().start + 1;
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
        assert!(post_to_device(&mut rig, 200, 0).is_empty());
        assert_eq!(rig.back.outstanding(), all, "no page is held for them");
        assert_eq!(rig.back.grants_mut().held, all as u64);
        rig.back.publish();
        for n in 0..4 {
            let response = RxResponse::decode(rig.raw_rx().response_at(n));
            assert_eq!((response.id, response.status), (7, rsp::ERROR));
        }
        let drops = rig.back.counters().to_guest_drops;
        assert_eq!(
            (drops.get(VifDrop::BadRequest), drops.get(VifDrop::Grant)),
            (2, 2)
        );
    });
}

#[test]
fn closing_releases_device_buffers() {
    let mut rig = rig();
    assert_eq!(post_to_device(&mut rig, 40, 0).len(), 40);
    assert_eq!(rig.back.into_grants().held, 0);
}

/// D-40: a device may merge frames for a guest only if the guest takes any result.
#[test]
fn a_guest_gets_only_complete_merged_frames() {
    let all = Features::ALL.with(Features::RX_ANY_ORDER);
    let takes = |front, slots| {
        let back = BackRecord {
            max_slots: slots,
            ..back_record(all)
        };
        let rig = Rig::with_record(sizes(), front, back);
        rig.back.takes_merged()
    };
    assert!(takes(all, 32));
    // 31 buffers of 2048 bytes hold less than 64 KB.
    assert!(!takes(all, 31));
    for missing in [
        Features::GSO_TCPV4,
        Features::GSO_TCPV6,
        Features::IPV6_CSUM,
        Features::SG,
    ] {
        assert!(!takes(all.without(missing), MAX_SLOTS), "{missing:?}");
    }
    let mut rig = Rig::with(sizes(), all, all);
    let loans = post_to_device(&mut rig, 2, 0);
    let bytes = ipv4_tcp(1400, 1);
    let (head, tail) = bytes.split_at(800);
    let mut frame = arrived(&loans[0], head);
    let rest = arrived(&loans[1], tail);
    frame.push(rest.pieces[0]);
    frame.offload = Offload {
        checksum: Checksum::Blank {
            start: 34,
            offset: 16,
        },
        gso: Some(Gso {
            kind: GsoKind::Tcp4,
            size: 700,
        }),
    };
    let report = deliver(&mut rig, &frame);
    assert_eq!((report.delivered, report.drops.total()), (1, 0));
    assert_eq!(rig.back.outstanding(), 0);
}

#[test]
fn ordered_responses_prevent_zero_copy() {
    let mut rig = Rig::new(sizes());
    assert!(!rig.back.can_post_to_device(FRAME));
    assert!(post_to_device(&mut rig, 10, 0).is_empty());
}

/// NETIF-27: the guest rejects invented ids from a driver domain.
#[test]
fn netif_27_response_names_a_posted_buffer_once() {
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
