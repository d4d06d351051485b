//! Compares a flow table with a model that keeps the facts of every conversation in a map.

use super::packets::{ACK, CONVERSATION, FIN, RST, SYN, Talk};
use super::{ESTABLISHED, IDENTITY, KEYS, NEW, RELATED, SECOND, memory};
use net::flows::{Classification, Direction, Flows, Subject};
use net::packet::protocol;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Operations on a table.
#[derive(Clone, Debug)]
enum Op {
    Tcp {
        talk: u8,
        direction: bool,
        flags: u8,
        passes: bool,
    },
    Udp {
        talk: u8,
        direction: bool,
        passes: bool,
    },
    Echo {
        talk: u8,
        direction: bool,
        is_request: bool,
    },
    Error {
        talk: u8,
        direction: bool,
        about: u8,
    },
    Wait(u64),
    /// The process dies, and another one adopts the table.
    Adopt,
}

/// Facts about a conversation.
#[derive(Clone, Debug, Default)]
struct Facts {
    by: Option<Direction>,
    answered: bool,
    complete: bool,
    fins: [bool; 2],
    refused: bool,
    reset_by: Option<Direction>,
    continue_flow: bool,
    first: u64,
    last: u64,
}

impl Facts {
    fn is_over(&self) -> bool {
        self.refused || self.complete && (self.reset_by.is_some() || self.fins == [true; 2])
    }

    fn life(&self, is_tcp: bool) -> u64 {
        let streams = self.last - self.first >= 2 * SECOND;
        match (is_tcp, self.answered, self.complete) {
            (true, _, false) => 30,
            (true, ..) if self.reset_by.is_some() => 300,
            (true, ..) if self.fins == [true; 2] => 30,
            (true, ..) if self.fins != [false; 2] => 300,
            (true, ..) => 7440,
            (false, true, _) if streams => 180,
            (false, ..) => 30,
        }
    }

    fn segment(&mut self, direction: Direction, flags: u8, now: u64) {
        let by_initiator = self.by == Some(direction);
        let mut refreshes = true;
        if flags & RST != 0 {
            refreshes = false;
            if !self.complete {
                self.refused = true;
                refreshes = true;
            } else if !self.is_over() {
                (self.reset_by, self.continue_flow) = (Some(direction), false);
                refreshes = true;
            } else if self.reset_by.is_none() {
                refreshes = true;
            }
        } else if let Some(by) = self.reset_by {
            refreshes = false;
            if by != direction {
                self.continue_flow = true;
            } else if self.continue_flow {
                self.reset_by = None;
                refreshes = true;
            }
        } else if self.complete {
            self.fins[usize::from(!by_initiator)] |= flags & FIN != 0 && !self.is_over();
        } else if self.refused {
            // A SYN alone starts a new conversation.
        } else if !self.answered {
            self.answered = !by_initiator && flags & SYN != 0;
        } else if by_initiator && flags & (SYN | ACK) == ACK {
            self.complete = true;
            self.fins[0] = flags & FIN != 0;
        }
        if refreshes {
            self.last = now;
        }
    }
}

/// A second of a timeout: eight ticks of 2^27 ns.
const TICKED_SECOND: u64 = 8 << 27;

#[derive(Default)]
struct Model(BTreeMap<(u8, u8, bool), Facts>);

impl Model {
    fn live(&self, key: (u8, u8, bool), now: u64) -> Option<&Facts> {
        let facts = self.0.get(&key)?;
        let life = facts.life(key.0 == protocol::TCP) * TICKED_SECOND;
        (now - facts.last <= life).then_some(facts)
    }

    fn begin(&mut self, key: (u8, u8, bool), direction: Direction, now: u64) {
        let facts = Facts {
            by: Some(direction),
            first: now,
            last: now,
            ..Facts::default()
        };
        self.0.insert(key, facts);
    }
}

fn any_op() -> impl Strategy<Value = Op> {
    let talk = 0u8..3;
    let flags = prop::sample::select(vec![
        SYN,
        SYN,
        SYN | ACK,
        SYN | ACK,
        ACK,
        ACK,
        ACK | FIN,
        RST,
        RST | ACK,
        0,
        SYN | FIN,
        FIN,
    ]);
    prop_oneof![
        6 => (talk.clone(), any::<bool>(), flags, prop::bool::weighted(0.9))
            .prop_map(|(talk, direction, flags, passes)| Op::Tcp {
                talk,
                direction,
                flags,
                passes,
            }),
        2 => (talk.clone(), any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(talk, direction, passes)| Op::Udp { talk, direction, passes }),
        1 => (talk.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(talk, direction, is_request)| Op::Echo { talk, direction, is_request }),
        1 => (talk, any::<bool>(), prop::sample::select(vec![1u8, 6, 17]))
            .prop_map(|(talk, direction, about)| Op::Error { talk, direction, about }),
        1 => prop::sample::select(vec![1u64, 5, 20, 60, 100, 400, 9000]).prop_map(Op::Wait),
        1 => Just(Op::Adopt),
    ]
}

fn talk(n: u8) -> Talk {
    Talk {
        v6: n == 2,
        port_inside: 1000 + u16::from(n),
        ..CONVERSATION
    }
}

fn direction(out: bool) -> Direction {
    if out { Direction::Out } else { Direction::In }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// FW-1 … FW-5, FW-8, FW-10.
    #[test]
    fn flows_are_those_of_the_model(ops in prop::collection::vec(any_op(), 1..60)) {
        let span = memory(64);
        let mut table = Flows::new(span, IDENTITY, KEYS, 0).unwrap();
        let mut model = Model::default();
        let mut now = 1000 * SECOND;
        for op in ops {
            let (frame, by, passes, key, expected) = match op {
                // No sum of half seconds is within a tick of a timeout.
                Op::Wait(seconds) => {
                    now += seconds * SECOND + SECOND / 2;
                    continue;
                }
                Op::Adopt => {
                    table = Flows::adopt(span, IDENTITY, now).unwrap();
                    continue;
                }
                Op::Tcp { talk: n, direction: by, flags, passes } => {
                    let (by, key) = (direction(by), (protocol::TCP, n, false));
                    let is_syn = flags & (SYN | ACK | RST | FIN) == SYN;
                    let expected = match model.live(key, now) {
                        Some(facts) if facts.is_over() && is_syn => NEW,
                        Some(_) => ESTABLISHED,
                        None if is_syn => NEW,
                        None => Classification::Unknown,
                    };
                    let passes = passes && expected != Classification::Unknown;
                    if passes && expected == NEW {
                        model.begin(key, by, now);
                    } else if passes {
                        model.0.get_mut(&key).unwrap().segment(by, flags, now);
                    }
                    (talk(n).tcp(by, flags), by, passes, key, expected)
                }
                Op::Udp { talk: n, direction: by, passes } => {
                    let (by, key) = (direction(by), (protocol::UDP, n, false));
                    let expected = model.live(key, now).map_or(NEW, |_| ESTABLISHED);
                    if passes && expected == NEW {
                        model.begin(key, by, now);
                    } else if passes {
                        let facts = model.0.get_mut(&key).unwrap();
                        facts.answered |= facts.by != Some(by);
                        facts.last = now;
                    }
                    (talk(n).udp(by), by, passes, key, expected)
                }
                Op::Echo { talk: n, direction: by, is_request } => {
                    let by = direction(by);
                    let asker = if is_request { by } else { by.opposite() };
                    let key = (protocol::ICMP, n, asker == Direction::Out);
                    let expected = match model.live(key, now) {
                        Some(_) => ESTABLISHED,
                        None if is_request => NEW,
                        None => Classification::Unknown,
                    };
                    if expected == NEW {
                        model.begin(key, by, now);
                    } else if expected == ESTABLISHED {
                        let facts = model.0.get_mut(&key).unwrap();
                        facts.answered |= facts.by != Some(by);
                        facts.last = now;
                    }
                    let is_known = expected != Classification::Unknown;
                    (talk(n).echo(by, is_request), by, is_known, key, expected)
                }
                Op::Error { talk: n, direction: by, about } => {
                    let by = direction(by);
                    let v6 = talk(n).v6;
                    let (number, asker) = match about {
                        1 => {
                            let number = if v6 { protocol::ICMPV6 } else { 1 };
                            (number, by.opposite() == Direction::Out)
                        }
                        other => (other, false),
                    };
                    let key = (about, n, asker);
                    let known = model.live(key, now).is_some();
                    let expected = if known { RELATED } else { Classification::Unknown };
                    (talk(n).error(by, number), by, known, key, expected)
                }
            };
            let subject = Subject::of(&frame);
            let lookup = table.classify(by, &subject, now);
            prop_assert_eq!(lookup.classification, expected, "{:?}", key);
            if passes {
                prop_assert_eq!(table.pass(by, &subject, &lookup, frame.len(), now), Ok(()));
            }
        }
    }
}
