//! A ring whose other end is hostile, and a ring with two honest ends.

use crate::input::Input;
use abi::PAGE;
use shmem::{Area, Span};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use vif::ring::{Back, Format, Front, GrantedRingPages, RingIndex, RingMemory};

const WORDS: usize = 2;

/// Tests the ring's indices, slots and notifications.
pub fn ring(bytes: &[u8]) {
    thread_local!(static PAGES: Area = Area::anonymous(3 * PAGE).expect("memory"));
    let memory = PAGES.with(|area| area.span());
    memory.fill(0).expect("own memory");
    let mut input = Input::new(bytes);
    let page = |n: usize| memory.skip(n * PAGE).take(PAGE);
    let spans: &[Span] = &[page(1), page(2)];
    let spans = &spans[..=input.below(2)];
    let format = Format::ALL[input.below(2)];
    // The control block is in the first page.
    let ring = GrantedRingPages::new(format, spans, page(0)).expect("whole pages");
    let pages = &Shared { memory, ring };
    match input.below(3) {
        0 => hostile_front(&mut input, pages),
        1 => hostile_back(&mut input, pages),
        _ => honest(&mut input, pages),
    }
}

/// Memory that both ends share.
struct Shared {
    /// The ring's pages, and one before them.
    memory: Span,
    ring: GrantedRingPages,
}

impl Shared {
    fn index(&self, index: RingIndex) -> u32 {
        self.ring.index(index, Ordering::Acquire)
    }
}

/// Writes any value anywhere, or an index near a valid one.
fn scribble(input: &mut Input<'_>, pages: &Shared, index: RingIndex, sensible: u32) {
    if input.bool() {
        let value = input.near(sensible);
        pages.ring.set_index(index, value, Ordering::Release);
    } else {
        let page = input.below(pages.memory.len() / PAGE);
        let offset = (usize::from(input.u16()) % PAGE) & !3;
        let at = page * PAGE + offset;
        let value = input.u32();
        pages.memory.store_u32(at, value).expect("own memory");
    }
}

fn hostile_front(input: &mut Input<'_>, pages: &Shared) {
    let mut back = Back::<_, WORDS, WORDS>::new(pages.ring);
    let slots = back.slots();
    let (mut consumed, mut answered, mut published) = (0_u32, 0_u32, 0_u32);
    while !input.is_empty() {
        match input.below(6) {
            0 | 1 => scribble(input, pages, RingIndex::ReqProd, consumed),
            2 => {
                let before = back.ready();
                match back.ready_for(u32::from(input.u8())) {
                    Ok(ready) => {
                        assert!(ready >= before, "requests went away");
                        assert!(ready <= slots - (consumed - answered), "more than fit");
                        assert_eq!(ready, back.ready());
                    }
                    Err(_) => assert_eq!(before, back.ready(), "an overrun changed something"),
                }
                assert_eq!(back.peek(back.ready()), None);
                assert_eq!(back.peek(0).is_some(), back.ready() > 0);
            }
            3 => {
                let (ready, count) = (back.ready(), u32::from(input.u8()));
                back.consume(count);
                consumed += count.min(ready);
            }
            4 => {
                let owed = consumed > answered;
                assert_eq!(
                    back.respond([input.u32(), 0]),
                    owed,
                    "one answer for each request"
                );
                answered += u32::from(owed);
            }
            _ => {
                back.publish();
                if answered != published {
                    assert_eq!(pages.index(RingIndex::RspProd), answered);
                    published = answered;
                }
                let _ = back.should_notify();
                assert!(!back.should_notify(), "notified twice");
                let _ = back.prepare_sleep(u32::from(input.u8()));
            }
        }
        assert_eq!(back.unanswered(), consumed - answered);
    }
}

fn hostile_back(input: &mut Input<'_>, pages: &Shared) {
    let mut front = Front::<_, WORDS, WORDS>::new(pages.ring);
    let (mut made, mut published, mut consumed) = (0_u32, 0_u32, 0_u32);
    while !input.is_empty() {
        match input.below(6) {
            0 | 1 => scribble(input, pages, RingIndex::RspProd, consumed),
            2 => {
                let room = made - consumed < front.slots();
                assert_eq!(front.request([input.u32(), 0]), room.then_some(made));
                made += u32::from(room);
            }
            3 => {
                let before = front.ready();
                match front.ready_for(u32::from(input.u8())) {
                    Ok(ready) => {
                        assert!(ready >= before, "responses went away");
                        assert!(ready <= published - consumed, "answers to nothing");
                    }
                    Err(_) => assert_eq!(before, front.ready(), "an overrun changed something"),
                }
                assert_eq!(front.peek(front.ready()), None);
                assert_eq!(front.peek(0).is_some(), front.ready() > 0);
            }
            4 => {
                let (ready, count) = (front.ready(), u32::from(input.u8()));
                front.consume(count);
                consumed += count.min(ready);
            }
            _ => {
                front.publish();
                if made != published {
                    assert_eq!(pages.index(RingIndex::ReqProd), made);
                    published = made;
                }
                let _ = front.should_notify();
                assert!(!front.should_notify(), "notified twice");
                let _ = front.prepare_sleep(u32::from(input.u8()));
            }
        }
        assert_eq!(front.unanswered(), made - consumed);
        assert_eq!(front.free(), front.slots() - front.unanswered());
    }
}

/// Runs two honest ends. Checks that every entry arrives once and in order, and that an armed end
/// is notified.
fn honest(input: &mut Input<'_>, pages: &Shared) {
    let mut front = Front::<_, WORDS, WORDS>::new(pages.ring);
    let mut back = Back::<_, WORDS, WORDS>::new(pages.ring);
    // Entries in transit: written, visible to the other end, taken by it.
    let mut requests: [VecDeque<u32>; 2] = Default::default();
    let mut responses: [VecDeque<u32>; 2] = Default::default();
    let mut taken = VecDeque::new();
    // Whether an end sleeps until it is notified.
    let (mut back_sleeps, mut front_sleeps) = (false, false);
    while !input.is_empty() {
        let value = input.u32();
        match value % 6 {
            0 => {
                if front.request([value, !value]).is_some() {
                    requests[0].push_back(value);
                }
            }
            1 => {
                front.publish();
                let visible = !requests[0].is_empty();
                let new = std::mem::take(&mut requests[0]);
                requests[1].extend(new);
                let notified = front.should_notify();
                assert!(
                    notified || !(back_sleeps && visible),
                    "the back sleeps for ever"
                );
                back_sleeps &= !notified;
            }
            2 => {
                let ready = back.ready_for(u32::MAX).expect("an honest front");
                assert_eq!(ready as usize, requests[1].len());
                if let Some(found) = back.peek(0) {
                    let expected = requests[1].pop_front().expect("a request");
                    assert_eq!(found, [expected, !expected]);
                    back.consume(1);
                    taken.push_back(expected);
                }
            }
            3 => {
                if let Some(value) = taken.pop_front() {
                    assert!(back.respond([value.rotate_left(7), value]));
                    responses[0].push_back(value);
                }
            }
            4 => {
                back.publish();
                let visible = !responses[0].is_empty();
                let new = std::mem::take(&mut responses[0]);
                responses[1].extend(new);
                let notified = back.should_notify();
                assert!(
                    notified || !(front_sleeps && visible),
                    "the front sleeps for ever"
                );
                front_sleeps &= !notified;
            }
            _ => {
                let ready = front.ready_for(u32::MAX).expect("an honest back");
                assert_eq!(ready as usize, responses[1].len());
                if let Some(found) = front.peek(0) {
                    let expected = responses[1].pop_front().expect("a response");
                    assert_eq!(found, [expected.rotate_left(7), expected]);
                    front.consume(1);
                }
            }
        }
        if value & 0x100 != 0 {
            back_sleeps = !back.prepare_sleep(0);
            assert_eq!(back_sleeps, requests[1].is_empty());
        }
        if value & 0x200 != 0 {
            front_sleeps = !front.prepare_sleep(0);
            assert_eq!(front_sleeps, responses[1].is_empty());
        }
    }
}
