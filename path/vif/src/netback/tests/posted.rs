//! Buffers that a device writes itself.

use super::*;
use crate::Drop;
use crate::netback::ToGuest;
use crate::netif::{RxRequest, RxResponse, rsp};
use nic::{Buffer, BufferId, Checksum, Frame, Piece};

const FRAME: usize = 1519;

/// What a device does: writes a frame to a buffer that was posted.
fn received(buffer: Buffer, bytes: &[u8]) -> Frame {
    buffer.span.take(bytes.len()).write(bytes).unwrap();
    let piece = Piece {
        span: buffer.span,
        buffer: buffer.id,
    };
    Frame::new(piece, bytes.len()).unwrap()
}

fn post(rig: &mut Rig) -> Buffer {
    rig.back.post(FRAME).unwrap()
}

fn answered(rig: &mut Rig) -> ToGuest {
    let report = rig.back.post_end();
    assert!(!rig.back.grants_mut().posting);
    rig.back.publish();
    report
}

#[test]
fn a_frame_lies_in_the_guest_s_page_and_was_not_copied() {
    let mut rig = Rig::new(sizes());
    for number in 0..100u64 {
        let bytes = packet(1000 + number as usize, number);
        let buffer = post(&mut rig);
        let frame = received(buffer, &bytes);
        rig.back.accept(buffer.id, &frame);
        assert_eq!(answered(&mut rig).delivered, 1);
        assert_eq!(rig.receive(64), [bytes]);
    }
    assert_eq!(rig.back.grants_mut().writes, 0);
    assert_eq!(rig.back.counters().to_guest, 100);
}

#[test]
fn what_was_not_used_stays_at_the_head_of_the_ring() {
    let mut rig = Rig::new(sizes());
    let before = rig.back.posted(u32::MAX);
    for _ in 0..10 {
        let buffer = post(&mut rig);
        rig.back.put_back(buffer.id, false);
        assert_eq!(post(&mut rig).id, buffer.id, "it goes out again");
        rig.back.put_back(buffer.id, false);
        assert_eq!(answered(&mut rig), ToGuest::default());
    }
    assert_eq!(rig.back.posted(u32::MAX), before);
    let source = Memory::new(1);
    let bytes = packet(60, 1);
    assert_eq!(rig.give(&[frame_at(&source, 0, &bytes, 60)]), 1);
    assert_eq!(rig.receive(64), [bytes]);
}

#[test]
fn responses_keep_the_order_of_requests() {
    let mut rig = Rig::new(sizes());
    let buffers: Vec<Buffer> = (0..5).map(|_| post(&mut rig)).collect();
    let frames: Vec<Frame> = (0..5)
        .map(|n| received(buffers[n], &packet(100 + n, n as u64)))
        .collect();
    rig.back.accept(buffers[3].id, &frames[3]);
    rig.back.refuse(buffers[1].id);
    rig.back.put_back(buffers[0].id, true);
    rig.back.accept(buffers[2].id, &frames[2]);
    rig.back.put_back(buffers[4].id, false);
    let report = answered(&mut rig);
    assert_eq!((report.delivered, report.drops.get(Drop::Fault)), (2, 1));
    let raw = rig.raw_rx();
    let responses = raw.responses(0).into_iter().map(RxResponse::decode);
    let status: Vec<i16> = responses.map(|response| response.status).collect();
    assert_eq!(status, [rsp::ERROR, rsp::ERROR, 102, 103]);
    assert_eq!(rig.receive(64), [packet(102, 2), packet(103, 3)]);
}

#[test]
fn requests_that_post_nonsense_are_answered_when_their_turn_comes() {
    let mut rig = Rig::new(sizes());
    let raw = rig.raw_rx();
    let good = raw.slot(1);
    let nonsense = [
        // The buffer crosses its page; no such grant; a grant of the ring's own page is one.
        RxRequest {
            offset: 3000,
            ..RxRequest::decode(good)
        },
        RxRequest {
            gref: 0xdead,
            ..RxRequest::decode(good)
        },
    ];
    for (at, request) in (0u32..).zip(nonsense) {
        raw.request(at, request.encode());
    }
    let buffer = post(&mut rig);
    let bytes = packet(60, 9);
    let frame = received(buffer, &bytes);
    rig.back.accept(buffer.id, &frame);
    let report = answered(&mut rig);
    assert_eq!(report.delivered, 1);
    assert_eq!(report.drops.get(Drop::BadRequest), 1);
    assert_eq!(report.drops.get(Drop::Grant), 1);
    let statuses: Vec<i16> = raw
        .responses(0)
        .into_iter()
        .map(|words| RxResponse::decode(words).status)
        .collect();
    assert_eq!(statuses, [rsp::ERROR, rsp::ERROR, 60]);
}

#[test]
fn a_guest_that_posts_nothing_gets_nothing_and_one_that_overruns_is_ended() {
    let mut rig = Rig::new(crate::netfront::Sizes {
        rx_pages: 1,
        ..sizes()
    });
    for _ in 0..2 {
        let buffer = post(&mut rig);
        let frame = received(buffer, &packet(60, 1));
        rig.back.accept(buffer.id, &frame);
    }
    assert!(rig.back.post(FRAME).is_none());
    assert_eq!(answered(&mut rig).delivered, 2);
    assert!(rig.back.post(FRAME).is_none());
    assert_eq!(answered(&mut rig), ToGuest::default());
    rig.raw_rx().set_req_prod(5000);
    assert!(rig.back.post(FRAME).is_none());
    assert!(rig.back.fatal().is_some());
}

#[test]
fn what_the_guest_does_not_take_is_not_delivered() {
    let mut rig = Rig::with(
        sizes(),
        crate::netif::Features::PLAIN,
        crate::netif::Features::ALL,
    );
    let whole_pages = rig.back.post(4097);
    assert!(whole_pages.is_none(), "no buffer is as large");
    let buffer = post(&mut rig);
    let mut frame = received(buffer, &packet(200, 1));
    frame.offload.checksum = Checksum::Blank {
        start: 34,
        offset: 16,
    };
    rig.back.accept(buffer.id, &frame);
    let report = answered(&mut rig);
    assert_eq!((report.delivered, report.drops.total()), (0, 1));
    // Numbers that are not out mean nothing.
    rig.back.accept(BufferId(7), &frame);
    rig.back.refuse(BufferId::NONE);
    assert_eq!(answered(&mut rig), ToGuest::default());
}
