//! Compares the engine with a slow, simple model of values and lists. LR-1.

use crate::common::frame_of;
use crate::packets::{Tcp, timestamp};
use crate::rig::{by_flow, payload_of, wide, wire};
use net::lro::{Flush, Lro, Settings};
use net::packet::flags::{ACK, CWR, FIN, PSH, RST, SYN, URG};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SEGMENTS: usize = 6;

/// Steps of a test.
#[derive(Clone, Debug)]
enum Op {
    Packet(usize, Change),
    Poll,
    Expire,
    Wait(u64),
    Drain,
}

/// Difference of a packet from the one that continues its flow.
#[derive(Clone, Debug)]
enum Change {
    Nothing,
    Payload(usize),
    Flag(u8),
    Skip(u32),
    Again,
    Timestamp,
    Acknowledgement,
    Window,
    Ttl,
    Tos,
    Id(u16),
    FixedId,
    Options,
    Fragment,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        12 => Just(Change::Nothing),
        1 => (0usize..150).prop_map(Change::Payload),
        2 => prop::sample::select(vec![PSH, FIN, SYN, RST, URG, CWR, 0x40]).prop_map(Change::Flag),
        1 => (1u32..300).prop_map(Change::Skip),
        1 => Just(Change::Again),
        1 => Just(Change::Timestamp),
        1 => Just(Change::Acknowledgement),
        1 => Just(Change::Window),
        1 => Just(Change::Ttl),
        1 => Just(Change::Tos),
        1 => (0u16..5).prop_map(Change::Id),
        1 => Just(Change::FixedId),
        1 => Just(Change::Options),
        1 => Just(Change::Fragment),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (0usize..4, change()).prop_map(|(flow, change)| Op::Packet(flow, change)),
        3 => Just(Op::Poll),
        1 => Just(Op::Expire),
        2 => (0u64..60).prop_map(Op::Wait),
        1 => Just(Op::Drain),
    ]
}

/// Source of the packets that continue each flow.
struct Sender {
    flows: Vec<Tcp>,
}

impl Sender {
    fn new() -> Self {
        let flows = (0..4)
            .map(|n| {
                Tcp::of(n % 2 == 1, u32::MAX - 500, 100).with(|p| {
                    p.host = n + 1;
                    p.tags = usize::from(n == 3);
                    p.options = timestamp(1, 1);
                })
            })
            .collect();
        Self { flows }
    }

    fn send(&mut self, flow: usize, change: &Change) -> Tcp {
        let next = &mut self.flows[flow];
        let mut packet = next.clone();
        match change {
            Change::Nothing => {}
            Change::Payload(len) => packet.payload = vec![3; *len],
            Change::Flag(flag) => packet.flags |= flag,
            Change::Skip(bytes) => packet.sequence = packet.sequence.wrapping_add(*bytes),
            Change::Again => packet.sequence = packet.sequence.wrapping_sub(100),
            Change::Timestamp => packet.options = timestamp(2, u32::from(packet.id)),
            Change::Acknowledgement => packet.acknowledgement += 10,
            Change::Window => packet.window ^= 1,
            Change::Ttl => packet.ttl ^= 1,
            Change::Tos => packet.tos ^= 3,
            Change::Id(step) => packet.id = packet.id.wrapping_add(*step),
            Change::FixedId => packet.id = packet.id.wrapping_sub(1),
            Change::Options => packet.options = vec![1; 4],
            Change::Fragment if packet.v6 => packet.extensions = vec![(44, vec![0; 6])],
            Change::Fragment => packet.fragment = 0x2000,
        }
        *next = packet.clone();
        let len = packet.payload.len() as u32;
        next.sequence = packet.sequence.wrapping_add(len);
        next.id = packet.id.wrapping_add(1);
        next.flags = ACK;
        next.fragment = 0x4000;
        next.extensions.clear();
        next.payload = vec![7; 100];
        next.options = timestamp(1, 1);
        packet
    }
}

/// Held packets, and the arrival of the first one.
type Held = BTreeMap<usize, (u64, Vec<Tcp>)>;

struct Model {
    flush: Flush,
    held: Held,
    polls: u64,
    /// Every flow's delivered packets, in groups.
    gone: BTreeMap<usize, Vec<Vec<Tcp>>>,
}

impl Model {
    fn flush(&mut self, flow: usize) {
        if let Some((_, packets)) = self.held.remove(&flow) {
            self.gone.entry(flow).or_default().push(packets);
        }
    }

    fn flush_all(&mut self) {
        for flow in 0..4 {
            self.flush(flow);
        }
    }

    fn packet(&mut self, now: u64, flow: usize, packet: Tcp) {
        let held = self
            .held
            .get_mut(&flow)
            .filter(|held| follows(&held.1, &packet));
        if let Some((_, packets)) = held {
            let short = packet.payload.len() < packets[0].payload.len();
            let last = short || packet.flags & (FIN | PSH) != 0;
            packets.push(packet);
            if last || packets.len() == SEGMENTS {
                self.flush(flow);
            }
            return;
        }
        self.flush(flow);
        if takes_part(&packet) && packet.flags & (FIN | PSH) == 0 {
            self.held.insert(flow, (now, vec![packet]));
        } else {
            self.gone.entry(flow).or_default().push(vec![packet]);
        }
    }

    fn end_of_poll(&mut self, now: u64) {
        self.polls += 1;
        match self.flush {
            Flush::Poll => self.flush_all(),
            Flush::Polls(n) if self.polls.is_multiple_of(n.into()) => self.flush_all(),
            _ => self.expire(now),
        }
    }

    /// Flushes due aggregates. Times in this test are further apart than the engine's ticks.
    fn expire(&mut self, now: u64) {
        let wait = match self.flush {
            Flush::After { us } => u64::from(us),
            _ => 200,
        };
        for flow in 0..4 {
            if self
                .held
                .get(&flow)
                .is_some_and(|held| now >= held.0 + wait)
            {
                self.flush(flow);
            }
        }
    }
}

fn takes_part(packet: &Tcp) -> bool {
    let whole = packet.fragment & 0x3fff == 0 && packet.extensions.is_empty();
    whole && packet.flags & (SYN | RST | URG) == 0 && !packet.payload.is_empty()
}

fn follows(packets: &[Tcp], packet: &Tcp) -> bool {
    let (first, last) = (&packets[0], packets.last().unwrap());
    let end = last.sequence.wrapping_add(last.payload.len() as u32);
    let steps: Vec<u16> = packets
        .iter()
        .chain([packet])
        .zip(packets.iter().skip(1).chain([packet]))
        .map(|(a, b)| b.id.wrapping_sub(a.id))
        .take(packets.len())
        .collect();
    let ids =
        packet.v6 || steps.iter().all(|step| *step == 1) || steps.iter().all(|step| *step == 0);
    let flags = !(FIN | PSH | CWR);
    let fields = |p: &Tcp| {
        let ip = (p.tos, p.ttl, p.fragment, p.label);
        let tcp = (
            p.acknowledgement,
            p.window,
            p.urgent,
            p.reserved,
            p.flags & flags,
        );
        (ip, tcp, p.options.clone())
    };
    takes_part(packet)
        && packet.sequence == end
        && packet.payload.len() <= first.payload.len()
        && packet.flags & CWR == 0
        && ids
        && fields(first) == fields(packet)
}

fn run(flush: Flush, ops: &[Op]) {
    let settings = Settings {
        flush,
        segments: SEGMENTS,
        ..wide()
    };
    let mut lro = Lro::new(settings, 99);
    let mut model = Model {
        flush,
        held: Held::new(),
        polls: 0,
        gone: BTreeMap::new(),
    };
    let mut sender = Sender::new();
    // In microseconds, between the ticks of the engine's wheel.
    let mut now = 1000;
    let (mut batch, mut out, mut sent) = (Vec::new(), Vec::new(), Vec::new());
    for op in ops.iter().chain([&Op::Poll, &Op::Drain]) {
        match op {
            Op::Packet(flow, change) => {
                let packet = sender.send(*flow, change);
                let bytes = packet.bytes();
                batch.push(frame_of(&bytes, &[]));
                sent.push(bytes);
                model.packet(now, *flow, packet);
            }
            // All packets of a poll arrive at the same time, so time passes only while the batch is
            // empty.
            Op::Poll => {
                lro.poll(now * 1000, &mut batch, &mut out);
                model.end_of_poll(now);
            }
            Op::Wait(us) if batch.is_empty() => now += us * 10,
            Op::Expire if batch.is_empty() => {
                lro.expire(now * 1000, &mut out);
                model.expire(now);
            }
            Op::Drain if batch.is_empty() => {
                lro.drain(now * 1000, &mut out);
                model.flush_all();
            }
            Op::Wait(_) | Op::Expire | Op::Drain => {}
        }
    }
    assert_eq!(lro.held(), 0);
    assert_eq!(by_flow(&sent), by_flow(&wire(&out)));
    let mut sizes: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
    for frame in &out {
        let bytes = frame.to_vec().unwrap();
        // The last byte of the source address, after the tag, if any.
        let at = if bytes[12] == 0x81 { 4 } else { 0 };
        let host = bytes[at + if bytes[at + 12] == 8 { 29 } else { 37 }];
        let size = payload_of(frame).unwrap();
        sizes.entry(host).or_default().push(size);
    }
    let expected: BTreeMap<u8, Vec<usize>> = model
        .gone
        .iter()
        .map(|(flow, groups)| {
            let sizes = groups
                .iter()
                .map(|group| group.iter().map(|p| p.payload.len()).sum());
            (*flow as u8 + 1, sizes.collect())
        })
        .collect();
    assert_eq!(sizes, expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_matches_the_model(ops in prop::collection::vec(op(), 0..120)) {
        run(Flush::Poll, &ops);
        run(Flush::Polls(3), &ops);
        run(Flush::After { us: 100 }, &ops);
    }
}
