//! A ring whose other end is hostile, and a ring whose two ends are honest.

use crate::input::Input;
use abi::PAGE;
use shmem::{Area, Span};
use std::collections::VecDeque;
use vif::ring::{Back, Front, Pages};

const WORDS: usize = 2;
const REQ_PROD: usize = 0;
const RSP_PROD: usize = 8;

/// The ring's indices, slots and notifications.
pub fn ring(bytes: &[u8]) {
    thread_local!(static PAGES: Area = Area::anonymous(2 * PAGE).expect("memory"));
    let memory = PAGES.with(|area| area.span());
    memory.fill(0).expect("own memory");
    let mut input = Input::new(bytes);
    let pages: &[Span] = &[memory.take(PAGE), memory.skip(PAGE)];
    let pages = &pages[..=input.below(2)];
    match input.below(3) {
        0 => hostile_front(&mut input, pages),
        1 => hostile_back(&mut input, pages),
        _ => honest(&mut input, pages),
    }
}

/// Anything anywhere, or an index near one that makes sense.
fn scribble(input: &mut Input<'_>, pages: &[Span], index_at: usize, sensible: u32) {
    let (page, offset, value) = if input.bool() {
        (0, index_at, input.near(sensible))
    } else {
        (
            input.below(pages.len()),
            (usize::from(input.u16()) % PAGE) & !3,
            input.u32(),
        )
    };
    pages[page].store_u32(offset, value).expect("own memory");
}

fn hostile_front(input: &mut Input<'_>, pages: &[Span]) {
    let mut back = Back::<_, WORDS>::new(Pages::new(pages).expect("whole pages"));
    let slots = back.slots();
    let (mut consumed, mut answered, mut published) = (0_u32, 0_u32, 0_u32);
    while !input.is_empty() {
        match input.below(6) {
            0 | 1 => scribble(input, pages, REQ_PROD, consumed),
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
                    back.respond([input.u32()]),
                    owed,
                    "one answer for each request"
                );
                answered += u32::from(owed);
            }
            _ => {
                back.publish();
                if answered != published {
                    assert_eq!(pages[0].load_u32(RSP_PROD), Ok(answered));
                    published = answered;
                }
                let _ = back.should_notify();
                assert!(!back.should_notify(), "told twice");
                let _ = back.prepare_sleep(u32::from(input.u8()));
            }
        }
        assert_eq!(back.owed(), consumed - answered);
    }
}

fn hostile_back(input: &mut Input<'_>, pages: &[Span]) {
    let mut front = Front::<_, WORDS>::new(Pages::new(pages).expect("whole pages"));
    let (mut made, mut published, mut consumed) = (0_u32, 0_u32, 0_u32);
    while !input.is_empty() {
        match input.below(6) {
            0 | 1 => scribble(input, pages, RSP_PROD, consumed),
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
                    assert_eq!(pages[0].load_u32(REQ_PROD), Ok(made));
                    published = made;
                }
                let _ = front.should_notify();
                assert!(!front.should_notify(), "told twice");
                let _ = front.prepare_sleep(u32::from(input.u8()));
            }
        }
        assert_eq!(front.owed(), made - consumed);
        assert_eq!(front.free(), front.slots() - front.owed());
    }
}

/// Both ends keep the protocol: everything arrives once, in order, and whoever armed is told.
fn honest(input: &mut Input<'_>, pages: &[Span]) {
    let mut front = Front::<_, WORDS>::new(Pages::new(pages).expect("whole pages"));
    let mut back = Back::<_, WORDS>::new(Pages::new(pages).expect("whole pages"));
    // What is on its way: written, visible to the other end, taken by it.
    let mut requests: [VecDeque<u32>; 2] = Default::default();
    let mut responses: [VecDeque<u32>; 2] = Default::default();
    let mut taken = VecDeque::new();
    // Whether an end sleeps until it is told.
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
                let told = front.should_notify();
                assert!(
                    told || !(back_sleeps && visible),
                    "the back sleeps for ever"
                );
                back_sleeps &= !told;
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
                let told = back.should_notify();
                assert!(
                    told || !(front_sleeps && visible),
                    "the front sleeps for ever"
                );
                front_sleeps &= !told;
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
