//! A backend may be killed and replaced at any moment: every request is still answered once, in
//! order and unchanged.

use super::{BURST, Back, Format, Front, GrantedRingPages, Journal, slots};
use crate::testing::TestMemory;
use proptest::prelude::*;
use shmem::Span;
use std::collections::VecDeque;

const REQ: usize = 3;
const RSP: usize = 1;

/// Steps of the two ends, including a kill of the back.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// The front makes and publishes requests.
    Request(u32),
    /// The back reads requests without taking them, as with an incomplete packet.
    Look(u32),
    /// The back takes requests.
    Take(u32),
    /// The back writes responses to taken requests without publishing them.
    Respond(u32),
    /// The back publishes its responses.
    Publish,
    /// The front takes published responses.
    Collect,
    /// The back is killed; another one takes over.
    Kill,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (1u32..300).prop_map(Op::Request),
        1 => (1u32..20).prop_map(Op::Look),
        3 => (1u32..200).prop_map(Op::Take),
        3 => (1u32..200).prop_map(Op::Respond),
        2 => Just(Op::Publish),
        2 => Just(Op::Collect),
        2 => Just(Op::Kill),
    ]
}

struct Machine {
    pages: GrantedRingPages,
    journal: Journal,
    front: Front<GrantedRingPages, REQ, RSP>,
    back: Back<GrantedRingPages, REQ, RSP>,
    /// Requests that this back has taken and not answered.
    taken: VecDeque<[u32; REQ]>,
    /// Requests without a response, in order.
    waiting: VecDeque<[u32; REQ]>,
    made: u32,
    memory: [TestMemory; 2],
}

impl Machine {
    /// Creates a ring whose first index is `first`, with or without a journal.
    fn new(first: u32, with_journal: bool) -> Self {
        let memory = [TestMemory::new(1), TestMemory::new(2)];
        let page = memory[0].area().page(0).unwrap();
        let pages = GrantedRingPages::new(Format::Xen, &[page], Span::EMPTY).unwrap();
        let front = Front::new(pages);
        for index in [0, 8] {
            page.store_u32(index, first).unwrap();
        }
        let journal = match with_journal {
            true => Journal::in_memory(memory[1].area().span()),
            false => Journal::NONE,
        };
        let mut machine = Self {
            pages,
            journal,
            front,
            back: Back::new(pages),
            taken: VecDeque::new(),
            waiting: VecDeque::new(),
            made: 0,
            memory,
        };
        machine.front.skip_to(first);
        machine.back.resume(journal);
        machine
    }

    /// Executes one step. Returns an error if the front detects one.
    fn step(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Request(count) => {
                for _ in 0..count.min(self.front.free()) {
                    self.made += 1;
                    // Any word of a request may look like a response.
                    let request = [self.made, !self.made, self.made.rotate_left(16)];
                    self.front.request(request);
                    self.waiting.push_back(request);
                }
                self.front.publish();
            }
            Op::Look(count) => {
                let ready = self
                    .back
                    .ready_for(count)
                    .map_err(|error| error.to_string())?;
                for ahead in 0..ready.min(count) {
                    let _ = self.back.peek(ahead);
                }
            }
            Op::Take(count) => {
                let ready = self
                    .back
                    .ready_for(count)
                    .map_err(|error| error.to_string())?;
                for _ in 0..ready.min(count) {
                    let request = self.back.peek(0).ok_or("a ready request is missing")?;
                    self.back.consume(1);
                    self.taken.push_back(request);
                }
            }
            Op::Respond(count) => {
                for _ in 0..count {
                    let Some(request) = self.taken.pop_front() else {
                        break;
                    };
                    assert!(self.back.respond([answer(request)]));
                }
            }
            Op::Publish => self.back.publish(),
            Op::Collect => self.collect()?,
            Op::Kill => {
                // Only the process's shared memory survives.
                self.back = Back::new(self.pages);
                self.back.resume(self.journal);
                self.taken.clear();
            }
        }
        Ok(())
    }

    fn collect(&mut self) -> Result<(), String> {
        let ready = self
            .front
            .ready_for(slots(0))
            .map_err(|error| error.to_string())?;
        for _ in 0..ready {
            let [response] = self.front.peek(0).ok_or("a response is missing")?;
            self.front.consume(1);
            let request = self
                .waiting
                .pop_front()
                .ok_or("a response without a request")?;
            if response != answer(request) {
                return Err(format!("{request:x?} was answered with {response:x}"));
            }
        }
        Ok(())
    }

    /// Answers all pending requests and checks that the front receives every response.
    fn finish(&mut self) -> Result<(), String> {
        for op in [
            Op::Take(slots(0)),
            Op::Respond(slots(0)),
            Op::Publish,
            Op::Collect,
        ] {
            self.step(op)?;
        }
        match self.waiting.len() {
            0 => Ok(()),
            left => Err(format!("{left} requests were never answered")),
        }
    }
}

/// Returns the response to a request. The response depends on all words of the request, so that a
/// lost word is detected.
fn answer(request: [u32; REQ]) -> u32 {
    request
        .into_iter()
        .fold(7, |sum, word| sum.rotate_left(9) ^ word)
}

proptest! {
    #[test]
    fn ring_16_each_request_is_answered_once(
        first in prop_oneof![Just(0), Just(u32::MAX - 100), any::<u32>()],
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut machine = Machine::new(first, true);
        for op in &ops {
            prop_assert_eq!(machine.step(*op), Ok(()), "{:?} of {:?}", op, ops);
        }
        prop_assert_eq!(machine.finish(), Ok(()), "{:?}", ops);
    }
}

/// Kills the back between writing and publishing a response, the case for which the journal exists.
fn killed_between_answer_and_publication(with_journal: bool) -> Result<(), String> {
    let mut machine = Machine::new(0, with_journal);
    for op in [
        Op::Request(3 * BURST as u32),
        Op::Take(5),
        Op::Respond(4),
        Op::Kill,
    ] {
        machine.step(op)?;
    }
    machine.finish()
}

#[test]
fn ring_15_journal_restores_overwritten_requests() {
    assert_eq!(killed_between_answer_and_publication(true), Ok(()));
    assert!(killed_between_answer_and_publication(false).is_err());
}

#[test]
fn ring_16_an_older_request_of_the_slot_is_none() {
    let mut machine = Machine::new(0, true);
    // The ring wraps three times, so that the journal has recorded every slot before with another
    // index.
    for _ in 0..3 {
        machine.step(Op::Request(slots(0))).unwrap();
        machine.finish().unwrap();
    }
    // The back dies before it reads these requests; the journal holds only earlier ones.
    machine.step(Op::Request(7)).unwrap();
    machine.step(Op::Kill).unwrap();
    assert_eq!(machine.finish(), Ok(()));
}

#[test]
fn ring_16_hostile_index_is_overrun_after_resume() {
    let mut machine = Machine::new(0, true);
    machine.step(Op::Request(1)).unwrap();
    machine.memory[0]
        .area()
        .page(0)
        .unwrap()
        .store_u32(0, slots(0) + 1)
        .unwrap();
    machine.step(Op::Kill).unwrap();
    assert!(machine.back.ready_for(1).is_err());
}
