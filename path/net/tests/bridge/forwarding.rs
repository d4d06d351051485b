//! Forwarding decisions: BR-1 to BR-3, BR-8 to BR-12.

use super::*;
use net::bridge::{MAX_PORTS, Rate, Rule};
use proptest::collection::vec;
use proptest::prelude::*;

/// BR-1: a frame to a guest's MAC is forwarded to that guest alone, from any sender.
#[test]
fn bound_macs_are_reached_from_everywhere() {
    let mut bridge = bridge();
    for (port, from) in [(WIRE, STATION), (WIRE2, OTHER), (B, MAC_B), (ROUTER, MAC_R)] {
        for mac in [MAC_A, MAC_A2] {
            assert_eq!(
                go(&mut bridge, &plain(mac, from), port, 0),
                Verdict::Unicast(A)
            );
        }
    }
    assert_eq!(
        go(&mut bridge, &plain(MAC_B, MAC_A2), A, 0),
        Verdict::Unicast(B)
    );
    // Without ageing.
    assert_eq!(
        go(&mut bridge, &plain(MAC_B, MAC_A), A, u64::MAX - 1),
        Verdict::Unicast(B)
    );
}

/// BR-2: a frame is never forwarded to its ingress port.
#[test]
fn frames_never_return_to_their_port() {
    let mut bridge = bridge();
    assert_eq!(
        go(&mut bridge, &plain(MAC_A2, MAC_A), A, 0),
        dropped(DropReason::SamePort)
    );
    go(&mut bridge, &plain(MAC_A, STATION), WIRE, 0);
    let back = go(&mut bridge, &plain(STATION, OTHER), WIRE, 0);
    assert_eq!(back, dropped(DropReason::SamePort));
}

/// BR-3: a guest sends only from its own MACs.
#[test]
fn guests_cannot_forge_their_source() {
    let mut bridge = bridge();
    for from in [MAC_B, STATION, Mac([0; 6]), ALL, Mac([3, 0, 0, 0, 0, 0xa])] {
        for to in [STATION, MAC_B, ALL] {
            let verdict = go(&mut bridge, &plain(to, from), A, 0);
            assert_eq!(verdict, dropped(DropReason::ForgedSource));
        }
    }
    // The bridge learned nothing from the forged frame, and B still receives its frames.
    assert_eq!(
        go(&mut bridge, &plain(MAC_B, STATION), WIRE, 0),
        Verdict::Unicast(B)
    );
    assert_eq!(bridge.drops(A).unwrap().get(DropReason::ForgedSource), 15);
    for from in [MAC_A, MAC_A2] {
        assert_eq!(
            go(&mut bridge, &plain(MAC_B, from), A, 0),
            Verdict::Unicast(B)
        );
    }
}

/// BR-8: unknown unicast is forwarded only to other NIC ports.
#[test]
fn unknown_unicast_never_floods_to_guests() {
    let mut bridge = bridge();
    assert_eq!(
        go(&mut bridge, &plain(STATION, MAC_A), A, 0),
        set(&[WIRE, WIRE2])
    );
    assert_eq!(
        go(&mut bridge, &plain(STATION, OTHER), WIRE, 0),
        Verdict::Unicast(WIRE2)
    );
    assert_eq!(
        go(&mut bridge, &plain(Mac([0; 6]), MAC_A), A, 0),
        set(&[WIRE, WIRE2])
    );
    bridge.remove(WIRE2);
    assert_eq!(
        go(&mut bridge, &plain(STATION, MAC_A), A, 0),
        Verdict::Unicast(WIRE)
    );
    assert_eq!(
        go(&mut bridge, &plain(MAC_R, OTHER), WIRE, 0),
        Verdict::Unicast(ROUTER)
    );
    let nowhere = dropped(DropReason::NoPort);
    assert_eq!(go(&mut bridge, &plain(STATION, OTHER), WIRE, 0), nowhere);
    bridge.remove(WIRE);
    assert_eq!(go(&mut bridge, &plain(STATION, MAC_A), A, 0), nowhere);
}

/// BR-9: frames to groups are flooded to all other ports, within a budget per ingress port.
#[test]
fn broadcast_has_a_budget_per_port() {
    let mut bridge = bridge();
    let group = Mac([1, 0, 0x5e, 0, 0, 0xfb]);
    for to in [ALL, group, ALL, group, ALL] {
        assert_eq!(
            go(&mut bridge, &plain(to, MAC_A), A, 0),
            set(&[WIRE, WIRE2, B, ROUTER])
        );
    }
    let over = dropped(DropReason::GroupBudget);
    assert_eq!(go(&mut bridge, &plain(ALL, MAC_A), A, 0), over);
    assert_eq!(go(&mut bridge, &plain(group, MAC_A), A, S / 10 - 1), over);
    // Other ports have separate budgets, unicast needs none, and the budget refills at ten per
    // second.
    let from_wire = set(&[WIRE2, A, B, ROUTER]);
    assert_eq!(go(&mut bridge, &plain(ALL, STATION), WIRE, 0), from_wire);
    assert_eq!(
        go(&mut bridge, &plain(MAC_B, MAC_A), A, 0),
        Verdict::Unicast(B)
    );
    let again = go(&mut bridge, &plain(ALL, MAC_A), A, S / 10);
    assert_eq!(again, set(&[WIRE, WIRE2, B, ROUTER]));
    assert_eq!(go(&mut bridge, &plain(ALL, MAC_A), A, S / 10), over);
    assert_eq!(bridge.drops(A).unwrap().get(DropReason::GroupBudget), 3);
}

/// BR-10: reserved group addresses are not forwarded.
#[test]
fn reserved_groups_are_not_forwarded() {
    let mut bridge = bridge();
    for last in 0..=255 {
        for (port, from) in [(WIRE, STATION), (A, MAC_A)] {
            let to = Mac([1, 0x80, 0xc2, 0, 0, last]);
            let reserved = go(&mut bridge, &plain(to, from), port, u64::from(last) * S)
                == dropped(DropReason::ReservedGroup);
            assert_eq!(reserved, last < 16, "{to}");
        }
    }
    for near in [
        [0, 0x80, 0xc2, 0, 0, 0],
        [1, 0x80, 0xc2, 0, 1, 0],
        [1, 0x80, 0xc3, 0, 0, 0],
    ] {
        let verdict = go(&mut bridge, &plain(Mac(near), STATION), WIRE, 1000 * S);
        assert_ne!(verdict, dropped(DropReason::ReservedGroup));
    }
}

/// BR-11: a port's rate limit counts bytes of frames.
#[test]
fn a_ports_rate_is_limited() {
    let mut bridge = bridge();
    let rate = Some(Rate {
        bytes_per_s: 1000,
        burst_bytes: 200,
    });
    bridge
        .add(
            9,
            &PortConfig {
                rate,
                ..PortConfig::guest(STATION)
            },
        )
        .unwrap();
    let bytes = plain(MAC_A, STATION);
    let mut send = |len: usize, now_ns| bridge.forward(&bytes, len, 9, now_ns);
    assert_eq!(send(150, 0), Verdict::Unicast(A));
    assert_eq!(send(51, 0), dropped(DropReason::RateLimit));
    assert_eq!(send(50, 0), Verdict::Unicast(A));
    assert_eq!(send(100, S / 10 - 1), dropped(DropReason::RateLimit));
    assert_eq!(send(100, S / 10), Verdict::Unicast(A));
    // A frame that is dropped for another reason does not use up the rate.
    let forged = plain(MAC_A, MAC_B);
    for _ in 0..10 {
        bridge.forward(&forged, 200, 9, S);
    }
    assert_eq!(bridge.forward(&bytes, 200, 9, S), Verdict::Unicast(A));
}

/// BR-12: invalid Ethernet frames, and frames from ports that do not exist, are dropped.
#[test]
fn runts_and_unknown_ports_are_dropped() {
    let mut bridge = bridge();
    let bytes = plain(MAC_B, MAC_A);
    for len in 0..14 {
        let verdict = go(&mut bridge, &bytes[..len], A, 0);
        assert_eq!(verdict, dropped(DropReason::Runt));
    }
    assert_eq!(go(&mut bridge, &bytes[..14], A, 0), Verdict::Unicast(B));
    for port in [7, 100, MAX_PORTS, usize::MAX] {
        assert_eq!(
            go(&mut bridge, &bytes, port, 0),
            dropped(DropReason::UnknownPort)
        );
    }
    assert_eq!(bridge.drops_total().get(DropReason::UnknownPort), 4);
    assert_eq!(bridge.drops_total().get(DropReason::Runt), 14);
    assert_eq!(bridge.drops(A).unwrap().total(), 14);
    assert_eq!(bridge.drops(7), None);
    assert_eq!(bridge.drops(usize::MAX), None);
}

/// BR-21: the fast path takes batches in which every frame has a guest as source, a known
/// destination, and nothing to count, learn or inspect; it changes no state.
#[test]
fn fast_path_takes_only_plain_batches() {
    let mut bridge = bridge();
    go(&mut bridge, &plain(MAC_A, STATION), WIRE2, 0);
    let counted = bridge.drops_total();
    let (to_b, to_router) = (plain(MAC_B, MAC_A), plain(MAC_R, MAC_A2));
    let to_wire = plain(STATION, MAC_A);
    let mut routes = vec![9];
    let mut directions = small_frames(&[&to_b, &to_router, &to_b, &to_wire]);
    assert!(bridge.routes(&mut directions, A, 1, &mut routes));
    assert_eq!(
        routes.as_slice(),
        [B, ROUTER, B, WIRE2].map(|port| port as u16)
    );

    let mut arp = arp_from(MAC_A, MAC_A, [10, 0, 0, 10]);
    arp[..6].copy_from_slice(&MAC_B.0);
    for (other, port) in [
        (plain(MAC_B, MAC_B), A),
        (plain(MAC_A2, MAC_A), A),
        (plain(ALL, MAC_A), A),
        (plain(Mac([0; 6]), MAC_A), A),
        (plain(OTHER, MAC_A), A),
        (arp, A),
        (to_b.clone(), WIRE),
        (to_b.clone(), 7),
    ] {
        let mut routes = Vec::new();
        let mut batch = small_frames(&[&to_b, &other]);
        assert!(
            !bridge.routes(&mut batch, port, 1, &mut routes),
            "{other:?} at {port}"
        );
    }
    assert_eq!(bridge.drops_total(), counted, "nothing was counted");
    // The station behind the wire has expired.
    assert!(!bridge.routes(&mut directions, A, 301 * S, &mut routes));

    for (port, limits) in [
        (
            A,
            PortConfig {
                rate: Some(Rate {
                    bytes_per_s: 1 << 30,
                    burst_bytes: 1 << 20,
                }),
                ..guest(&[MAC_A], &[])
            },
        ),
        (
            B,
            PortConfig {
                rules: vec![Rule::any(true)],
                ..guest(&[MAC_B], &[])
            },
        ),
    ] {
        let mut bridge = super::bridge();
        assert!(bridge.remove(port));
        bridge.add(port, &limits).unwrap();
        assert!(
            !bridge.routes(&mut small_frames(&[&to_b]), A, 1, &mut routes),
            "{limits:?}"
        );
    }
}

proptest! {
    /// BR-27: small frames from a port without a guard get the verdicts of full ones, and are
    /// counted, limited and learned in the same way.
    #[test]
    fn small_frames_get_the_same_verdicts(
        batches in vec(
            (prop_oneof![Just(WIRE), Just(WIRE2)], vec((0..8_usize, 0..8_usize), 1..20)),
            1..20,
        ),
        has_rate in any::<bool>(),
    ) {
        let macs = [MAC_A, MAC_A2, MAC_B, MAC_R, STATION, OTHER, ALL, Mac([0; 6])];
        let [mut small, mut full] = [(); 2].map(|()| {
            let mut bridge = bridge();
            assert!(bridge.remove(WIRE2));
            let rate = has_rate.then_some(Rate { bytes_per_s: 1 << 20, burst_bytes: 600 });
            bridge.add(WIRE2, &PortConfig { rate, ..PortConfig::nic() }).unwrap();
            bridge
        });
        for (now_ns, (port, batch)) in (0..).step_by(100_000).zip(batches) {
            prop_assert!(small.ignores_packets(port));
            let frame = |(to, from): &(usize, usize)| plain(macs[*to], macs[*from]);
            let bytes: Vec<_> = batch.iter().map(frame).collect();
            let bytes: Vec<_> = bytes.iter().map(Vec::as_slice).collect();
            let mut verdicts = Vec::new();
            small.forward_small(&small_frames(&bytes), port, now_ns, &mut verdicts);
            let forward = |bytes: &&[u8]| full.forward(bytes, bytes.len(), port, now_ns);
            prop_assert_eq!(verdicts, bytes.iter().map(forward).collect::<Vec<_>>());
        }
        prop_assert_eq!(small.drops_total(), full.drops_total());
        let stations = |bridge: &Bridge| {
            let all = bridge.stations(S).map(|station| (station.mac, station.port));
            let mut all: Vec<_> = all.collect();
            all.sort_unstable();
            all
        };
        prop_assert_eq!(stations(&small), stations(&full));
    }
}

/// BR-27: guests' frames, and all frames while any port has rules, are inspected.
#[test]
fn ports_with_guards_or_rules_inspect_packets() {
    let mut bridge = bridge();
    assert!(
        [WIRE, WIRE2]
            .iter()
            .all(|port| bridge.ignores_packets(*port))
    );
    assert!(
        [A, ROUTER, 7, usize::MAX]
            .iter()
            .all(|port| !bridge.ignores_packets(*port))
    );
    assert!(bridge.remove(B));
    let rules = vec![Rule::any(true)];
    let guarded = PortConfig {
        rules,
        ..guest(&[MAC_B], &[])
    };
    bridge.add(B, &guarded).unwrap();
    assert!(!bridge.ignores_packets(WIRE));
}
