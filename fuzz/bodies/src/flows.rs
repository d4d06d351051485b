//! A flow table between a station and others, all of which may be hostile, in memory that an
//! earlier process has left.

use crate::input::Input;
use net::flows::{
    Classification, Direction, FlowPhase, FlowState, FlowStatus, Flows, PlainPacket, Subject,
};
use net::packet::{flags, protocol};
use shmem::{Area, Span};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Number of entries. It is small, so that flows displace each other.
const ENTRIES: usize = 16;
const IDENTITY: u64 = 7;
const KEYS: [u64; 2] = [3, 5];
const SECOND: u64 = 1_000_000_000;
/// Bytes of a frame's headers, with the longest ones first.
const FRAME: usize = 80;

/// A packet between the station inside and another one.
#[derive(Clone, Copy, Debug)]
struct Talk {
    is_tcp: bool,
    v6: bool,
    other: u8,
    port: u16,
    flags: u8,
    direction: Direction,
}

impl Talk {
    fn read(input: &mut Input<'_>) -> Self {
        let bits = input.u8();
        Self {
            is_tcp: bits & 1 != 0,
            v6: bits & 2 != 0,
            direction: if bits & 4 != 0 {
                Direction::Out
            } else {
                Direction::In
            },
            other: bits >> 4,
            port: u16::from(input.u8() % 16),
            flags: input.u8() & 0x3f,
        }
    }

    fn protocol(self) -> u8 {
        match self.is_tcp {
            true => protocol::TCP,
            false => protocol::UDP,
        }
    }

    fn address(self, last: u8) -> IpAddr {
        match self.v6 {
            true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into(),
            false => Ipv4Addr::new(10, 0, 0, last).into(),
        }
    }

    /// Addresses and ports inside and outside.
    fn ends(self) -> [(IpAddr, u16); 2] {
        [
            (self.address(255), 2000 + self.port),
            (self.address(self.other), 443),
        ]
    }

    fn is_of(self, flow: &FlowStatus) -> bool {
        let [(inside, own), (outside, other)] = self.ends();
        flow.protocol == self.protocol()
            && (flow.inside, flow.outside) == (inside, outside)
            && flow.ports == Some((own, other))
    }

    fn frame(self) -> Vec<u8> {
        let [inside, outside] = self.ends();
        let [from, to] = match self.direction {
            Direction::In => [inside, outside],
            Direction::Out => [outside, inside],
        };
        let mut bytes = vec![2; 12];
        match self.v6 {
            true => bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 26, self.protocol(), 64]),
            false => {
                bytes.extend([
                    8,
                    0,
                    0x45,
                    0,
                    0,
                    46,
                    0,
                    1,
                    0x40,
                    0,
                    64,
                    self.protocol(),
                    0,
                    0,
                ]);
            }
        }
        for (address, _) in [from, to] {
            match address {
                IpAddr::V4(v4) => bytes.extend(v4.octets()),
                IpAddr::V6(v6) => bytes.extend(v6.octets()),
            }
        }
        bytes.extend([from.1, to.1].map(u16::to_be_bytes).concat());
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, self.flags]);
        bytes.resize(FRAME, 0);
        bytes
    }

    /// Returns the expected classification of the packet, whose flow is `found`.
    fn expected(self, found: Option<&FlowStatus>) -> Classification {
        let begins = flags::SYN | flags::ACK | flags::RST | flags::FIN;
        let is_syn = self.flags & begins == flags::SYN;
        let is_over =
            |flow: &FlowStatus| matches!(flow.phase, FlowPhase::Closed | FlowPhase::Reset);
        match found {
            Some(flow) if self.is_tcp && is_syn && is_over(flow) => {
                Classification::Is(FlowState::New)
            }
            Some(_) => Classification::Is(FlowState::Established),
            None if self.is_tcp && !is_syn => Classification::Unknown,
            None => Classification::Is(FlowState::New),
        }
    }
}

/// Returns zeroed memory for a table.
fn memory() -> Span {
    thread_local! {
        static MEMORY: Area = Area::anonymous(Flows::bytes(ENTRIES)).expect("memory");
    }
    let span = MEMORY.with(|area| area.span().take(Flows::bytes(ENTRIES)));
    span.fill(0).expect("own memory");
    span
}

fn listed(table: &Flows, now_ns: u64) -> Vec<FlowStatus> {
    table.flows(now_ns).collect()
}

/// Passes packets, waits, and opens the table again as a new process does, after words of its
/// memory have changed. Checks the table against the list of its flows: a packet is established
/// exactly if its flow is in the list; a look-up changes nothing; a packet changes only its own
/// flow, and displaces at most one other, which is neither a connection nor a stream.
pub fn flows(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let memory = memory();
    let mut table = Flows::new(memory, IDENTITY, KEYS, 0).expect("a table");
    let mut now_ns = 1000 * SECOND;
    while !input.is_empty() {
        match input.below(16) {
            0 => now_ns += u64::from(input.u16()) * SECOND / 4,
            1 => {
                let words = memory.len() / 8 - 8;
                let at = 64 + usize::from(input.u16()) % words * 8;
                let word = memory.load_u64(at).expect("own memory");
                let change = input.u64().rotate_left(input.u8().into());
                memory.store_u64(at, word ^ change).expect("own memory");
                table = Flows::adopt(memory, IDENTITY, now_ns).expect("its table");
            }
            2 => {
                let direction = if input.bool() {
                    Direction::In
                } else {
                    Direction::Out
                };
                any_frame(&mut table, direction, input.bytes(FRAME), now_ns);
            }
            _ => packet(&mut table, Talk::read(&mut input), now_ns),
        }
        assert!(listed(&table, now_ns).len() <= ENTRIES);
    }
}

/// A frame of arbitrary bytes, whose flow is unknown.
fn any_frame(table: &mut Flows, direction: Direction, frame: &[u8], now_ns: u64) {
    let before = listed(table, now_ns);
    let subject = Subject::of(frame);
    let seen = table.classify(direction, &subject, now_ns);
    assert_eq!(listed(table, now_ns), before, "a look-up changes nothing");
    if let Some(plain) = PlainPacket::of(frame)
        && table.find_established(direction, &plain, now_ns).is_some()
    {
        assert_eq!(
            seen.classification,
            Classification::Is(FlowState::Established)
        );
    }
    let _ = table.pass(direction, &subject, &seen, frame.len(), now_ns);
}

fn packet(table: &mut Flows, talk: Talk, now_ns: u64) {
    let before = listed(table, now_ns);
    let found = before.iter().find(|flow| talk.is_of(flow));
    let frame = talk.frame();
    let subject = Subject::of(&frame);
    let seen = table.classify(talk.direction, &subject, now_ns);
    assert_eq!(seen.classification, talk.expected(found), "{talk:?}");
    let plain = PlainPacket::of(&frame).expect("a plain packet");
    let place = table.find_established(talk.direction, &plain, now_ns);
    assert_eq!(listed(table, now_ns), before, "a look-up changes nothing");
    if seen.classification == Classification::Unknown {
        assert!(place.is_none());
        return;
    }
    let passed = match place {
        Some(place) => {
            place.count(frame.len(), now_ns);
            Ok(())
        }
        None => table.pass(talk.direction, &subject, &seen, frame.len(), now_ns),
    };
    let after = listed(table, now_ns);
    if passed.is_err() {
        assert!(found.is_none(), "only new flows are refused");
        assert_eq!(after, before);
        return;
    }
    let own = after
        .iter()
        .find(|flow| talk.is_of(flow))
        .expect("its flow");
    let counted = match (found, seen.classification) {
        (Some(flow), Classification::Is(FlowState::Established)) => flow.packets.wrapping_add(1),
        _ => 1,
    };
    assert_eq!(own.packets, counted);
    let lost: Vec<_> = before
        .iter()
        .filter(|flow| !talk.is_of(flow) && !after.contains(flow))
        .collect();
    assert!(lost.len() <= usize::from(found.is_none()), "{lost:?}");
    for flow in lost {
        let gives_way = match flow.phase {
            FlowPhase::Established | FlowPhase::Closing => false,
            FlowPhase::Replied => flow.age_s.saturating_sub(flow.idle_s) <= 3,
            _ => true,
        };
        assert!(gives_way, "{flow:?} is displaced");
    }
}
