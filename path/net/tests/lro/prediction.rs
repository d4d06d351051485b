//! Compares header prediction with the slow path, which evaluates the rules: the same packets in
//! one piece, and in two pieces, which are never predicted. LR-17.

use crate::common::frame_of;
use crate::packets::{Tcp, timestamp};
use crate::rig::wide;
use net::lro::{AggregateForm, Flush, Lro, LroCounters, MergeRules, Psh, Settings};
use net::packet::checksum::Sum;
use net::packet::flags::{ACK, CWR, PSH};
use nic::{Checksum, Frame, Gso, GsoKind, Offload};
use proptest::prelude::*;

/// Deviation of a packet from its prediction.
#[derive(Clone, Debug)]
enum Change {
    Nothing,
    /// A flipped bit of the headers, given as a share of their length, and whether the checksums
    /// match the changed packet.
    Bit(u16, bool),
    Payload(usize),
    /// Appends this many bytes behind the end that the IP header claims.
    Padding(usize),
    Flag(u8),
    Gso,
    Checksum(u8),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        16 => Just(Change::Nothing),
        3 => (any::<u16>(), any::<bool>()).prop_map(|(at, right)| Change::Bit(at, right)),
        1 => (1usize..150).prop_map(Change::Payload),
        1 => (1usize..4).prop_map(Change::Padding),
        1 => prop::sample::select(vec![PSH, CWR]).prop_map(Change::Flag),
        1 => Just(Change::Gso),
        1 => (0u8..3).prop_map(Change::Checksum),
    ]
}

#[derive(Clone, Debug)]
struct Plan {
    v6: bool,
    tags: usize,
    timestamps: bool,
    first_flags: u8,
    id_step: u16,
    /// 0: unknown, 1: blank, 2: valid.
    checksum: u8,
    changes: Vec<Change>,
    /// Packets per poll.
    batch: usize,
}

fn plan() -> impl Strategy<Value = Plan> {
    let stream = (any::<bool>(), 0usize..3, any::<bool>());
    let first = (
        prop::sample::select(vec![0, 0, 0, CWR, PSH]),
        0u16..3,
        0u8..3,
    );
    let changes = prop::collection::vec(change(), 2..40);
    (stream, first, changes, 1usize..20).prop_map(|(stream, first, changes, batch)| Plan {
        v6: stream.0,
        tags: stream.1,
        timestamps: stream.2,
        first_flags: first.0,
        id_step: first.1,
        checksum: first.2,
        changes,
        batch,
    })
}

/// Corrects the checksums of a packet, with its headers positioned as in `like`, or leaves TCP's
/// blank.
fn checksums(bytes: &mut [u8], like: &Tcp, blank: bool) {
    let (ip, tcp) = (like.network_at(), like.tcp_at());
    let addresses = if like.v6 {
        ip + 8..ip + 40
    } else {
        ip + 12..ip + 20
    };
    if !like.v6 {
        bytes[ip + 10..ip + 12].fill(0);
        let mut sum = Sum::default();
        sum.add_bytes(&bytes[ip..ip + 20]);
        bytes[ip + 10..ip + 12].copy_from_slice(&(!sum.folded()).to_be_bytes());
    }
    bytes[tcp + 16..tcp + 18].fill(0);
    let mut sum = Sum::new(6 + (bytes.len() - tcp) as u32);
    sum.add_bytes(&bytes[addresses]);
    if blank {
        bytes[tcp + 16..tcp + 18].copy_from_slice(&sum.folded().to_be_bytes());
        return;
    }
    sum.add_bytes(&bytes[tcp..]);
    bytes[tcp + 16..tcp + 18].copy_from_slice(&sum.finish().to_be_bytes());
}

/// Returns the packets, and the state of their checksums.
fn packets(plan: &Plan) -> Vec<(Vec<u8>, Offload)> {
    let mut next = Tcp::of(plan.v6, u32::MAX - 700, 100).with(|p| {
        p.tags = plan.tags;
        p.flags = ACK | plan.first_flags;
        p.id = 0xfff8;
        if plan.timestamps {
            p.options = timestamp(1, 1);
        }
    });
    plan.changes
        .iter()
        .map(|change| {
            let mut packet = next.clone();
            let mut state = plan.checksum;
            match change {
                Change::Payload(len) => packet.payload = vec![7; *len],
                Change::Flag(flag) => packet.flags |= flag,
                Change::Checksum(other) => state = *other,
                _ => {}
            }
            let mut bytes = packet.bytes();
            let mut right = true;
            if let Change::Bit(at, repaired) = change {
                let bits = (packet.tcp_at() + 20 + packet.options.len()) * 8;
                let bit = usize::from(*at) % bits;
                bytes[bit / 8] ^= 1 << (bit % 8);
                right = *repaired;
            }
            if right {
                checksums(&mut bytes, &packet, state == 1);
            }
            if let Change::Padding(count) = change {
                bytes.extend(vec![0; *count]);
            }
            let checksum = match state {
                0 => Checksum::Unknown,
                1 => Checksum::Blank {
                    start: packet.tcp_at() as u16,
                    offset: 16,
                },
                _ => Checksum::Valid,
            };
            let gso = matches!(change, Change::Gso).then_some(Gso {
                kind: if plan.v6 {
                    GsoKind::Tcp6
                } else {
                    GsoKind::Tcp4
                },
                size: 50,
            });
            let len = packet.payload.len() as u32;
            next.sequence = next.sequence.wrapping_add(len);
            next.id = next.id.wrapping_add(plan.id_step);
            next.flags = ACK | plan.first_flags & PSH;
            (bytes, Offload { checksum, gso })
        })
        .collect()
}

type Outcome = (Vec<(Vec<u8>, Offload, bool)>, LroCounters, usize);

/// Returns the output, and the number of pieces held after the last poll.
fn outcome(settings: Settings, plan: &Plan, cuts: &[usize]) -> Outcome {
    let mut lro = Lro::new(settings, 3);
    let (mut frames, mut out) = (Vec::new(), Vec::new());
    for (round, batch) in packets(plan).chunks(plan.batch).enumerate() {
        frames.extend(batch.iter().map(|(bytes, offload)| {
            let mut frame = frame_of(bytes, cuts);
            frame.offload = *offload;
            frame
        }));
        lro.poll(round as u64 * 10_000, &mut frames, &mut out);
    }
    let held = lro.held();
    lro.drain(1 << 30, &mut out);
    assert_eq!(lro.held(), 0);
    let contents = |frame: &Frame| (frame.to_vec().unwrap(), frame.offload, frame.fixed_id);
    (
        out.iter().map(contents).collect(),
        lro.counters().clone(),
        held,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn predicted_packet_matches_the_slow_path(plan in plan()) {
        for rules in [MergeRules::Gro, MergeRules::Lro] {
            for (psh, form, flush, bytes) in [
                (Psh::Flush, AggregateForm::Skb, Flush::Polls(u32::MAX), 65_535),
                (Psh::Merge, AggregateForm::Skb, Flush::Adaptive, 1200),
                (Psh::Merge, AggregateForm::Page, Flush::After { us: 25 }, 65_535),
            ] {
                let settings = Settings { rules, psh, form, flush, bytes, segments: 9, ..wide() };
                let predicted = outcome(settings, &plan, &[]);
                // A packet in two pieces is never predicted.
                let slow = outcome(settings, &plan, &[20]);
                prop_assert_eq!(&predicted.0, &slow.0);
                prop_assert_eq!(predicted.1, slow.1);
                if form == AggregateForm::Skb {
                    prop_assert!(predicted.2 <= slow.2 && predicted.2 * 2 >= slow.2);
                }
            }
        }
    }
}
