//! Buffers that a device writes.

use super::*;
use crate::VifDrop;
use crate::netback::DeliveryReport;
use crate::netif::{RxRequest, RxResponse, rsp};
use nic::frame::SNAPSHOT_MAX;
use nic::{Buffer, BufferId, Checksum, Frame, Piece};

const FRAME: usize = 1519;

/// Acts as the device: writes a frame to a posted buffer.
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

fn answered(rig: &mut Rig) -> DeliveryReport {
    let report = rig.back.post_end();
    assert!(!rig.back.grants_mut().posting);
    rig.back.publish();
    report
}

#[test]
fn accepted_frame_is_not_copied() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        for number in 0..100u64 {
            let bytes = packet(1000 + number as usize, number);
            let buffer = post(&mut rig);
            let frame = received(buffer, &bytes);
            rig.back.accept(&frame);
            assert_eq!(answered(&mut rig).delivered, 1);
            assert_eq!(rig.receive(64), [bytes]);
        }
        assert_eq!(rig.back.grants_mut().writes, 0);
        assert_eq!(rig.back.counters().to_guest, 100);
    });
}

#[test]
fn unused_requests_stay_at_the_ring_head() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let before = rig.back.posted(u32::MAX);
        for _ in 0..10 {
            let buffer = post(&mut rig);
            rig.back.put_back(buffer.id, false);
            assert_eq!(
                post(&mut rig).id,
                buffer.id,
                "the same buffer is posted again"
            );
            rig.back.put_back(buffer.id, false);
            assert_eq!(answered(&mut rig), DeliveryReport::default());
        }
        assert_eq!(rig.back.posted(u32::MAX), before);
        let source = TestMemory::new(1);
        let bytes = packet(60, 1);
        assert_eq!(rig.deliver_to_guest(&[frame_at(&source, 0, &bytes, 60)]), 1);
        assert_eq!(rig.receive(64), [bytes]);
    });
}

#[test]
fn responses_keep_the_order_of_requests() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let buffers: Vec<Buffer> = (0..5).map(|_| post(&mut rig)).collect();
        let frames: Vec<Frame> = (0..5)
            .map(|n| received(buffers[n], &packet(100 + n, n as u64)))
            .collect();
        rig.back.accept(&frames[3]);
        rig.back.refuse(buffers[1].id);
        rig.back.put_back(buffers[0].id, true);
        rig.back.accept(&frames[2]);
        rig.back.put_back(buffers[4].id, false);
        let report = answered(&mut rig);
        assert_eq!((report.delivered, report.drops.get(VifDrop::Fault)), (2, 1));
        let raw = rig.raw_rx();
        let responses = raw.responses(0).into_iter().map(RxResponse::decode);
        let status: Vec<i16> = responses.map(|response| response.status).collect();
        assert_eq!(status, [rsp::ERROR, rsp::ERROR, 102, 103]);
        assert_eq!(rig.receive(64), [packet(102, 2), packet(103, 3)]);
    });
}

/// Acts as a device that splits headers.
fn received_apart(buffer: Buffer, bytes: &[u8]) -> Frame {
    let (header, rest) = bytes.split_at(bytes.len().min(SNAPSHOT_MAX));
    buffer.span.skip(header.len()).write(rest).unwrap();
    Frame::split(header, buffer, bytes.len()).unwrap()
}

/// A split header reaches the guest's page only when the frame is accepted.
#[test]
fn split_headers_reach_the_page_on_accept() {
    let mut rig = Rig::new(sizes());
    let first = |buffer: Buffer| {
        let mut bytes = [0; SNAPSHOT_MAX];
        buffer.span.read(&mut bytes).unwrap();
        bytes
    };
    let lengths = [60, SNAPSHOT_MAX, 700];
    for (number, len) in (0u64..).zip(lengths) {
        let bytes = packet(len, number);
        let [denied, allowed] = [post(&mut rig), post(&mut rig)];
        let before = [denied, allowed].map(first);
        let secret = received_apart(denied, &packet(len, 99));
        let mut frame = received_apart(allowed, &bytes);
        rig.back.refuse(secret.pieces[0].buffer);
        assert_eq!([denied, allowed].map(first), before);
        assert!(rig.back.put_header(&mut frame));
        rig.back.accept(&frame);
        let report = answered(&mut rig);
        assert_eq!((report.delivered, report.bytes), (1, len as u64));
        assert_eq!(rig.receive(64), [bytes]);
        assert_eq!(
            first(denied),
            before[0],
            "the rejected frame's header is never written"
        );
    }
    assert_eq!(rig.back.grants_mut().writes, 0);
}

/// The page was revoked in the meantime, or the frame lies in another buffer.
#[test]
fn unwritable_header_drops_only_its_frame() {
    let mut rig = Rig::new(sizes());
    let [one, other, last] = [post(&mut rig), post(&mut rig), post(&mut rig)];
    let mut misplaced = received_apart(one, &packet(700, 1));
    misplaced.pieces[0].buffer = other.id;
    assert!(!rig.back.put_header(&mut misplaced));
    misplaced.pieces[0].buffer = BufferId(77);
    assert!(!rig.back.put_header(&mut misplaced));
    assert!(!rig.back.put_header(&mut Frame::empty()));
    rig.back.put_back(one.id, true);
    let bytes = packet(700, 2);
    let mut frame = received_apart(last, &bytes);
    assert!(rig.back.put_header(&mut frame));
    rig.back.accept(&frame);
    let report = answered(&mut rig);
    assert_eq!((report.delivered, report.drops.get(VifDrop::Fault)), (1, 2));
    assert_eq!(rig.receive(64), [bytes]);
}

#[test]
fn invalid_requests_are_answered_in_ring_order() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let raw = rig.raw_rx();
        let good = raw.request_at(1);
        let nonsense = [
            // The buffer crosses its page; the grant is unknown; the grant is valid, but for the
            // ring's page.
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
        rig.back.accept(&frame);
        let report = answered(&mut rig);
        assert_eq!(report.delivered, 1);
        assert_eq!(report.drops.get(VifDrop::BadRequest), 1);
        assert_eq!(report.drops.get(VifDrop::Grant), 1);
        let statuses: Vec<i16> = raw
            .responses(0)
            .into_iter()
            .map(|words| RxResponse::decode(words).status)
            .collect();
        assert_eq!(statuses, [rsp::ERROR, rsp::ERROR, 60]);
    });
}

#[test]
fn empty_ring_posts_nothing_and_overrun_is_fatal() {
    over_each_format(|| {
        let mut rig = Rig::new(crate::netfront::Sizes {
            rx_pages: 1,
            ..sizes()
        });
        for _ in 0..2 {
            let buffer = post(&mut rig);
            let frame = received(buffer, &packet(60, 1));
            rig.back.accept(&frame);
        }
        assert!(rig.back.post(FRAME).is_none());
        assert_eq!(answered(&mut rig).delivered, 2);
        assert!(rig.back.post(FRAME).is_none());
        assert_eq!(answered(&mut rig), DeliveryReport::default());
        rig.raw_rx().set_req_prod(5000);
        assert!(rig.back.post(FRAME).is_none());
        assert!(rig.back.fatal().is_some());
    });
}

#[test]
fn unsupported_frames_are_not_delivered() {
    over_each_format(|| {
        let mut rig = Rig::with(
            sizes(),
            crate::netif::Features::PLAIN,
            crate::netif::Features::ALL,
        );
        let whole_pages = rig.back.post(4097);
        assert!(whole_pages.is_none(), "no buffer is that large");
        let buffer = post(&mut rig);
        let mut frame = received(buffer, &packet(200, 1));
        frame.offload.checksum = Checksum::Blank {
            start: 34,
            offset: 16,
        };
        rig.back.accept(&frame);
        let report = answered(&mut rig);
        assert_eq!((report.delivered, report.drops.total()), (0, 1));
        // Ids that the device does not hold have no effect.
        rig.back.accept(&frame);
        for piece in &mut frame.pieces {
            piece.buffer = BufferId::NONE;
        }
        rig.back.accept(&frame);
        rig.back.refuse(BufferId::NONE);
        rig.back.refuse(BufferId(7));
        assert_eq!(answered(&mut rig), DeliveryReport::default());
    });
}

mod merged {
    use super::*;
    use crate::netif::{Features, rxf};
    use crate::testing::{back_record, ipv4_tcp};
    use nic::{Gso, GsoKind};

    const PAYLOAD: usize = 1448;
    const HEADERS: usize = 54;
    const SLOTS: u32 = 18;

    /// Returns a rig whose guest has 64 buffers; with `meta`, responses carry segment sizes.
    fn rig(meta: bool) -> Rig {
        let features = match meta {
            true => Features::ALL.with(Features::RX_META),
            false => Features::ALL,
        };
        let sizes = crate::netfront::Sizes {
            rx_pages: 32,
            ..sizes()
        };
        let back = crate::netif::BackRecord {
            max_slots: SLOTS as u16,
            ..back_record(features)
        };
        let mut rig = Rig::with_record(sizes, Features::ALL, back);
        assert_eq!(rig.back.negotiated().rx_meta, meta);
        rig.back.expect_merged(true);
        rig
    }

    /// Acts as device and LRO engine: packets in these buffers, and one merged frame with a changed
    /// header.
    fn merge(buffers: &[Buffer]) -> (Frame, Vec<u8>) {
        let mut whole: Option<Frame> = None;
        for (n, buffer) in buffers.iter().enumerate() {
            let frame = received(*buffer, &ipv4_tcp(PAYLOAD, n as u64));
            match &mut whole {
                None => whole = Some(frame),
                Some(whole) => whole.push(Piece {
                    span: frame.pieces[0].span.skip(HEADERS),
                    buffer: buffer.id,
                }),
            }
        }
        let mut frame = whole.unwrap();
        let total = (frame.len() - 14) as u16;
        frame.header_mut()[16..18].copy_from_slice(&total.to_be_bytes());
        if buffers.len() > 1 {
            frame.offload.gso = Some(Gso {
                kind: GsoKind::Tcp4,
                size: PAYLOAD as u16,
            });
            frame.offload.checksum = Checksum::Blank {
                start: 34,
                offset: 16,
            };
        }
        let bytes = frame.to_vec().unwrap();
        (frame, bytes)
    }

    fn posts(rig: &mut Rig, buffers: usize) -> Vec<Buffer> {
        (0..buffers).map(|_| post(rig)).collect()
    }

    /// Returns the packets that the guest receives, with their offloads.
    fn receive(rig: &mut Rig) -> Vec<(Vec<u8>, Option<u16>)> {
        let mut frames = Vec::new();
        rig.front.receive(64, &mut frames).unwrap();
        let got = frames.iter().map(|frame| {
            let size = frame.offload.gso.map(|gso| gso.size);
            (frame.to_vec().unwrap(), size)
        });
        let got = got.collect();
        rig.front.receive_done(&mut frames);
        rig.front.publish();
        got
    }

    /// VMQ-10: five packets use five requests. NETIF-21: the size lies in the first response.
    #[test]
    fn without_a_request_for_the_segment_size() {
        over_each_format(|| {
            let mut rig = rig(true);
            let buffers = posts(&mut rig, 7);
            let (one, alone) = merge(&buffers[..1]);
            let (many, bytes) = merge(&buffers[1..6]);
            rig.back.accept(&one);
            rig.back.accept(&many);
            rig.back.put_back(buffers[6].id, false);
            let report = answered(&mut rig);
            assert_eq!(
                (report.delivered, report.bytes),
                (2, (alone.len() + bytes.len()) as u64)
            );
            let raw = rig.raw_rx();
            let responses: Vec<_> = raw
                .responses(0)
                .into_iter()
                .map(RxResponse::decode)
                .collect();
            assert_eq!(responses.len(), 6);
            assert_eq!(responses[1].id, PAYLOAD as u16);
            assert!(responses[1].has(rxf::GSO_TCPV4) && !responses[1].has(rxf::EXTRA_INFO));
            let expected = [(alone, None), (bytes, Some(PAYLOAD as u16))];
            assert_eq!(receive(&mut rig), expected);
            assert_eq!(rig.back.counters().meta_requests, 0);
        });
    }

    /// VMQ-11: the request behind the first buffer is left out, and consumed.
    #[test]
    fn with_a_request_for_the_segment_size() {
        over_each_format(|| {
            let mut rig = rig(false);
            let buffers = posts(&mut rig, 6);
            let ids: Vec<u32> = buffers.iter().map(|buffer| buffer.id.0).collect();
            assert_eq!(ids, [0, 2, 3, 4, 5, 6]);
            let (many, bytes) = merge(&buffers[..5]);
            let (one, alone) = merge(&buffers[5..]);
            rig.back.accept(&many);
            rig.back.accept(&one);
            assert_eq!(answered(&mut rig).delivered, 2);
            assert_eq!(rig.raw_rx().rsp_prod(), 7);
            let expected = [(bytes, Some(PAYLOAD as u16)), (alone, None)];
            assert_eq!(receive(&mut rig), expected);
            assert_eq!(rig.back.counters().meta_requests, 1);
            assert_eq!(rig.back.posted(128), 64, "all buffers are posted again");
        });
    }

    /// VMQ-11: a request that was left out needlessly returns unused and does not count as a drop.
    /// At the end of a batch it stays in the ring.
    #[test]
    fn needlessly_skipped_requests_return_unused() {
        over_each_format(|| {
            let mut rig = rig(false);
            let buffers = posts(&mut rig, 2);
            let (first, a) = merge(&buffers[..1]);
            let (second, b) = merge(&buffers[1..]);
            rig.back.accept(&first);
            rig.back.accept(&second);
            assert_eq!(answered(&mut rig).drops.total(), 0);
            let raw = rig.raw_rx();
            let status = |words| RxResponse::decode(words).status;
            let statuses: Vec<i16> = raw.responses(0).into_iter().map(status).collect();
            assert_eq!(statuses, [a.len() as i16, rsp::DROPPED, b.len() as i16]);
            assert_eq!(receive(&mut rig), [(a.clone(), None), (b, None)]);
            assert_eq!(rig.front.counters().to_guest_drops.total(), 0);
            assert_eq!(rig.back.posted(128), 64);

            let buffer = post(&mut rig);
            let next = post(&mut rig);
            rig.back.put_back(next.id, false);
            let (alone, a) = merge(&[buffer]);
            rig.back.accept(&alone);
            assert_eq!(answered(&mut rig).delivered, 1);
            assert_eq!(rig.raw_rx().rsp_prod(), 4);
            assert_eq!(receive(&mut rig), [(a, None)]);
            assert_eq!(rig.back.counters().meta_requests, 1);
        });
    }

    /// VMQ-11: throughout a batch, only every n-th buffer may begin a merged frame.
    #[test]
    fn every_nth_buffer_may_begin_a_frame() {
        over_each_format(|| {
            let mut rig = rig(false);
            let buffers = posts(&mut rig, 2 * SLOTS as usize + 1);
            let begins: Vec<u32> = buffers
                .iter()
                .map(|buffer| buffer.id)
                .filter(|id| rig.back.may_begin(*id))
                .map(|id| id.0)
                .collect();
            assert_eq!(begins, [0, SLOTS + 1, 2 * SLOTS + 2]);
            for two in buffers.windows(2) {
                let follows = !rig.back.may_begin(two[1].id);
                assert_eq!(rig.back.may_follow(two[0].id, two[1].id), follows);
            }
            let (whole, bytes) = merge(&buffers[..SLOTS as usize]);
            rig.back.accept(&whole);
            assert_eq!(answered(&mut rig).delivered, 1);
            assert_eq!(receive(&mut rig), [(bytes, Some(PAYLOAD as u16))]);
        });
    }

    /// A merged frame without a slot for its size is dropped, and each of its packets counts.
    #[test]
    fn frame_without_size_slot_is_dropped() {
        over_each_format(|| {
            let mut rig = rig(false);
            let buffers = posts(&mut rig, 6);
            let (middle, _) = merge(&buffers[1..4]);
            let (apart, _) = merge(&[buffers[0], buffers[4]]);
            let (good, bytes) = merge(&buffers[5..]);
            for frame in [&middle, &apart, &good] {
                rig.back.accept(frame);
            }
            let report = answered(&mut rig);
            assert_eq!(
                (report.delivered, report.drops.get(VifDrop::BadOffload)),
                (1, 5)
            );
            assert_eq!(receive(&mut rig), [(bytes, None)]);

            let mut rig = self::rig(true);
            let buffers = posts(&mut rig, SLOTS as usize + 1);
            let (long, _) = merge(&buffers);
            rig.back.accept(&long);
            let report = answered(&mut rig);
            assert_eq!(
                report.drops.get(VifDrop::TooManySlots),
                u64::from(SLOTS) + 1
            );
        });
    }

    #[test]
    fn refused_frames_leave_no_trace_in_the_order() {
        over_each_format(|| {
            let mut rig = rig(true);
            let buffers = posts(&mut rig, 4);
            let (_, _) = merge(&buffers[..3]);
            for buffer in &buffers[..3] {
                rig.back.refuse(buffer.id);
            }
            let (one, bytes) = merge(&buffers[3..]);
            rig.back.accept(&one);
            assert_eq!(answered(&mut rig).delivered, 1);
            assert_eq!(receive(&mut rig), [(bytes, None)]);
        });
    }

    /// A driver domain that sends an invalid NETIF-21 response loses a packet or the interface.
    #[test]
    fn a_lying_first_response() {
        over_each_format(|| {
            let answer = |rig: &mut Rig, flags: u16, id: Option<u16>| {
                let buffer = post(rig);
                let (frame, _) = merge(&[buffer]);
                rig.back.accept(&frame);
                let at = rig.raw_rx().rsp_prod();
                answered(rig);
                let raw = rig.raw_rx_back();
                let mut response = RxResponse::decode(rig.raw_rx().responses(at)[0]);
                response.flags = flags;
                response.id = id.unwrap_or(response.id);
                raw.response(at, response.encode());
                rig.front.receive(64, &mut Vec::new())
            };
            let blank = rxf::CSUM_BLANK | rxf::DATA_VALIDATED;
            for (flags, id, reason) in [
                (blank | rxf::GSO_TCPV4, 0, VifDrop::BadExtra),
                (blank | rxf::GSO, 1448, VifDrop::BadExtra),
                (blank | rxf::GSO_TCPV6, 1448, VifDrop::BadOffload),
                (rxf::GSO_TCPV4, 1448, VifDrop::BadOffload),
            ] {
                let mut rig = rig(true);
                assert_eq!(answer(&mut rig, flags, Some(id)), Ok(0));
                assert_eq!(
                    rig.front.counters().to_guest_drops.get(reason),
                    1,
                    "{flags:x}"
                );
                rig.front.publish();
                assert_eq!(rig.back.posted(128), 64, "its buffer is posted again");
            }
            // A guest that did not negotiate `rx-meta` treats the field as an id.
            let mut rig = rig(false);
            let wrong = answer(&mut rig, blank | rxf::GSO_TCPV4, Some(1448));
            assert!(wrong.is_err());
        });
    }
}
