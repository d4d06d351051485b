//! Stateful rules, on the bridge (`specs/bridge.md`, BR-25 …).

mod common;

use common::{Build, DST4, DST6, SRC4, SRC6, arp, frame_of, small_frames};
use net::bridge::{
    Bridge, BridgeSettings, Direction, DropReason, PortConfig, Prefix, Rule, Verdict,
};
use net::flows::{FlowState, FlowStatus, Flows};
use net::packet::{Mac, flags, protocol};
use proptest::prelude::*;
use shmem::Area;
use std::net::IpAddr;

const WIRE: usize = 0;
const A: usize = 1;
const B: usize = 2;

const MAC_A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const MAC_B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const STATION: Mac = Mac([0x52, 0x54, 0, 1, 2, 3]);

const DENIED: Verdict = Verdict::Drop(DropReason::FirewallState);

fn flows() -> Flows {
    let memory = Area::anonymous(Flows::bytes(64)).unwrap().span();
    Flows::new(memory.take(Flows::bytes(64)), 1, [3, 5], 0).unwrap()
}

fn inbound(allow: bool) -> Rule {
    Rule {
        direction: Some(Direction::Out),
        state: Some(FlowState::New),
        ..Rule::any(allow)
    }
}

/// Returns a bridge on which guest A has these rules and a flow table.
fn bridge(rules: Vec<Rule>) -> Bridge {
    let mut bridge = Bridge::new(BridgeSettings::default());
    bridge.add(WIRE, &PortConfig::nic()).unwrap();
    let port = PortConfig {
        rules,
        ..PortConfig::guest(MAC_A)
    };
    bridge.add(A, &port).unwrap();
    bridge.add(B, &PortConfig::guest(MAC_B)).unwrap();
    assert!(bridge.set_flows(A, Some(flows())).is_none());
    bridge
}

/// Returns an IPv4 packet of UDP or TCP from port 1000 to port 53, or back.
fn packet(back: bool, from: Mac, to: Mac, tcp: Option<u8>) -> Vec<u8> {
    versioned_packet(false, back, (from, to), tcp)
}

/// Returns an IPv4 or IPv6 packet of UDP or TCP from port 1000 to port 53, or back.
fn versioned_packet(v6: bool, back: bool, (from, to): (Mac, Mac), tcp: Option<u8>) -> Vec<u8> {
    let ports = match back {
        false => [3, 0xe8, 0, 53],
        true => [0, 53, 3, 0xe8],
    };
    let rest = match tcp {
        Some(flags) => vec![0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 9, 9, 0, 0, 0, 0],
        None => vec![0, 16, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7],
    };
    let build = Build {
        source: from,
        destination: to,
        protocol: if tcp.is_some() {
            protocol::TCP
        } else {
            protocol::UDP
        },
        transport: [&ports[..], &rest].concat(),
        v6,
        ..Build::tcp4(&[])
    };
    let mut bytes = build.bytes();
    let (addresses, source, destination) = match v6 {
        false => (26..34, &SRC4[..], &DST4[..]),
        true => (22..54, &SRC6[..], &DST6[..]),
    };
    let ends = match back {
        false => [source, destination],
        true => [destination, source],
    };
    bytes[addresses].copy_from_slice(&ends.concat());
    bytes
}

fn go(bridge: &mut Bridge, bytes: &[u8], port: usize) -> Verdict {
    let mut verdicts = Vec::new();
    let mut frames = [frame_of(bytes, &[])];
    bridge.forward_batch(&mut frames, port, 0, &mut verdicts);
    verdicts.remove(0)
}

/// BR-25: replies to the guest pass; flows that other stations begin do not.
#[test]
fn only_replies_pass_a_stateful_firewall() {
    let mut bridge = bridge(vec![inbound(false)]);
    let request = packet(false, MAC_A, STATION, None);
    let reply = packet(true, STATION, MAC_A, None);
    // Make the bridge learn the station.
    let hello = packet(false, STATION, MAC_B, None);
    assert_eq!(go(&mut bridge, &hello, WIRE), Verdict::Unicast(B));
    assert_eq!(go(&mut bridge, &reply, WIRE), DENIED);
    assert_eq!(bridge.denied_by(&reply, WIRE, 0), Some((A, 0)));
    assert_eq!(go(&mut bridge, &request, A), Verdict::Unicast(WIRE));
    assert_eq!(bridge.denied_by(&reply, WIRE, 0), None);
    assert_eq!(go(&mut bridge, &reply, WIRE), Verdict::Unicast(A));
    assert_eq!(
        go(
            &mut bridge,
            &packet(true, STATION, MAC_A, Some(flags::ACK)),
            WIRE
        ),
        DENIED
    );
    // Stations can still resolve addresses.
    let mut asks = arp(1, STATION.0, DST4, [0; 6], SRC4);
    asks[..6].copy_from_slice(&MAC_A.0);
    assert_eq!(go(&mut bridge, &asks, WIRE), Verdict::Unicast(A));
    let count = bridge.rule_counts(A).next().unwrap();
    assert_eq!(count.frames, 2);
    assert_eq!(
        bridge.drops(WIRE).unwrap().get(DropReason::FirewallState),
        2
    );
    // The other guest has no firewall.
    assert_eq!(
        go(&mut bridge, &packet(true, STATION, MAC_B, None), WIRE),
        Verdict::Unicast(B)
    );
}

/// BR-25: the first matching rule decides: a rule opens a port although a later rule denies new
/// flows, and a deny rule for established flows blocks them.
#[test]
fn rules_match_states_in_their_order() {
    let from = |bits| Rule {
        source: Some(Prefix::new(DST4.into(), bits)),
        ..Rule::any(true)
    };
    let mut open = bridge(vec![from(32), inbound(false)]);
    assert_eq!(
        go(&mut open, &packet(true, STATION, MAC_A, None), WIRE),
        Verdict::Unicast(A)
    );
    assert_eq!(open.flows(A).unwrap().flows(0).count(), 1);

    let no_replies = Rule {
        state: Some(FlowState::Established),
        ..Rule::any(false)
    };
    let mut closed = bridge(vec![no_replies]);
    let request = packet(false, MAC_A, MAC_B, None);
    assert_eq!(go(&mut closed, &request, A), Verdict::Unicast(B));
    assert_eq!(
        go(&mut closed, &packet(true, MAC_B, MAC_A, None), B),
        DENIED
    );
    assert_eq!(go(&mut closed, &request, A), DENIED);
}

/// BR-25: a denied frame begins no flow.
#[test]
fn denied_frames_begin_no_flow() {
    let deny = Rule {
        direction: Some(Direction::In),
        protocol: Some(protocol::UDP),
        ..Rule::any(false)
    };
    let mut bridge = bridge(vec![deny, inbound(false)]);
    let request = packet(false, MAC_A, MAC_B, None);
    assert_eq!(
        go(&mut bridge, &request, A),
        Verdict::Drop(DropReason::Firewall)
    );
    assert_eq!(
        go(&mut bridge, &packet(true, MAC_B, MAC_A, None), B),
        DENIED
    );
    assert_eq!(bridge.flows(A).unwrap().flows(0).count(), 0);
}

/// BR-25: without a flow table, every frame matches the state of a deny rule and none that of an
/// allow rule.
#[test]
fn without_a_table_no_state_allows_a_frame() {
    for (allow, verdict) in [(false, DENIED), (true, Verdict::Drop(DropReason::Firewall))] {
        let mut bridge = bridge(vec![inbound(allow), Rule::any(false)]);
        bridge.set_flows(A, None).unwrap();
        assert_eq!(
            go(&mut bridge, &packet(true, STATION, MAC_A, None), WIRE),
            verdict
        );
    }
}

/// BR-25: flows survive a change of the rules, and are removed with the port.
#[test]
fn flows_outlive_a_change_of_rules() {
    let mut bridge = bridge(vec![inbound(true)]);
    go(&mut bridge, &packet(false, MAC_A, MAC_B, None), A);
    bridge.set_rules(A, &[inbound(false)]);
    assert_eq!(
        go(&mut bridge, &packet(true, MAC_B, MAC_A, None), B),
        Verdict::Unicast(A)
    );
    bridge.remove(A);
    assert!(bridge.flows(A).is_none());
}

/// BR-26: batches of established flows take the fast path, which counts them; all others do not.
#[test]
fn established_flows_stay_on_the_fast_path() {
    for (v6, source) in [(false, SRC4.into()), (true, SRC6.into())] {
        check_fast_path_of_flows(v6, source);
    }
}

/// Checks the fast path for flows from `source`, which is an IPv4 or IPv6 address.
fn check_fast_path_of_flows(v6: bool, source: IpAddr) {
    let mut bridge = bridge(vec![inbound(false)]);
    bridge.set_rules(B, &[inbound(false)]);
    bridge.set_flows(B, Some(flows()));
    let tcp = |back, flags| match back {
        false => versioned_packet(v6, false, (MAC_A, MAC_B), Some(flags)),
        true => versioned_packet(v6, true, (MAC_B, MAC_A), Some(flags)),
    };
    let ssh = Rule {
        state: Some(FlowState::New),
        source: Some(Prefix::new(source, if v6 { 128 } else { 32 })),
        ..Rule::any(true)
    };
    bridge.set_rules(B, &[ssh, inbound(false)]);
    let mut ports = Vec::new();
    let fast = |bridge: &mut Bridge, frames: &[&[u8]], port: usize, ports: &mut Vec<u16>| {
        bridge.has_routes(port) && bridge.routes(&mut small_frames(frames), port, 0, ports)
    };
    let syn = tcp(false, flags::SYN);
    assert!(!fast(&mut bridge, &[&syn], A, &mut ports), "a new flow");
    assert_eq!(go(&mut bridge, &syn, A), Verdict::Unicast(B));
    let answer = tcp(true, flags::SYN | flags::ACK);
    assert_eq!(go(&mut bridge, &answer, B), Verdict::Unicast(A));
    let ack = tcp(false, flags::ACK);
    let packets = |bridge: &Bridge| {
        [A, B].map(|port| bridge.flows(port).unwrap().flows(0).next().unwrap().packets)
    };
    assert_eq!(packets(&bridge), [2, 2]);
    assert!(
        !fast(&mut bridge, &[&ack], A, &mut ports),
        "the handshake's end"
    );
    assert_eq!(go(&mut bridge, &ack, A), Verdict::Unicast(B));
    // A batch that the fast path accepts but that is not sent counts nothing.
    assert!(fast(&mut bridge, &[&ack, &ack], A, &mut ports));
    assert_eq!((ports.as_slice(), packets(&bridge)), (&[2, 2][..], [3, 3]));
    assert!(fast(&mut bridge, &[&ack], A, &mut ports));
    bridge.sent(0);
    assert_eq!(packets(&bridge), [4, 4]);
    let fin = tcp(false, flags::ACK | flags::FIN);
    assert!(
        !fast(&mut bridge, &[&ack, &fin], A, &mut ports),
        "a phase ends"
    );
    let flow = bridge.flows(A).unwrap().flows(0).next().unwrap();
    assert_eq!(flow.phase.name(), "established");
    let other = versioned_packet(v6, false, (MAC_A, MAC_B), None);
    assert!(!fast(&mut bridge, &[&ack, &other], A, &mut ports));
    let cut = &ack[..ack.len() - 1];
    assert!(
        !fast(&mut bridge, &[&ack, cut], A, &mut ports),
        "the TCP header is incomplete"
    );
    // Rules that count established frames or might deny them.
    for rule in [
        Rule::any(true),
        Rule {
            state: Some(FlowState::Established),
            ..Rule::any(false)
        },
    ] {
        bridge.set_rules(B, &[rule]);
        assert!(!fast(&mut bridge, &[&ack], A, &mut ports));
    }
}

/// FW-7: a guest that sends a million SYNs disturbs neither its own connection nor another guest's
/// connection and new flows.
#[test]
fn a_million_syns_disturb_no_answered_flow() {
    let mut bridge = guests(&[inbound(false)]);
    let connect = |bridge: &mut Bridge, guest: usize, mac: Mac| {
        for (back, flags) in [
            (false, flags::SYN),
            (true, flags::SYN | flags::ACK),
            (false, flags::ACK),
        ] {
            let (from, to, port) = match back {
                false => (mac, STATION, guest),
                true => (STATION, mac, WIRE),
            };
            let verdict = go(bridge, &packet(back, from, to, Some(flags)), port);
            assert!(matches!(verdict, Verdict::Unicast(_)), "{verdict:?}");
        }
    };
    connect(&mut bridge, A, MAC_A);
    connect(&mut bridge, B, MAC_B);
    let data = |to| packet(true, STATION, to, Some(flags::ACK));
    let [to_a, to_b] = [data(MAC_A), data(MAC_B)];
    let mut request = packet(false, MAC_B, STATION, None);
    let mut reply = packet(true, STATION, MAC_B, None);
    let mut syn = packet(false, MAC_A, STATION, Some(flags::SYN));
    for n in 0..1_000_000u32 {
        syn[34..38].copy_from_slice(&(n + (5000 << 16)).to_be_bytes());
        bridge.forward(&syn, syn.len(), A, 0);
        if n % 1000 == 0 {
            for (bytes, port) in [(&to_a, A), (&to_b, B)] {
                assert_eq!(go(&mut bridge, bytes, WIRE), Verdict::Unicast(port));
            }
            // A new flow of B, and its reply.
            let port = (2000 + (n / 1000) as u16).to_be_bytes();
            request[34..36].copy_from_slice(&port);
            reply[36..38].copy_from_slice(&port);
            assert_eq!(go(&mut bridge, &request, B), Verdict::Unicast(WIRE));
            assert_eq!(go(&mut bridge, &reply, WIRE), Verdict::Unicast(B));
        }
    }
    let totals = bridge.flows(A).unwrap().totals();
    assert!(totals.displaced > 900_000, "{totals:?}");
}

/// Returns an ICMP error of some router about this packet.
fn error_about(packet: &[u8]) -> Vec<u8> {
    let build = Build {
        source: STATION,
        destination: MAC_A,
        protocol: protocol::ICMP,
        transport: [&[3, 1, 0, 0, 0, 0, 0, 0], &packet[14..]].concat(),
        ..Build::tcp4(&[])
    };
    let mut bytes = build.bytes();
    let to: [u8; 4] = packet[26..30].try_into().unwrap();
    bytes[26..34].copy_from_slice(&[[192, 0, 2, 9], to].concat());
    bytes
}

/// FW-4, FW-8: an error about an unknown connection does not pass. Errors and RSTs about a known
/// one pass, and do not end it.
#[test]
fn forged_errors_and_resets_end_nothing() {
    let mut bridge = bridge(vec![inbound(false)]);
    let sends = |flags| packet(false, MAC_A, STATION, Some(flags));
    let gets = |flags| packet(true, STATION, MAC_A, Some(flags));
    let forged = error_about(&sends(flags::ACK));
    assert_eq!(go(&mut bridge, &forged, WIRE), DENIED);
    assert_eq!(go(&mut bridge, &gets(flags::RST), WIRE), DENIED);
    go(&mut bridge, &sends(flags::SYN), A);
    go(&mut bridge, &gets(flags::SYN | flags::ACK), WIRE);
    go(&mut bridge, &sends(flags::ACK), A);
    let passes = Verdict::Unicast(A);
    for bytes in [&forged, &gets(flags::RST)] {
        assert_eq!(go(&mut bridge, bytes, WIRE), passes);
        go(&mut bridge, &sends(flags::ACK), A);
        assert_eq!(go(&mut bridge, &gets(flags::ACK), WIRE), passes);
        let flow = bridge.flows(A).unwrap().flows(0).next().unwrap();
        assert_eq!(flow.phase.name(), "established");
    }
}

/// Generates rules with and without each flow state, direction and protocol.
fn any_rule() -> impl Strategy<Value = Rule> {
    let state = prop::sample::select(vec![
        None,
        Some(FlowState::New),
        Some(FlowState::New),
        Some(FlowState::Established),
        Some(FlowState::Related),
    ]);
    let direction = prop::sample::select(vec![None, Some(Direction::In), Some(Direction::Out)]);
    let number = prop::sample::select(vec![None, None, Some(protocol::TCP)]);
    (any::<bool>(), direction, state, number).prop_map(|(allow, direction, state, protocol)| Rule {
        direction,
        state,
        protocol,
        ..Rule::any(allow)
    })
}

/// A packet between A and B.
#[derive(Clone, Copy, Debug)]
struct AnyPacket {
    v6: bool,
    /// Whether B sends it.
    back: bool,
    /// Its flags, if it is TCP.
    tcp: Option<u8>,
    /// Bytes that the frame lacks at its end.
    lacking: usize,
    /// Seconds that pass before it.
    wait: u64,
}

fn any_packet() -> impl Strategy<Value = AnyPacket> {
    let tcp = [
        flags::SYN,
        flags::SYN | flags::ACK,
        flags::ACK,
        flags::ACK,
        flags::ACK | flags::FIN,
        flags::RST,
    ];
    let tcp: Vec<_> = tcp.into_iter().map(Some).chain([None, None]).collect();
    let wait = prop::sample::select(vec![0, 0, 0, 0, 1, 40]);
    let lacking = prop::sample::select(vec![0, 0, 0, 0, 0, 1, 8, 12]);
    let versions = (any::<bool>(), any::<bool>());
    (versions, prop::sample::select(tcp), lacking, wait).prop_map(
        |((v6, back), tcp, lacking, wait)| AnyPacket {
            v6,
            back,
            tcp,
            lacking,
            wait,
        },
    )
}

/// Two guests with the same rules and a table each.
fn guests(rules: &[Rule]) -> Bridge {
    let mut bridge = bridge(rules.to_vec());
    bridge.set_rules(B, rules);
    bridge.set_flows(B, Some(flows()));
    bridge
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// BR-25, BR-26: the fast path, the decision by flow and the rules one by one agree.
    #[test]
    fn all_implementations_of_the_rules_agree(
        rules in prop::collection::vec(any_rule(), 0..4),
        packets in prop::collection::vec(any_packet(), 1..30),
    ) {
        let [mut slow, mut fast] = [(); 2].map(|()| guests(&rules));
        let (mut now_ns, mut ports) = (0, Vec::new());
        for AnyPacket { v6, back, tcp, lacking, wait } in packets {
            now_ns += wait * 1_000_000_000;
            let (macs, port) = if back { ((MAC_B, MAC_A), B) } else { ((MAC_A, MAC_B), A) };
            let mut bytes = versioned_packet(v6, back, macs, tcp);
            bytes.truncate(bytes.len() - lacking);
            let denied = slow.denied_by(&bytes, port, now_ns);
            let verdict = slow.forward(&bytes, bytes.len(), port, now_ns);
            prop_assert_eq!(denied.is_some(), matches!(verdict, Verdict::Drop(_)));
            let mut batch = small_frames(&[&bytes]);
            if fast.has_routes(port) && fast.routes(&mut batch, port, now_ns, &mut ports) {
                prop_assert_eq!(&verdict, &Verdict::Unicast(usize::from(ports[0])));
                fast.sent(now_ns);
            } else {
                prop_assert_eq!(&fast.forward(&bytes, bytes.len(), port, now_ns), &verdict);
            }
        }
        for port in [A, B] {
            let flows = |of: &Bridge| -> Vec<FlowStatus> {
                of.flows(port).unwrap().flows(now_ns).collect()
            };
            prop_assert_eq!(flows(&slow), flows(&fast));
            prop_assert!(slow.rule_counts(port).eq(fast.rule_counts(port)));
        }
    }
}
