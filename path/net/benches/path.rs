//! What a frame costs: the bridge's verdict, and cutting 64 KB into MTU frames.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use net::bridge::{Bridge, BridgeSettings, Port, Prefix, Rule, Way};
use net::packet::Mac;
use net::packet::segment::segment;
use nic::{BufferId, Caps, Frame, Gso, GsoKind, Piece};
use shmem::Area;
use std::hint::black_box;

const BATCH: usize = 64;

/// Ethernet, IPv4 and TCP headers of a packet of `len` bytes.
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

/// A NIC and 64 guests, each with these rules.
fn bridge(rules: &[Rule]) -> Bridge {
    let mut bridge = Bridge::new(BridgeSettings {
        hash_seed: 1,
        ..BridgeSettings::default()
    });
    bridge.add(0, &Port::nic()).expect("a port");
    for n in 0..64 {
        let port = Port {
            rules: rules.to_vec(),
            ..Port::guest(guest(n))
        };
        bridge.add(usize::from(n) + 1, &port).expect("a port");
    }
    bridge
}

/// Rules that fit the packets' addresses, and none of which fits their ports.
fn unfit(count: u16) -> Vec<Rule> {
    let rule = |port| Rule {
        way: Some(Way::Out),
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

criterion_group!(benches, forward, cut);
criterion_main!(benches);
