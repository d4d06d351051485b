//! Properties over random traces: `segment(merge(P)) == P`, order within flows, no loss or
//! duplication, buffers conserved, under any sequence of policies. LR-1 … LR-3.

use crate::common::area_of;
use crate::packets::{Tcp, timestamp};
use crate::rig::{by_flow, wide, wire};
use net::lro::{AggregateForm, Flush, Lro, MergeRules, Psh, Settings};
use net::packet::checksum::{finish, fold};
use net::packet::{Network, Packet, Transport};
use nic::{BufferId, Checksum, Frame, Piece};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// One packet of a random trace.
#[derive(Clone, Debug)]
struct Sent {
    flow: usize,
    /// Its deviation; most values mean none.
    kind: u8,
    value: u8,
    /// Ends of its pieces.
    cuts: Vec<usize>,
    checksum: u8,
}

#[derive(Clone, Debug)]
enum Op {
    Send(Sent),
    Poll(u64),
    Expire(u64),
    Relieve(usize),
    Set(u8),
    Drain,
}

fn op() -> impl Strategy<Value = Op> {
    let cuts = prop::collection::vec(1usize..300, 0..3);
    let sent = (0usize..5, any::<u8>(), any::<u8>(), cuts, 0u8..6);
    prop_oneof![
        16 => sent.prop_map(|(flow, kind, value, cuts, checksum)| {
            Op::Send(Sent { flow, kind, value, cuts, checksum })
        }),
        3 => (0u64..90).prop_map(Op::Poll),
        1 => (0u64..90).prop_map(Op::Expire),
        1 => (0usize..9).prop_map(Op::Relieve),
        1 => any::<u8>().prop_map(Op::Set),
        1 => Just(Op::Drain),
    ]
}

/// Returns the settings with number `n`, which cover every policy and form and a small table.
fn settings(rules: MergeRules, psh: Psh, n: u8) -> Settings {
    Settings {
        rules,
        psh,
        form: if n & 1 == 0 {
            AggregateForm::Skb
        } else {
            AggregateForm::Page
        },
        flush: match n >> 1 & 3 {
            0 => Flush::Poll,
            1 => Flush::Polls(u32::from(n >> 6)),
            2 => Flush::After { us: 30 },
            _ => Flush::Adaptive,
        },
        flows: if n & 8 == 0 { 2 } else { 1024 },
        segments: if n & 16 == 0 { 5 } else { 64 },
        bytes: if n & 32 == 0 { 700 } else { 70_000 },
        ..wide()
    }
}

fn packet(next: &mut Tcp, sent: &Sent) -> Vec<u8> {
    let mut packet = next.clone();
    let value = sent.value;
    match sent.kind {
        0..=4 => packet.payload.truncate(value.into()),
        5 => packet.payload.extend([9; 20]),
        6..=9 => packet.flags ^= value,
        10 => packet.sequence = packet.sequence.wrapping_add(value.into()),
        11 => packet.sequence = packet.sequence.wrapping_sub(200),
        12 => packet.acknowledgement += u32::from(value),
        13 => packet.options = timestamp(value.into(), 1),
        14 => packet.options = vec![1; usize::from(value % 11) * 4],
        15 => packet.ip_options = vec![1; usize::from(value % 11) * 4],
        16 => packet.extensions = vec![(0, vec![0; 6]), (60, vec![1, 4, 0, 0, 0, value])],
        17 => packet.extensions = vec![(44, vec![0, 0, value, value & 1, 0, 0])],
        18 => packet.fragment ^= u16::from(value) << 8,
        19 => packet.tos = value,
        20 => packet.ttl = value,
        21 => packet.window = value.into(),
        22 => packet.urgent = value.into(),
        23 => packet.id = value.into(),
        24 => packet.reserved = value & 15,
        25 => packet.label = value.into(),
        26 => packet.extensions = vec![(0, vec![0; 14]), (60, vec![0; 62])],
        _ => {}
    }
    let mut bytes = packet.bytes();
    match sent.kind {
        30 => *bytes.last_mut().unwrap() ^= value,
        31 => bytes.extend(vec![0; usize::from(value % 50)]),
        32 => {
            // Not in its addresses, protocol or ports, which would change the flow.
            let behind = packet.tcp_at() + 4;
            let at = behind + usize::from(value) % (bytes.len() - behind);
            bytes[at] ^= 0x55;
        }
        33 => bytes.truncate(usize::from(value)),
        _ => {}
    }
    packet.fragment = 0x4000;
    packet.extensions.clear();
    packet.ip_options.clear();
    packet.flags = 0x10;
    packet.id = packet.id.wrapping_add(1);
    packet.sequence = packet.sequence.wrapping_add(packet.payload.len() as u32);
    packet.payload.resize(200, value);
    *next = packet;
    bytes
}

/// Returns a frame of these bytes, whose checksum is truthfully marked as valid, blank or unknown.
fn frame(bytes: &[u8], sent: &Sent, first: u32) -> Frame {
    let (mut bytes, mut checksum) = (bytes.to_vec(), Checksum::Unknown);
    if let Some((at, pseudo)) = right(&bytes) {
        match sent.checksum {
            0 => checksum = Checksum::Valid,
            1 => {
                bytes[at + 16..at + 18].copy_from_slice(&fold(pseudo).to_be_bytes());
                checksum = Checksum::Blank {
                    start: at as u16,
                    offset: 16,
                };
            }
            _ => {}
        }
    }
    let mut frame = Frame::empty();
    let memory = area_of(&bytes);
    let mut at = 0;
    for (n, cut) in (first..).zip(sent.cuts.iter().chain([&bytes.len()])) {
        let end = (*cut).clamp(at, bytes.len());
        frame.push(Piece {
            span: memory.sub(at, end - at).unwrap(),
            buffer: BufferId(n),
        });
        at = end;
    }
    frame.snapshot().unwrap();
    frame.offload.checksum = checksum;
    frame
}

/// Returns the offset of the TCP header and the sum of its pseudo header if lengths and checksum
/// are valid.
fn right(bytes: &[u8]) -> Option<(usize, u32)> {
    use net::packet::checksum::{Sum, pseudo_v4, pseudo_v6};
    let packet = Packet::parse(bytes).ok()?;
    let Ok(Transport::Tcp(tcp)) = packet.transport(bytes) else {
        return None;
    };
    let len = bytes.len() - tcp.at;
    let (pseudo, end, whole) = match packet.network {
        Network::Ipv4(ip) => (
            pseudo_v4(ip.source, ip.destination, 6, len),
            packet.network_at + ip.total_len,
            !ip.is_fragment(),
        ),
        Network::Ipv6(ip) => (
            pseudo_v6(ip.source, ip.destination, 6, len),
            packet.network_at + 40 + ip.payload_len,
            ip.fragment.is_none() && !ip.routed,
        ),
        _ => return None,
    };
    let mut sum = Sum::new(pseudo);
    sum.add_bytes(&bytes[tcp.at..]);
    let in_snapshot = tcp.at + 18 <= nic::frame::SNAPSHOT_MAX;
    (in_snapshot && whole && end == bytes.len() && sum.folded() == 0xffff)
        .then_some((tcp.at, pseudo))
}

/// Input and output of a run.
struct Trace {
    sent: Vec<Vec<u8>>,
    out: Vec<Frame>,
    buffers: u32,
    lro: Lro,
}

fn play(rules: MergeRules, psh: Psh, ops: &[Op]) -> Trace {
    let mut flows: Vec<_> = (0..5u8)
        .map(|n| {
            Tcp::of(n % 2 == 1, u32::MAX - 300, 200).with(|p| {
                p.host = n + 1;
                p.tags = usize::from(n == 2);
                p.options = if n < 3 { timestamp(1, 1) } else { Vec::new() };
            })
        })
        .collect();
    let mut lro = Lro::new(settings(rules, psh, 0xff), 21);
    let (mut sent, mut batch, mut out, mut buffers) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let mut now = 0;
    for op in ops.iter().chain([&Op::Poll(1), &Op::Drain]) {
        match op {
            Op::Send(packet_) => {
                let bytes = packet(&mut flows[packet_.flow], packet_);
                let frame = frame(&bytes, packet_, buffers);
                buffers += frame.pieces.len() as u32;
                let mut whole = frame.clone();
                finish(&mut whole).unwrap();
                sent.push(whole.to_vec().unwrap());
                batch.push(frame);
            }
            Op::Poll(us) => {
                now += us * 1000;
                lro.poll(now, &mut batch, &mut out);
            }
            Op::Expire(us) => {
                now += us * 1000;
                lro.expire(now, &mut out);
            }
            Op::Relieve(count) => lro.flush_oldest(*count, now, &mut out),
            Op::Set(n) => lro.set(settings(rules, psh, *n)),
            Op::Drain => lro.drain(now, &mut out),
        }
        let pieces: usize = out
            .iter()
            .chain(&batch)
            .map(|frame| frame.pieces.len())
            .sum();
        assert_eq!(
            pieces + lro.held(),
            buffers as usize,
            "a buffer is lost or duplicated"
        );
    }
    assert_eq!((lro.held(), lro.next_due()), (0, None));
    Trace {
        sent,
        out,
        buffers,
        lro,
    }
}

impl Trace {
    /// Checks that every input buffer is output once, and that counters add up.
    fn is_conserved(&self) {
        let mut ids: Vec<_> = self.out.iter().flat_map(|frame| &frame.pieces).collect();
        ids.sort_unstable_by_key(|piece| piece.buffer.0);
        let ids: Vec<_> = ids.iter().map(|piece| piece.buffer.0).collect();
        assert_eq!(ids, (0..self.buffers).collect::<Vec<_>>());
        let counters = self.lro.counters();
        assert_eq!(counters.segments, counters.aggregates + counters.merged);
        let flushed: u64 = counters.reasons().map(|(_, count)| count).sum();
        assert!(flushed <= counters.aggregates);
    }
}

/// Payload bytes by flow.
fn payloads(packets: &[Vec<u8>]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut flows: BTreeMap<_, Vec<u8>> = BTreeMap::new();
    for (key, packets) in by_flow(packets) {
        for bytes in packets {
            let packet = Packet::parse(&bytes);
            let transport = packet.and_then(|packet| packet.transport(&bytes));
            let at = match transport {
                Ok(Transport::Tcp(tcp)) => tcp.payload_at,
                _ => 0,
            };
            flows.entry(key.clone()).or_default().extend(&bytes[at..]);
        }
    }
    flows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn segmentation_undoes_merging(ops in prop::collection::vec(op(), 0..150)) {
        let trace = play(MergeRules::Gro, Psh::Flush, &ops);
        trace.is_conserved();
        prop_assert_eq!(by_flow(&trace.sent), by_flow(&wire(&trace.out)));
    }

    #[test]
    fn nothing_is_lost_or_doubled(
        ops in prop::collection::vec(op(), 0..150),
        merge in any::<bool>(),
    ) {
        let psh = if merge { Psh::Merge } else { Psh::Flush };
        for rules in [MergeRules::Gro, MergeRules::Lro] {
            let trace = play(rules, psh, &ops);
            trace.is_conserved();
            prop_assert_eq!(payloads(&trace.sent), payloads(&wire(&trace.out)));
        }
    }
}
