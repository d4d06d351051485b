mod queues;

use super::format::fits;
use super::*;
use crate::testing::{RawBack, RawFront, TestMemory, format, over_each_format, with_format};
use shmem::Span;

fn pages(memory: &TestMemory, count: u32) -> Vec<Span> {
    (0..count).map(|n| memory.area().page(n).unwrap()).collect()
}

struct Pair<const REQ: usize, const RSP: usize> {
    front: Front<GrantedRingPages, REQ, RSP>,
    back: Back<GrantedRingPages, REQ, RSP>,
    raw_front: RawFront<REQ, RSP>,
    raw_back: RawBack<REQ, RSP>,
    memory: TestMemory,
}

/// Returns both ends of a ring of the thread's format; the page behind the ring's is its control
/// block.
fn pair<const REQ: usize, const RSP: usize>(order: u8) -> Pair<REQ, RSP> {
    let memory = TestMemory::new((1 << order) + 1);
    let control = memory.area().page(1 << order).unwrap();
    let pages = GrantedRingPages::new(format(), &pages(&memory, 1 << order), control).unwrap();
    Pair {
        front: Front::new(pages),
        back: Back::new(pages),
        raw_front: RawFront::new(pages),
        raw_back: RawBack::new(pages),
        memory,
    }
}

/// Returns the word at `offset` of page `page` of a pair's memory.
fn word<const REQ: usize, const RSP: usize>(
    pair: &Pair<REQ, RSP>,
    page: u32,
    offset: usize,
) -> u32 {
    pair.memory
        .area()
        .page(page)
        .unwrap()
        .load_u32(offset)
        .unwrap()
}

/// Returns a ring in which one request was made and answered, after both ends have checked its
/// memory.
fn answered() -> Pair<3, 1> {
    let mut pair = pair::<3, 1>(0);
    pair.front.request([1, 2, 3]);
    pair.front.publish();
    assert_eq!(pair.back.ready_for(1), Ok(1));
    assert_eq!(pair.back.peek(0), Some([1, 2, 3]));
    pair.back.consume(1);
    pair.back.respond([9]);
    pair.back.publish();
    pair
}

#[test]
fn ring_1_the_header_lies_where_xen_has_it() {
    let pair = with_format(Format::Xen, || pair::<3, 1>(0));
    assert_eq!([0, 4, 8, 12].map(|at| word(&pair, 0, at)), [0, 1, 0, 1]);
    let pair = with_format(Format::Xen, answered);
    assert_eq!([0, 8].map(|at| word(&pair, 0, at)), [1, 1]);
    assert_eq!(
        [64, 68, 72].map(|at| word(&pair, 0, at)),
        [9, 2, 3],
        "a response overwrites only its own bytes"
    );
}

#[test]
fn ring_14_requests_responses_and_indices_lie_apart() {
    let pair = with_format(Format::Native, || pair::<3, 1>(0));
    let control = |pair: &Pair<3, 1>| [0, 64, 128, 192].map(|at| word(pair, 1, at));
    assert_eq!(control(&pair), [0, 1, 0, 1]);
    let pair = with_format(Format::Native, answered);
    assert_eq!(control(&pair), [1, 1, 1, 1]);
    assert_eq!([0, 4, 8].map(|at| word(&pair, 0, at)), [1, 2, 3]);
    assert_eq!(word(&pair, 0, 3072), 9);
    let place = |place: SlotLayout, index| place.of(index);
    let (requests, responses) = (Format::Native.requests(2), Format::Native.responses(2, 2));
    assert_eq!(place(requests, 4095), (15, 255 * 8));
    assert_eq!(place(responses, 4095), (15, 2048 + 255 * 8));
    assert!(fits(3, 1) && fits(2, 2) && !fits(3, 2) && !fits(2, 0));
}

#[test]
fn ring_3_slots_are_numbered_through_the_pages() {
    assert_eq!(
        (0..=5).map(slots).collect::<Vec<_>>(),
        [256, 512, 1024, 2048, 4096, 4096]
    );
    let xen = Format::Xen;
    assert_eq!(xen.requests(3), xen.responses(3, 1));
    let places = [0, 1, 255, 256].map(|index| xen.requests(3).of(index));
    assert_eq!(places, [(0, 64), (0, 76), (0, 64 + 255 * 12), (1, 64)]);
    assert_eq!(xen.requests(2).of(4095), (15, 64 + 255 * 8));
    over_each_format(|| {
        let mut pair = pair::<2, 2>(1);
        for n in 0..512 {
            assert_eq!(pair.front.request([n, !n]), Some(n));
        }
        assert_eq!(pair.front.request([0, 0]), None);
        pair.front.publish();
        assert_eq!(pair.back.ready_for(512), Ok(512));
        for n in 0..512 {
            assert_eq!(pair.back.peek(n), Some([n, !n]));
            assert_eq!(pair.raw_back.request_at(n), [n, !n]);
        }
        assert_eq!(pair.back.peek(512), None);
    });
}

#[test]
fn ring_needs_a_power_of_two_of_aligned_pages() {
    let memory = TestMemory::new(32);
    let all = pages(&memory, 32);
    let control = all[31];
    for format in Format::ALL {
        for count in 0..=32 {
            let made = GrantedRingPages::new(format, &all[..count], control);
            assert_eq!(made.is_ok(), matches!(count, 1 | 2 | 4 | 8 | 16), "{count}");
        }
        let short = GrantedRingPages::new(format, &[all[0].take(4095)], control);
        assert_eq!(short.err(), Some(BadPages));
        let shifted = memory.area().at(64, abi::PAGE).unwrap();
        let shifted = GrantedRingPages::new(format, &[shifted], control);
        assert_eq!(shifted.err(), Some(BadPages));
    }
    // Xen's format needs no control block; the native one needs a complete, aligned one.
    for (bad, xen) in [
        (Span::EMPTY, true),
        (control.take(195), true),
        (control.skip(2), true),
    ] {
        let made = |format| GrantedRingPages::new(format, &all[..1], bad).is_ok();
        assert_eq!((made(Format::Xen), made(Format::Native)), (xen, false));
    }
}

/// Row 4: a reader uses the copy that it checked. The slots behind it were copied with it.
#[test]
fn a_slot_is_copied_once_with_those_behind_it() {
    over_each_format(|| {
        let mut pair = pair::<3, 1>(0);
        for n in 0..100 {
            pair.front.request([n; 3]);
        }
        pair.front.publish();
        assert_eq!(pair.back.ready_for(100), Ok(100));
        assert_eq!(pair.back.peek(0), Some([0; 3]));
        for n in 0..100 {
            pair.raw_front.request(n, [!n; 3]);
        }
        for n in 0..BURST as u32 {
            assert_eq!(pair.back.peek(0), Some([n; 3]));
            pair.back.consume(1);
        }
        let later = BURST as u32;
        assert_eq!(pair.back.peek(0), Some([!later; 3]));
    });
}

#[test]
fn attack_01_producer_beyond_ring() {
    over_each_format(|| {
        for (prod, fine) in [
            (0, true),
            (256, true),
            (257, false),
            (u32::MAX, false),
            (1 << 31, false),
        ] {
            let mut pair = pair::<3, 1>(0);
            pair.raw_front.set_req_prod(prod);
            assert_eq!(
                pair.back.ready_for(1),
                if fine { Ok(prod) } else { Err(Overrun) },
                "{prod}"
            );
        }
    });
}

#[test]
fn attack_01_producer_beyond_answered_requests() {
    over_each_format(|| {
        let mut pair = pair::<3, 1>(0);
        pair.raw_front.set_req_prod(256);
        assert_eq!(pair.back.ready_for(256), Ok(256));
        pair.back.consume(256);
        // All requests are consumed and none is answered: the ring is full, although nothing is
        // ready.
        pair.raw_front.set_req_prod(257);
        assert_eq!(pair.back.ready_for(1), Err(Overrun));
        pair.back.respond([0]);
        assert_eq!(pair.back.ready_for(1), Ok(1));
        pair.raw_front.set_req_prod(258);
        assert_eq!(pair.back.ready_for(2), Err(Overrun));
    });
}

#[test]
fn attack_01_producer_going_backwards() {
    over_each_format(|| {
        let mut pair = pair::<3, 1>(0);
        pair.raw_front.set_req_prod(10);
        assert_eq!(pair.back.ready_for(10), Ok(10));
        pair.back.consume(4);
        pair.raw_front.set_req_prod(10);
        assert_eq!(pair.back.ready_for(7), Ok(6));
        for prod in [9, 5, 4, 3, 0] {
            pair.raw_front.set_req_prod(prod);
            assert_eq!(pair.back.ready_for(7), Err(Overrun), "{prod}");
        }
    });
}

#[test]
fn attack_02_responses_without_requests() {
    over_each_format(|| {
        let mut pair = pair::<3, 1>(0);
        pair.raw_back.set_rsp_prod(1);
        assert_eq!(pair.front.ready_for(1), Err(Overrun));
        pair.raw_back.set_rsp_prod(0);
        pair.front.request([0; 3]);
        pair.front.request([0; 3]);
        pair.raw_back.set_rsp_prod(1);
        assert_eq!(
            pair.front.ready_for(1),
            Err(Overrun),
            "a request that was not published"
        );
        pair.front.publish();
        assert_eq!(pair.front.ready_for(1), Ok(1));
        pair.raw_back.set_rsp_prod(3);
        assert_eq!(pair.front.ready_for(2), Err(Overrun));
        pair.raw_back.set_rsp_prod(2);
        assert_eq!(pair.front.ready_for(2), Ok(2));
        pair.front.consume(1);
        for prod in [1, 0, u32::MAX] {
            pair.raw_back.set_rsp_prod(prod);
            assert_eq!(pair.front.ready_for(2), Err(Overrun), "{prod}");
        }
    });
}

#[test]
fn attack_03_no_response_without_a_request() {
    over_each_format(|| {
        let mut pair = pair::<2, 2>(0);
        assert!(!pair.back.respond([0, 0]));
        pair.raw_front.set_req_prod(2);
        assert_eq!(pair.back.ready_for(2), Ok(2));
        assert!(!pair.back.respond([0, 0]), "not consumed yet");
        pair.back.consume(1);
        assert_eq!(pair.back.unanswered(), 1);
        assert!(pair.back.respond([0, 0]));
        assert!(!pair.back.respond([0, 0]));
        pair.back.consume(100);
        assert_eq!(
            (pair.back.unanswered(), pair.back.ready()),
            (1, 0),
            "no more than the ready slots"
        );
    });
}

#[test]
fn watched_ring_is_idle_until_a_request() {
    over_each_format(|| {
        let mut pair = pair::<3, 1>(0);
        let watch = pair.back.watch(0);
        assert!(watch.is_idle());
        pair.front.request([0; 3]);
        assert!(watch.is_idle());
        pair.front.publish();
        assert!(!watch.is_idle() && pair.back.watch(1).is_idle());
        assert_eq!(pair.back.ready_for(1), Ok(1));
        pair.back.consume(1);
        assert!(pair.back.watch(0).is_idle() && !watch.is_idle());
        assert!(!RingWatch::NONE.is_idle());
    });
}

#[test]
fn nothing_is_seen_before_it_is_published() {
    over_each_format(|| {
        let mut pair = pair::<3, 1>(0);
        pair.front.request([1, 2, 3]);
        assert_eq!((pair.back.ready_for(1), pair.back.pending()), (Ok(0), 0));
        pair.front.publish();
        assert_eq!((pair.back.ready(), pair.back.pending()), (0, 1));
        assert_eq!(pair.back.ready_for(1), Ok(1));
        assert_eq!(pair.back.peek(0), Some([1, 2, 3]));
        pair.back.consume(1);
        assert_eq!(pair.back.pending(), 0);
        pair.back.respond([4]);
        assert_eq!((pair.front.ready_for(1), pair.front.pending()), (Ok(0), 0));
        pair.back.publish();
        assert_eq!((pair.front.ready(), pair.front.pending()), (0, 1));
        assert_eq!(pair.front.ready_for(1), Ok(1));
        assert_eq!(pair.front.peek(0), Some([4]));
        assert_eq!(pair.front.peek(1), None);
        assert_eq!((pair.front.free(), pair.front.unanswered()), (255, 1));
        pair.front.consume(9);
        assert_eq!(
            (
                pair.front.free(),
                pair.front.unanswered(),
                pair.front.ready()
            ),
            (256, 0, 0)
        );
        assert_eq!(pair.front.slot(256 + 3), 3);
    });
}

#[test]
fn the_index_is_read_only_when_it_has_to_be() {
    over_each_format(|| {
        let mut pair = pair::<3, 1>(0);
        pair.raw_front.set_req_prod(5);
        assert_eq!(pair.back.ready_for(3), Ok(5));
        pair.raw_front.set_req_prod(1000);
        assert_eq!(
            pair.back.ready_for(5),
            Ok(5),
            "the shared index is not reread"
        );
        assert_eq!(pair.back.ready_for(6), Err(Overrun));
    });
}

#[test]
fn the_fronts_index_is_read_only_when_it_has_to_be() {
    over_each_format(|| {
        let mut pair = pair::<3, 1>(0);
        for _ in 0..6 {
            pair.front.request([0; 3]);
        }
        pair.front.publish();
        pair.raw_back.set_rsp_prod(5);
        assert_eq!(pair.front.ready_for(3), Ok(5));
        pair.raw_back.set_rsp_prod(1000);
        assert_eq!(
            pair.front.ready_for(5),
            Ok(5),
            "the shared index is not reread"
        );
        assert_eq!(pair.front.ready_for(6), Err(Overrun));
    });
}

/// Publishing nothing does not write to the shared index.
#[test]
fn publishing_nothing_writes_nothing() {
    over_each_format(|| {
        let mut pair = pair::<3, 1>(0);
        pair.raw_front.set_req_prod(7);
        pair.raw_back.set_rsp_prod(9);
        pair.front.publish();
        pair.back.publish();
        assert_eq!(
            (pair.raw_front.req_prod(), pair.raw_front.rsp_prod()),
            (7, 9)
        );
    });
}

#[test]
fn a_ring_is_dirty_until_the_peer_is_checked() {
    over_each_format(|| {
        let mut pair = pair::<3, 1>(0);
        assert!(!pair.front.is_dirty() && !pair.back.is_dirty());
        pair.front.request([0; 3]);
        assert!(pair.front.is_dirty(), "written");
        pair.front.publish();
        assert!(pair.front.is_dirty(), "published");
        let _ = pair.front.should_notify();
        assert!(!pair.front.is_dirty());
        assert_eq!(pair.back.ready_for(1), Ok(1));
        pair.back.consume(1);
        assert!(!pair.back.is_dirty());
        pair.back.respond([0]);
        assert!(pair.back.is_dirty(), "written");
        pair.back.publish();
        assert!(pair.back.is_dirty(), "published");
        let _ = pair.back.should_notify();
        assert!(!pair.back.is_dirty());
    });
}

#[test]
fn ring_9_the_formula() {
    // `event` lies within old + 1 ..= new, also across the wrap.
    for base in [0_u32, u32::MAX - 2, 1 << 31] {
        for event in 0..8_u32 {
            let passed = passes(
                base.wrapping_add(event),
                base.wrapping_add(2),
                base.wrapping_add(5),
            );
            assert_eq!(passed, (3..=5).contains(&event), "{base} {event}");
        }
    }
    assert!(!passes(5, 5, 5), "nothing new");
}

#[test]
fn ring_9_back_is_notified_once_per_request() {
    over_each_format(|| {
        let mut pair = pair::<3, 1>(0);
        let send = |pair: &mut Pair<3, 1>, n: u32| {
            for _ in 0..n {
                pair.front.request([0; 3]);
            }
            pair.front.publish();
            pair.front.should_notify()
        };
        assert!(!pair.front.should_notify(), "nothing was published");
        assert!(send(&mut pair, 1), "a new ring asks for the first request");
        assert!(!pair.front.should_notify(), "the peer was already notified");
        assert!(
            !send(&mut pair, 3),
            "the peer requested no further notification"
        );
        assert!(pair.back.prepare_sleep(0), "there is work");
        assert_eq!(pair.back.ready_for(4), Ok(4));
        pair.back.consume(4);
        assert!(!pair.back.prepare_sleep(0));
        assert_eq!(pair.raw_front.req_event(), 5);
        assert!(send(&mut pair, 2));
        assert!(!send(&mut pair, 2));
        // Two of the four waiting slots belong to an incomplete packet.
        assert!(pair.back.prepare_sleep(2));
        assert!(!pair.back.prepare_sleep(4));
        assert!(send(&mut pair, 1));
    });
}

#[test]
fn ring_9_the_front_is_notified_once_on_request() {
    over_each_format(|| {
        let mut pair = pair::<3, 1>(0);
        for _ in 0..20 {
            pair.front.request([0; 3]);
        }
        pair.front.publish();
        assert_eq!(pair.back.ready_for(20), Ok(20));
        pair.back.consume(20);
        let answer = |pair: &mut Pair<3, 1>, n: u32| {
            for _ in 0..n {
                pair.back.respond([0]);
            }
            pair.back.publish();
            pair.back.should_notify()
        };
        assert!(!pair.back.should_notify(), "nothing was published");
        assert!(
            answer(&mut pair, 1),
            "a new ring asks for the first response"
        );
        assert!(!pair.back.should_notify(), "the peer was already notified");
        assert!(
            !answer(&mut pair, 3),
            "the peer requested no further notification"
        );
        assert!(pair.front.prepare_sleep(0), "there is work");
        assert!(pair.front.prepare_sleep(3));
        assert!(!pair.front.prepare_sleep(4));
        assert_eq!(pair.raw_front.rsp_event(), 5);
        assert!(answer(&mut pair, 1));
        assert_eq!(pair.front.ready_for(5), Ok(5));
        pair.front.consume(5);
        assert!(!pair.front.prepare_sleep(0));
        pair.front.disarm();
        assert!(
            !answer(&mut pair, 8),
            "the front has disabled notifications"
        );
    });
}
