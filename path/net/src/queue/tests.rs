use super::*;
use proptest::prelude::*;

/// A packet of `left` segments of 1000 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    flow: u32,
    number: u64,
    left: u64,
    ect: bool,
    marked: bool,
}

impl QueuedPacket for Sent {
    fn bytes(&self) -> u64 {
        self.left * 1000
    }

    fn units(&self) -> usize {
        self.left as usize
    }

    fn mark(&mut self) -> bool {
        self.marked = self.ect;
        self.ect
    }

    fn shed(&mut self) -> Option<Self> {
        self.cut(1)
    }
}

impl Sent {
    fn cut(&mut self, segments: u64) -> Option<Self> {
        let rest = self.left.checked_sub(segments).filter(|rest| *rest > 0)?;
        let part = Self {
            left: segments,
            ..self.clone()
        };
        self.left = rest;
        Some(part)
    }
}

fn sent(flow: u32, number: u64, left: u64) -> Sent {
    Sent {
        flow,
        number,
        left,
        ect: false,
        marked: false,
    }
}

const MS: u64 = 1_000_000;

#[derive(Clone, Debug)]
enum Op {
    Push { flow: u32, left: u64, ect: bool },
    Pop,
    Cut,
    DropFromLongest,
    SignalLongest,
    Expire { age_ms: u64 },
    Wait { ms: u64 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let push = (0..40_u32, 1..45_u64, any::<bool>());
    let op = prop_oneof![
        8 => push.prop_map(|(flow, left, ect)| Op::Push { flow, left, ect }),
        6 => Just(Op::Pop),
        1 => Just(Op::Cut),
        1 => Just(Op::DropFromLongest),
        1 => Just(Op::SignalLongest),
        1 => (0..300_u64).prop_map(|age_ms| Op::Expire { age_ms }),
        3 => (0..60_u64).prop_map(|ms| Op::Wait { ms }),
    ];
    prop::collection::vec(op, 0..400)
}

proptest! {
    /// Every segment leaves the queue once, in the order of its flow, and the totals match the
    /// queued packets.
    #[test]
    fn eq_1_nothing_is_lost_uncounted_or_reordered(ops in ops()) {
        let mut queue = FairQueue::default();
        let (mut pushed, mut popped, mut lost) = (0, 0, 0);
        let mut latest = vec![0; 40];
        let (mut now, mut number) = (0, 0);
        for op in ops {
            let drop = |_, packet: Sent| lost += packet.left;
            match op {
                Op::Push { flow, left, ect } => {
                    number += 1;
                    pushed += left;
                    let packet = Sent { ect, ..sent(flow, number, left) };
                    queue.push(packet, (flow as usize % 12, flow), now);
                }
                Op::Pop => {
                    let next = queue.head(Params::default(), now, drop).cloned();
                    let packet = queue.pop();
                    prop_assert_eq!(&next, &packet);
                    if let Some(packet) = packet {
                        let latest = &mut latest[packet.flow as usize];
                        prop_assert!(packet.number >= *latest, "reordered");
                        *latest = packet.number;
                        popped += packet.left;
                        prop_assert!(packet.ect || !packet.marked);
                    }
                }
                Op::Cut => {
                    queue.head(Params::default(), now, drop);
                    if let Some(part) = queue.cut_head(|head| head.cut(3)) {
                        latest[part.flow as usize] = part.number;
                        popped += part.left;
                    }
                }
                Op::DropFromLongest => {
                    let some = !queue.is_empty();
                    prop_assert_eq!(queue.drop_from_longest(drop), some);
                }
                Op::SignalLongest => queue.signal_longest(drop),
                Op::Expire { age_ms } => {
                    let before = now.saturating_sub(age_ms * MS);
                    queue.expire(before, drop);
                    prop_assert!(queue.oldest_ns().is_none_or(|oldest| oldest >= before));
                }
                Op::Wait { ms } => now += ms * MS,
            }
            let left = pushed - popped - lost;
            prop_assert_eq!(queue.bytes(), left * 1000);
            prop_assert_eq!(queue.units(), left as usize);
            prop_assert_eq!(queue.is_empty(), left == 0);
        }
        let rest: u64 = queue.drain().map(|packet| packet.left).sum();
        prop_assert_eq!(pushed, popped + lost + rest);
        prop_assert!(queue.is_empty() && queue.oldest_ns().is_none() && queue.pop().is_none());
    }

    /// No flow with a constant backlog gets more than a packet ahead of another.
    #[test]
    fn eq_2_flows_share_by_bytes(sizes in prop::collection::vec(1..45_u64, 2..8)) {
        let mut queue = FairQueue::default();
        let params = Params { target_ns: u64::MAX, ..Params::default() };
        let mut got = vec![0; sizes.len()];
        let mut queued = vec![0; sizes.len()];
        for _ in 0..4000 {
            for (flow, left) in sizes.iter().enumerate() {
                while queued[flow] < 8 {
                    queued[flow] += 1;
                    queue.push(sent(flow as u32, 0, *left), (0, flow as u32), 0);
                }
            }
            queue.head(params, 0, |_, _| ());
            let packet = queue.pop().unwrap();
            queued[packet.flow as usize] -= 1;
            got[packet.flow as usize] += packet.bytes();
        }
        let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
        prop_assert!(most - least <= 2 * 45_000 + 2 * 1514, "{got:?}");
    }
}

/// Returns the bytes that each of two senders gets: the first has a hundred flows, the second one.
fn senders_share(left: [u64; 2]) -> [u64; 2] {
    let mut queue = FairQueue::default();
    let params = Params {
        target_ns: u64::MAX,
        ..Params::default()
    };
    let mut got = [0; 2];
    for number in 0..4000 {
        queue.push(sent(0, number, left[0]), (0, number as u32 % 100), 0);
        queue.push(sent(1, number, left[1]), (1, 0), 0);
        queue.head(params, 0, |_, _| ());
        let packet = queue.pop().unwrap();
        got[packet.flow as usize] += packet.bytes();
    }
    got
}

#[test]
fn eq_2_senders_share_equally_despite_flow_counts() {
    for left in [[1, 1], [1, 40], [40, 1]] {
        let [many, one] = senders_share(left);
        assert!(many.abs_diff(one) <= 3 * 40_000, "{left:?}: {many} {one}");
    }
}

#[test]
fn eq_2_a_new_sender_passes_a_flood() {
    let mut queue = FairQueue::default();
    (0..1000).for_each(|number| queue.push(sent(1, number, 1), (1, number as u32), 0));
    queue.head(Params::default(), 0, |_, _| ());
    queue.pop().unwrap();
    queue.push(sent(2, 0, 1), (2, 7), 0);
    let mut flows = Vec::new();
    for _ in 0..3 {
        queue.head(Params::default(), 0, |_, _| ());
        flows.push(queue.pop().unwrap().flow);
    }
    assert!(flows.contains(&2), "{flows:?}");
}

#[test]
fn state_of_idle_senders_is_removed() {
    let idle = senders::IDLE_SENDERS;
    let mut queue = FairQueue::default();
    let mut most = 0;
    for sender in 0..500 {
        queue.push(sent(0, 0, 1), (sender, 0), 0);
        most = most.max(queue.senders.len());
        queue.head(Params::default(), 0, |_, _| ());
        queue.pop().unwrap();
    }
    assert!(most <= idle + 2, "{most}");
    // The packets of all senders except the last expire.
    for sender in 0..500 {
        queue.push(sent(0, 0, 1), (sender, 0), sender as u64);
    }
    queue.expire(499, |_, _| ());
    assert_eq!((queue.packets(), queue.senders.len()), (1, 1));
    for sender in 0..500 {
        queue.push(sent(0, 0, 1), (sender, 0), 0);
        queue.drop_from_longest(|_, _| ());
        assert!(queue.senders.len() <= idle + 3, "{}", queue.senders.len());
    }
    queue.drain().for_each(drop);
    assert_eq!(queue.senders.len(), 0);
}

/// A sender of one aggregate at a time empties before each of its turns.
#[test]
fn eq_2_an_aggregate_at_a_time_gets_no_more() {
    for place in [(0, 1), (1, 0)] {
        let params = Params {
            target_ns: u64::MAX,
            ..Params::default()
        };
        let mut queue = FairQueue::default();
        let mut got = [0; 2];
        let mut pause = 0;
        for number in 0..20_000 {
            queue.push(sent(0, number, 1), (0, 0), 0);
            if pause == 3 {
                queue.push(sent(1, number, 44), place, 0);
            }
            queue.head(params, 0, |_, _| ());
            let packet = queue.pop().unwrap();
            pause = if packet.flow == 1 { 0 } else { pause + 1 };
            got[packet.flow as usize] += packet.bytes();
        }
        let [backlog, aggregates] = got;
        assert!(
            aggregates.abs_diff(backlog) < backlog / 10,
            "{place:?}: {got:?}"
        );
    }
}

#[test]
fn eq_2_a_sparse_flow_passes_a_standing_queue() {
    let mut queue = FairQueue::default();
    (0..100).for_each(|number| queue.push(sent(1, number, 1), (0, 1), 0));
    queue.head(Params::default(), 0, |_, _| ());
    queue.pop().unwrap();
    queue.head(Params::default(), 0, |_, _| ());
    queue.push(sent(2, 0, 1), (0, 2), 0);
    let mut flows = Vec::new();
    for _ in 0..4 {
        queue.head(Params::default(), 0, |_, _| ());
        flows.push(queue.pop().unwrap().flow);
    }
    assert!(flows.contains(&2), "{flows:?}");
}

#[test]
fn eq_3_a_marked_packet_is_not_dropped() {
    for ect in [true, false] {
        let mut queue = FairQueue::default();
        (0..50).for_each(|number| {
            queue.push(
                Sent {
                    ect,
                    ..sent(1, number, 2)
                },
                (0, 1),
                0,
            )
        });
        let (mut lost, mut marked) = (0, 0);
        for now in 0..50 {
            queue.head(Params::default(), (100 + 10 * now) * MS, |cause, packet| {
                assert_eq!(
                    (cause, packet.left),
                    (QueueDropReason::Codel, 1),
                    "one packet of two"
                );
                lost += 1;
            });
            marked += u64::from(queue.pop().unwrap().marked);
        }
        assert_eq!((lost > 3, marked > 3), (!ect, ect));
        assert_eq!(queue.marked(), marked);
    }
}

#[test]
fn eq_8_the_sender_with_the_most_memory_pays() {
    let mut queue = FairQueue::default();
    (0..3).for_each(|number| queue.push(sent(1, number, 3), (1, 1), 0));
    (0..10).for_each(|number| queue.push(sent(2, number, 1), (2, number as u32), 0));
    let mut dropped = Vec::new();
    for _ in 0..3 {
        queue.drop_from_longest(|_, packet| dropped.push(packet.flow));
    }
    assert_eq!(dropped, [2, 2, 1], "10 and 9 units against 9, then 8");
}

#[test]
fn eq_1_full_queue_drops_from_the_longest_flow() {
    let mut queue = FairQueue::default();
    queue.push(sent(1, 1, 1), (0, 1), 0);
    (0..9).for_each(|number| queue.push(sent(2, number, 1), (0, 2), 0));
    let mut dropped = Vec::new();
    for _ in 0..8 {
        queue.drop_from_longest(|cause, packet| {
            assert_eq!(cause, QueueDropReason::Full);
            dropped.push((packet.flow, packet.number));
        });
    }
    assert_eq!(
        dropped,
        (0..8).map(|number| (2, number)).collect::<Vec<_>>()
    );
}
