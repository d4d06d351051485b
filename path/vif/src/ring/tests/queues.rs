//! For any steps of both ends, a ring behaves like five queues, and a sleeper is woken once.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
enum Op {
    Request(u8),
    PublishFront,
    Take(u8),
    Respond(u8),
    PublishBack,
    Reap(u8),
    SleepBack,
    SleepFront,
    TellBack,
    TellFront,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        any::<u8>().prop_map(Op::Request),
        Just(Op::PublishFront),
        any::<u8>().prop_map(Op::Take),
        any::<u8>().prop_map(Op::Respond),
        Just(Op::PublishBack),
        any::<u8>().prop_map(Op::Reap),
        Just(Op::SleepBack),
        Just(Op::SleepFront),
        Just(Op::TellBack),
        Just(Op::TellFront),
    ]
}

/// The reference model of a ring: five queues, and which ends sleep.
#[derive(Default)]
struct Oracle {
    next: u32,
    written: VecDeque<u32>,
    published: VecDeque<u32>,
    taken: VecDeque<u32>,
    answered: VecDeque<u32>,
    answers: VecDeque<u32>,
    reaped: u32,
    /// Requests and responses that `should_notify` has not covered yet.
    requests_untold: usize,
    responses_untold: usize,
    /// Whether the consumer sleeps: it found nothing at its last check and has not been notified
    /// since.
    back_sleeps: bool,
    front_sleeps: bool,
}

impl Oracle {
    fn in_ring(&self) -> usize {
        self.written.len()
            + self.published.len()
            + self.taken.len()
            + self.answered.len()
            + self.answers.len()
    }
}

fn run<const REQ: usize, const RSP: usize>(order: u8, ops: &[Op]) {
    let mut pair = pair::<REQ, RSP>(order);
    let mut oracle = Oracle::default();
    let slots = slots(order) as usize;
    assert_eq!(pair.front.slots() as usize, slots);
    assert_eq!(pair.back.slots() as usize, slots);
    for op in ops {
        match *op {
            Op::Request(n) => {
                for _ in 0..n {
                    let full = oracle.in_ring() == slots;
                    let index = pair.front.request([oracle.next; REQ]);
                    assert_eq!(index, (!full).then_some(oracle.next));
                    if let Some(index) = index {
                        assert_eq!(pair.front.slot(index), index as usize % slots);
                        oracle.requests_untold += 1;
                        oracle.written.push_back(oracle.next);
                        oracle.next += 1;
                    }
                }
            }
            Op::PublishFront => {
                pair.front.publish();
                oracle.published.append(&mut oracle.written);
            }
            Op::Take(n) => {
                let ready = pair.back.ready_for(u32::from(n)).unwrap();
                assert!(ready as usize <= oracle.published.len());
                assert!(ready as usize >= oracle.published.len().min(usize::from(n)));
                let n = ready.min(u32::from(n));
                for ahead in 0..n {
                    let want = oracle.published.pop_front().unwrap();
                    assert_eq!(pair.back.peek(ahead), Some([want; REQ]));
                    oracle.taken.push_back(want);
                }
                pair.back.consume(n);
                oracle.back_sleeps &= n == 0;
            }
            Op::Respond(n) => {
                for _ in 0..n {
                    let next = oracle.taken.pop_front();
                    assert_eq!(
                        pair.back.respond([next.map_or(0, |n| !n); RSP]),
                        next.is_some()
                    );
                    oracle.responses_untold += usize::from(next.is_some());
                    oracle.answered.extend(next);
                }
            }
            Op::PublishBack => {
                pair.back.publish();
                oracle.answers.append(&mut oracle.answered);
            }
            Op::Reap(n) => {
                let ready = pair.front.ready_for(u32::from(n)).unwrap();
                assert!(ready as usize <= oracle.answers.len());
                assert!(ready as usize >= oracle.answers.len().min(usize::from(n)));
                let n = ready.min(u32::from(n));
                for ahead in 0..n {
                    let want = oracle.answers.pop_front().unwrap();
                    assert_eq!(pair.front.peek(ahead), Some([!want; RSP]));
                }
                pair.front.consume(n);
                oracle.reaped += n;
                oracle.front_sleeps &= n == 0;
            }
            Op::SleepBack => {
                let work = pair.back.prepare_sleep(0);
                assert_eq!(work, !oracle.published.is_empty());
                oracle.back_sleeps = !work;
            }
            Op::SleepFront => {
                let work = pair.front.prepare_sleep(0);
                assert_eq!(work, !oracle.answers.is_empty());
                oracle.front_sleeps = !work;
            }
            Op::TellBack => {
                let tell = pair.front.should_notify();
                assert!(tell || !oracle.back_sleeps || oracle.published.is_empty());
                oracle.back_sleeps &= oracle.published.is_empty();
                oracle.requests_untold = oracle.written.len();
            }
            Op::TellFront => {
                let tell = pair.back.should_notify();
                assert!(tell || !oracle.front_sleeps || oracle.answers.is_empty());
                oracle.front_sleeps &= oracle.answers.is_empty();
                oracle.responses_untold = oracle.answered.len();
            }
        }
        assert_eq!(pair.front.next(), oracle.reaped);
        assert_eq!(pair.front.is_dirty(), oracle.requests_untold > 0);
        assert_eq!(pair.back.is_dirty(), oracle.responses_untold > 0);
        assert_eq!(pair.back.unnotified() as usize, oracle.responses_untold);
        assert_eq!(pair.front.free() as usize, slots - oracle.in_ring());
        assert_eq!(pair.back.unanswered() as usize, oracle.taken.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(256)
    })]

    #[test]
    fn a_ring_is_five_queues(order in 0_u8..3, ops in prop::collection::vec(op(), 0..200)) {
        for format in Format::ALL {
            with_format(format, || run::<3, 1>(order, &ops));
            with_format(format, || run::<2, 2>(order, &ops));
        }
    }
}
