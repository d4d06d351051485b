//! Compares the bridge with a simple model built from maps. This property test and the fuzz target
//! `bridge` share the harness.

mod common;

use common::{Build, small_frames};
use net::bridge::{
    Bridge, BridgeSettings, DropReason, PortConfig, PortKind, PortPermissions, Verdict,
};
use net::packet::Mac;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const PORTS: usize = 6;
const LEARNED_MAX: usize = 8;
const AGEING_NS: u64 = 1000;

/// Steps of a test.
#[derive(Clone, Debug)]
enum Op {
    AddNic(usize),
    AddGuest(usize, Vec<u8>),
    Remove(usize),
    Wait(u64),
    Frame { port: usize, to: u8, from: u8 },
}

/// Returns one of a few MACs, so that they collide: 0 is all zeros; 200 and above are groups.
fn mac(n: u8) -> Mac {
    match n {
        0 => Mac([0; 6]),
        200.. => Mac([1, 0, 0x5e, 0, 0, n]),
        _ => Mac([2, 0, 0, 0, 0, n]),
    }
}

#[derive(Default)]
struct Model {
    nics: BTreeSet<usize>,
    guests: BTreeMap<usize, Vec<Mac>>,
    bound: BTreeMap<Mac, usize>,
    /// Port and expiry time of the stations that the bridge must know: a subset of those that it
    /// may have learned.
    learned: BTreeMap<Mac, (usize, u64)>,
    drops: BTreeMap<DropReason, u64>,
}

impl Model {
    fn exists(&self, port: usize) -> bool {
        self.nics.contains(&port) || self.guests.contains_key(&port)
    }

    fn add_guest(&mut self, port: usize, macs: &[Mac]) -> bool {
        let unique: BTreeSet<_> = macs.iter().collect();
        let fits = !self.exists(port)
            && !macs.is_empty()
            && unique.len() == macs.len()
            && macs
                .iter()
                .all(|mac| mac.is_station() && !self.bound.contains_key(mac));
        if fits {
            for mac in macs {
                self.bound.insert(*mac, port);
                self.learned.remove(mac);
            }
            self.guests.insert(port, macs.to_vec());
        }
        fits
    }

    fn remove(&mut self, port: usize) -> bool {
        self.bound.retain(|_, at| *at != port);
        self.learned.retain(|_, (at, _)| *at != port);
        self.guests.remove(&port).is_some() | self.nics.remove(&port)
    }

    fn to(ports: Vec<usize>) -> Verdict {
        match ports[..] {
            [] => Verdict::Drop(DropReason::NoPort),
            [port] => Verdict::Unicast(port),
            _ => Verdict::Multiple(ports.into_iter().collect()),
        }
    }

    /// `known` states whether the bridge knows the source afterwards. The bridge may choose which
    /// stations a full table learns.
    fn forward(&mut self, to: Mac, from: Mac, port: usize, now: u64, known: bool) -> Verdict {
        let verdict = self.decide(to, from, port, now, known);
        if let Verdict::Drop(reason) = verdict {
            *self.drops.entry(reason).or_default() += 1;
        }
        verdict
    }

    fn decide(&mut self, to: Mac, from: Mac, port: usize, now: u64, known: bool) -> Verdict {
        if let Some(macs) = self.guests.get(&port) {
            if !macs.contains(&from) {
                return Verdict::Drop(DropReason::ForgedSource);
            }
        } else if self.nics.contains(&port) {
            if !from.is_station() {
                return Verdict::Drop(DropReason::BadSource);
            }
            if self.bound.contains_key(&from) {
                return Verdict::Drop(DropReason::BoundSource);
            }
            if known {
                self.learned.insert(from, (port, now + AGEING_NS));
            }
        } else {
            return Verdict::Drop(DropReason::UnknownPort);
        }
        let nics: Vec<_> = self
            .nics
            .iter()
            .copied()
            .filter(|nic| *nic != port)
            .collect();
        if to.is_group() {
            let guests = self.guests.keys().copied().filter(|guest| *guest != port);
            let mut all: Vec<_> = nics.iter().copied().chain(guests).collect();
            all.sort_unstable();
            return Self::to(all);
        }
        let learned = self.learned.get(&to).filter(|(_, expires)| now < *expires);
        match self.bound.get(&to).or(learned.map(|(at, _)| at)) {
            Some(at) if *at == port => Verdict::Drop(DropReason::SamePort),
            Some(at) => Verdict::Unicast(*at),
            None => Self::to(nics),
        }
    }
}

/// Runs the same steps on the bridge and the model.
fn agree(ops: &[Op], hash_seed: u64) {
    let settings = BridgeSettings {
        learned_max: LEARNED_MAX,
        ageing_ns: AGEING_NS,
        group_pps: u32::MAX,
        group_burst: u32::MAX,
        hash_seed,
        reports_to_all: false,
    };
    let (mut bridge, mut model, mut now) = (Bridge::new(settings), Model::default(), 0u64);
    for op in ops {
        match op {
            Op::AddNic(port) => {
                let fits = !model.exists(*port) && model.nics.insert(*port);
                assert_eq!(bridge.add(*port, &PortConfig::nic()).is_ok(), fits);
            }
            Op::AddGuest(port, macs) => {
                let macs: Vec<_> = macs.iter().map(|n| mac(*n)).collect();
                let fits = model.add_guest(*port, &macs);
                let kind = PortKind::Guest {
                    macs,
                    permissions: PortPermissions::default(),
                };
                let guest = PortConfig {
                    kind,
                    ..PortConfig::nic()
                };
                assert_eq!(bridge.add(*port, &guest).is_ok(), fits);
            }
            Op::Remove(port) => assert_eq!(bridge.remove(*port), model.remove(*port)),
            Op::Wait(ns) => now += ns,
            Op::Frame { port, to, from } => {
                let (to, from) = (mac(*to), mac(*from));
                let live = model
                    .learned
                    .values()
                    .filter(|(_, expires)| now < *expires)
                    .count();
                let was_known = model.learned.get(&from).is_some_and(|(_, end)| now < *end);
                let bytes = Build {
                    source: from,
                    destination: to,
                    ..Build::tcp4(b"")
                }
                .bytes();
                let mut route = Vec::new();
                let mut batch = small_frames(&[&bytes]);
                let is_open = bridge.routes(&mut batch, *port, now, &mut route);
                let verdict = bridge.forward(&bytes, bytes.len(), *port, now);
                if is_open {
                    assert_eq!(verdict, Verdict::Unicast(route[0].into()));
                }
                let known = bridge
                    .stations(now)
                    .any(|station| station.mac == from && !station.bound && station.port == *port);
                // A known station is refreshed.
                let source_counts = model.nics.contains(port)
                    && from.is_station()
                    && !model.bound.contains_key(&from);
                if source_counts && was_known {
                    assert!(known, "a known station was not refreshed");
                }
                // A new station fits a table that was never full.
                if source_counts && model.learned.len() < LEARNED_MAX / 2 {
                    assert!(known, "{live} of {LEARNED_MAX} and no room");
                }
                assert_eq!(
                    verdict,
                    model.forward(to, from, *port, now, known),
                    "{op:?}"
                );
            }
        }
        let mut stations: Vec<_> = bridge
            .stations(now)
            .map(|s| (s.mac, s.port, s.bound))
            .collect();
        stations.sort_unstable();
        let learned = model
            .learned
            .iter()
            .filter(|(_, (_, expires))| now < *expires);
        let learned = learned.map(|(mac, (port, _))| (*mac, *port, false));
        let bound = model.bound.iter().map(|(mac, port)| (*mac, *port, true));
        let mut expected: Vec<_> = learned.chain(bound).collect();
        expected.sort_unstable();
        assert_eq!(stations, expected);
        assert!(stations.iter().filter(|(_, _, bound)| !bound).count() <= LEARNED_MAX);
        for (reason, count) in bridge.drops_total().iter() {
            assert_eq!(
                count,
                model.drops.get(&reason).copied().unwrap_or(0),
                "{reason:?}"
            );
        }
    }
}

fn any_op() -> impl Strategy<Value = Op> {
    // Ports beyond those ever added are unknown.
    let number = || prop_oneof![Just(0u8), 1u8..20, 200u8..203];
    prop_oneof![
        2 => (0..PORTS).prop_map(Op::AddNic),
        2 => (0..PORTS, prop::collection::vec(number(), 0..3))
            .prop_map(|(port, macs)| Op::AddGuest(port, macs)),
        1 => (0..PORTS).prop_map(Op::Remove),
        2 => prop_oneof![0..AGEING_NS, Just(AGEING_NS), 0..1u64 << 40].prop_map(Op::Wait),
        20 => (0..=PORTS, number(), number())
            .prop_map(|(port, to, from)| Op::Frame { port, to, from }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Covers BR-1 … BR-10, BR-12 and BR-17.
    #[test]
    fn the_bridge_matches_the_model(
        ops in prop::collection::vec(any_op(), 1..150),
        hash_seed in any::<u64>(),
    ) {
        agree(&ops, hash_seed);
    }

    #[test]
    fn no_bytes_make_it_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..130),
        build in common::any_build(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        port in 0usize..3,
        len in any::<usize>(),
        now_ns in any::<u64>(),
    ) {
        let mut bridge = Bridge::new(BridgeSettings::default());
        bridge.add(0, &PortConfig::nic()).unwrap();
        bridge.add(1, &PortConfig::guest(common::SRC)).unwrap();
        bridge.forward(&bytes, len, port, now_ns);
        let mut spoilt = build.bytes();
        for (at, value) in flips {
            let at = at.index(spoilt.len());
            spoilt[at] = value;
        }
        bridge.forward(&spoilt, len, port, now_ns);
        let mut hostile = bytes;
        hostile.splice(0..hostile.len().min(12), [common::DST.0, common::SRC.0].concat());
        for ethertype in [[8, 6], [0x86, 0xdd], [0x81, 0], [0, 40]] {
            hostile.splice(12..hostile.len().min(14), ethertype);
            bridge.forward(&hostile, len, 1, now_ns);
        }
    }
}
