//! Measures the cost of the bridge's verdict on a frame, and of segmenting 64 KB into MTU frames.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use net::bridge::{Bridge, BridgeSettings, Direction, PortConfig, Prefix, Rule};
use net::flows::{FlowState, Flows};
use net::packet::Mac;
use net::packet::segment::segment;
use nic::{BufferId, Caps, Frame, Gso, GsoKind, Piece, SmallBatch};
use shmem::Area;
use std::hint::black_box;

const BATCH: usize = 64;

/// Returns the Ethernet, IPv4 and TCP headers of a packet of `len` bytes.
fn header(to: Mac, from: Mac, len: usize) -> Vec<u8> {
    let mut bytes = [to.0, from.0].concat();
    bytes.extend([8, 0, 0x45, 0]);
    bytes.extend(((len - 14) as u16).to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([
        0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0,
    ]);
    bytes
}

fn frame(to: Mac, from: Mac, len: usize) -> Frame {
    let area = Area::anonymous(len).expect("memory");
    area.span().write(&header(to, from, len)).expect("memory");
    Frame::new(
        Piece {
            span: area.span(),
            buffer: BufferId::NONE,
        },
        len,
    )
    .expect("memory")
}

fn guest(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 1, n])
}

fn station(n: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, n])
}

/// Creates a bridge with a NIC and 64 guests. Each guest has these rules.
fn bridge(rules: &[Rule]) -> Bridge {
    let mut bridge = Bridge::new(BridgeSettings {
        hash_seed: 1,
        ..BridgeSettings::default()
    });
    bridge.add(0, &PortConfig::nic()).expect("a port");
    for n in 0..64 {
        let port = PortConfig {
            rules: rules.to_vec(),
            ..PortConfig::guest(guest(n))
        };
        bridge.add(usize::from(n) + 1, &port).expect("a port");
    }
    bridge
}

/// Returns rules that match the packets' addresses but not their ports.
fn unfit(count: u16) -> Vec<Rule> {
    let rule = |port| Rule {
        direction: Some(Direction::Out),
        source: Some(Prefix::new([10, 0, 0, 0].into(), 8)),
        destination_ports: Some(port..=port),
        ..Rule::any(false)
    };
    (1000..1000 + count).map(rule).collect()
}

fn forward(c: &mut Criterion) {
    let (mut plain, mut with_rules) = (bridge(&[]), bridge(&unfit(16)));
    let mut group = c.benchmark_group("bridge");
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut verdicts = Vec::with_capacity(BATCH);
    let mut run = |name: &str, bridge: &mut Bridge, port: usize, mut frames: Vec<Frame>| {
        group.bench_function(name, |b| {
            b.iter(|| {
                verdicts.clear();
                bridge.forward_batch(black_box(&mut frames), port, 1, &mut verdicts);
                black_box(&verdicts);
            });
        });
    };
    let batch = |make: &dyn Fn(u8) -> Frame| (0..BATCH as u8).map(make).collect::<Vec<_>>();
    run(
        "wire-to-one-guest",
        &mut plain,
        0,
        batch(&|_| frame(guest(3), station(1), 64)),
    );
    run(
        "wire-to-one-guest-16-rules",
        &mut with_rules,
        0,
        batch(&|_| frame(guest(3), station(1), 64)),
    );
    run(
        "wire-to-64-guests",
        &mut plain,
        0,
        batch(&|n| frame(guest(n), station(n), 64)),
    );
    run(
        "guest-to-guest",
        &mut plain,
        1,
        batch(&|_| frame(guest(3), guest(0), 64)),
    );
    run(
        "guest-to-wire",
        &mut plain,
        1,
        batch(&|_| frame(station(1), guest(0), 64)),
    );
}

/// Measures the fast path of small frames.
fn route(c: &mut Criterion) {
    let mut bridge = bridge(&[]);
    let area = Area::anonymous(64).expect("memory");
    let span = area.span();
    span.write(&header(guest(3), guest(0), 64)).expect("memory");
    let mut frames = SmallBatch::default();
    (0..BATCH).for_each(|_| frames.push(span).expect("memory"));
    let mut ports = Vec::with_capacity(BATCH);
    let mut group = c.benchmark_group("fast-path");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("guest-to-guest", |b| {
        b.iter(|| {
            assert!(bridge.routes(black_box(&mut frames), 1, 1, &mut ports));
            black_box(&ports);
        });
    });
}

/// Compares a port with a stateful firewall and 4096 flows, 64 of them in a batch, with a port
/// whose only rule matches every frame.
fn stateful(c: &mut Criterion) {
    const FLOWS: u16 = 4096;
    let rule = |state| Rule {
        direction: Some(Direction::In),
        state,
        ..Rule::any(state.is_none())
    };
    let packet = |n: u16, is_reply: bool| {
        let (to, from) = match is_reply {
            false => (guest(3), station(1)),
            true => (station(1), guest(3)),
        };
        let (mut bytes, area) = (header(to, from, 64), Area::anonymous(64));
        let [a, b] = n.to_be_bytes();
        (bytes[34], bytes[35], bytes[23]) = (a, b, 17);
        if is_reply {
            (bytes[29], bytes[33]) = (2, 1);
            bytes[34..38].copy_from_slice(&[0, 80, a, b]);
        }
        let span = area.expect("memory").span();
        span.write(&bytes).expect("memory");
        let buffer = BufferId::NONE;
        Frame::new(Piece { span, buffer }, 64).expect("memory")
    };
    let mut group = c.benchmark_group("flows");
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut verdicts = Vec::with_capacity(usize::from(FLOWS));
    for (name, state) in [
        ("stateless-rule", None),
        ("4096-flows", Some(FlowState::Related)),
    ] {
        let mut bridge = bridge(&[]);
        bridge.set_rules(
            4,
            &[Rule {
                direction: Some(Direction::Out),
                ..rule(state)
            }],
        );
        if state.is_some() {
            let bytes = Flows::bytes(usize::from(2 * FLOWS));
            let memory = Area::anonymous(bytes).expect("memory").span();
            let flows = Flows::new(memory.take(bytes), 1, [3, 5], 0).expect("a table");
            bridge.set_flows(4, Some(flows));
        }
        let mut all: Vec<_> = (0..FLOWS).map(|n| packet(n, false)).collect();
        for (n, request) in (0..FLOWS).zip(&mut all) {
            // Only answered flows may fill more than half of a table.
            let request = std::slice::from_mut(request);
            bridge.forward_batch(request, 0, 1, &mut verdicts);
            bridge.forward_batch(&mut [packet(n, true)], 4, 1, &mut verdicts);
        }
        let mut batches = (0..usize::from(FLOWS) / BATCH).cycle();
        group.bench_function(name, |b| {
            b.iter(|| {
                verdicts.clear();
                let at = batches.next().unwrap_or(0) * BATCH;
                let batch = all.get_mut(at..at + BATCH).unwrap_or_default();
                bridge.forward_batch(black_box(batch), 0, 1, &mut verdicts);
                black_box(&verdicts);
            });
        });
    }
}

fn cut(c: &mut Criterion) {
    let len = 65_535 + 14;
    let mut whole = frame(guest(1), guest(2), len);
    whole.offload.gso = Some(Gso {
        kind: GsoKind::Tcp4,
        size: 1460,
    });
    let mut group = c.benchmark_group("segment-64k");
    group.throughput(Throughput::Bytes(len as u64));
    for (name, checksum) in [("headers-only", true), ("with-checksums", false)] {
        let caps = Caps {
            checksum,
            tso: false,
            max_frame: 1514,
        };
        let mut out = Vec::new();
        group.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                segment(black_box(&whole), caps, &mut out).expect("segments");
                black_box(&out);
            });
        });
    }
}

criterion_group!(benches, forward, route, stateful, cut);
criterion_main!(benches);
