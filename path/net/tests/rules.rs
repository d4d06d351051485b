//! Firewall rules, clause by clause (`specs/bridge.md`, BR-18 …), and against an oracle that knows
//! how it built a packet instead of parsing it.

mod common;

use common::{Build, DST4, DST6, SRC4, SRC6, arp, frame_of};
use net::bridge::{
    Bridge, BridgeSettings, Direction, DropReason, PortConfig, Prefix, Rule, Verdict,
};
use net::packet::{Mac, protocol};
use proptest::prelude::*;
use std::net::IpAddr;
use std::ops::RangeInclusive;

const WIRE: usize = 0;
const A: usize = 1;
const B: usize = 2;

const MAC_A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const MAC_B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const STATION: Mac = Mac([0x52, 0x54, 0, 1, 2, 3]);

fn bridge(wire: Vec<Rule>, a: Vec<Rule>) -> Bridge {
    let mut bridge = Bridge::new(BridgeSettings::default());
    let with = |rules, port| PortConfig { rules, ..port };
    bridge.add(WIRE, &with(wire, PortConfig::nic())).unwrap();
    bridge.add(A, &with(a, PortConfig::guest(MAC_A))).unwrap();
    bridge.add(B, &PortConfig::guest(MAC_B)).unwrap();
    bridge
}

fn deny() -> Rule {
    Rule::any(false)
}

fn allow() -> Rule {
    Rule::any(true)
}

fn to(destination: Mac, build: Build) -> Vec<u8> {
    Build {
        source: STATION,
        destination,
        ..build
    }
    .bytes()
}

fn udp(from: u16, to: u16) -> Vec<u8> {
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0, 8, 0, 0]].concat()
}

fn udp4(from: u16, to: u16) -> Build {
    Build {
        protocol: protocol::UDP,
        transport: udp(from, to),
        ..Build::tcp4(&[])
    }
}

/// Forwards a frame as the driver does.
fn go(bridge: &mut Bridge, bytes: &[u8], port: usize) -> Verdict {
    let mut verdicts = Vec::new();
    let mut frames = [frame_of(bytes, &[])];
    bridge.forward_batch(&mut frames, port, 0, &mut verdicts);
    verdicts.remove(0)
}

const DENIED: Verdict = Verdict::Drop(DropReason::Firewall);

fn frames(bridge: &Bridge, port: usize) -> Vec<u64> {
    bridge.rule_counts(port).map(|count| count.frames).collect()
}

/// BR-18: the first matching rule decides and counts the frame; a frame that matches none passes.
#[test]
fn the_first_rule_that_fits_decides() {
    let dns = |allow, ports: RangeInclusive<u16>| Rule {
        protocol: Some(protocol::UDP),
        destination_ports: Some(ports),
        ..Rule::any(allow)
    };
    let rules = vec![dns(true, 53..=53), dns(false, 50..=60), dns(true, 0..=100)];
    let mut bridge = bridge(Vec::new(), rules);
    for (port, verdict) in [
        (53, Verdict::Unicast(A)),
        (54, DENIED),
        (60, DENIED),
        (61, Verdict::Unicast(A)),
        (101, Verdict::Unicast(A)),
    ] {
        let bytes = to(MAC_A, udp4(9, port));
        assert_eq!(go(&mut bridge, &bytes, WIRE), verdict, "{port}");
    }
    // The rule does not match the same port number of TCP.
    assert_eq!(
        go(&mut bridge, &to(MAC_A, Build::tcp4(&[])), WIRE),
        Verdict::Unicast(A)
    );
    assert_eq!(frames(&bridge, A), [1, 2, 1]);
    let denied = bridge.rule_counts(A).nth(1).unwrap();
    assert_eq!(denied.bytes, 2 * to(MAC_A, udp4(9, 54)).len() as u64);
    let drops = bridge.drops(WIRE).unwrap();
    assert_eq!((drops.get(DropReason::Firewall), drops.total()), (2, 2));
    assert_eq!(frames(&bridge, WIRE), []);
    assert_eq!(frames(&bridge, 77), []);
}

/// BR-18: a rule applies to frames that arrive at its port, to frames that are sent to it, or to
/// both.
#[test]
fn rules_have_a_direction() {
    for (direction, from_a, to_a) in [
        (Some(Direction::In), true, false),
        (Some(Direction::Out), false, true),
        (None, true, true),
    ] {
        let rule = Rule {
            direction,
            ..deny()
        };
        let mut bridge = bridge(Vec::new(), vec![rule]);
        let out = Build {
            source: MAC_A,
            destination: MAC_B,
            ..udp4(1, 2)
        }
        .bytes();
        let back = Build {
            source: MAC_B,
            destination: MAC_A,
            ..udp4(1, 2)
        }
        .bytes();
        assert_eq!(go(&mut bridge, &out, A) == DENIED, from_a, "{direction:?}");
        assert_eq!(go(&mut bridge, &back, B) == DENIED, to_a, "{direction:?}");
        // A guest's rules do not apply to frames that it neither sends nor receives.
        let past = Build {
            source: MAC_B,
            destination: STATION,
            ..udp4(1, 2)
        }
        .bytes();
        assert_eq!(go(&mut bridge, &past, B), Verdict::Unicast(WIRE));
    }
}

/// BR-18: both ports' rules apply, those of the ingress port first.
#[test]
fn egress_rules_apply_after_ingress_rules() {
    let mut bridge = bridge(vec![allow()], vec![deny()]);
    assert_eq!(go(&mut bridge, &to(MAC_A, udp4(1, 2)), WIRE), DENIED);
    assert_eq!(
        (frames(&bridge, WIRE), frames(&bridge, A)),
        (vec![1], vec![1])
    );
    assert_eq!(
        go(&mut bridge, &to(MAC_B, udp4(1, 2)), WIRE),
        Verdict::Unicast(B)
    );
    let bytes = to(MAC_A, udp4(1, 2));
    assert_eq!(bridge.denied_by(&bytes, WIRE, 0), Some((A, 0)));
    assert_eq!(bridge.denied_by(&to(MAC_B, udp4(1, 2)), WIRE, 0), None);
    assert_eq!(frames(&bridge, A), [1], "a query counts nothing");
}

/// BR-18: a frame to a group is sent to every port whose rules allow it.
#[test]
fn floods_skip_ports_that_deny_them() {
    let mut bridge = bridge(
        Vec::new(),
        vec![Rule {
            direction: Some(Direction::Out),
            ..deny()
        }],
    );
    assert_eq!(
        go(&mut bridge, &to(Mac::BROADCAST, udp4(1, 2)), WIRE),
        Verdict::Unicast(B)
    );
    let from_b = Build {
        source: MAC_B,
        destination: Mac::BROADCAST,
        ..udp4(1, 2)
    }
    .bytes();
    assert_eq!(go(&mut bridge, &from_b, B), Verdict::Unicast(WIRE));
    let from_a = Build {
        source: MAC_A,
        destination: Mac::BROADCAST,
        ..udp4(1, 2)
    }
    .bytes();
    assert_eq!(
        go(&mut bridge, &from_a, A),
        Verdict::Multiple([WIRE, B].into_iter().collect())
    );
    bridge.remove(B);
    assert_eq!(
        go(&mut bridge, &to(Mac::BROADCAST, udp4(1, 2)), WIRE),
        DENIED
    );
    assert_eq!(
        bridge.denied_by(&to(Mac::BROADCAST, udp4(1, 2)), WIRE, 0),
        Some((A, 0))
    );
}

/// BR-19: the bridge learns nothing from a frame denied at ingress, and the frame uses no budget.
#[test]
fn denied_frame_leaves_no_state() {
    let mut bridge = bridge(
        vec![Rule {
            protocol: Some(protocol::UDP),
            ..deny()
        }],
        Vec::new(),
    );
    for _ in 0..10_000 {
        assert_eq!(
            go(&mut bridge, &to(Mac::BROADCAST, udp4(1, 2)), WIRE),
            DENIED
        );
    }
    assert!(bridge.stations(0).all(|station| station.bound));
    let allowed = to(Mac::BROADCAST, Build::tcp4(&[]));
    assert!(matches!(
        go(&mut bridge, &allowed, WIRE),
        Verdict::Multiple(_)
    ));
    assert!(bridge.stations(0).any(|station| station.mac == STATION));
}

/// BR-17 for rules: they are removed with their port.
#[test]
fn rules_are_removed_with_their_port() {
    let mut bridge = bridge(Vec::new(), vec![deny()]);
    assert_eq!(go(&mut bridge, &to(MAC_A, udp4(1, 2)), WIRE), DENIED);
    bridge.remove(A);
    bridge.add(A, &PortConfig::guest(MAC_A)).unwrap();
    assert_eq!(
        go(&mut bridge, &to(MAC_A, udp4(1, 2)), WIRE),
        Verdict::Unicast(A)
    );
}

#[test]
fn prefixes_contain_matching_addresses() {
    let fits = |prefix: &str, bits: u8, source: [u8; 4]| {
        let address: IpAddr = prefix.parse().unwrap();
        let rule = Rule {
            source: Some(Prefix::new(address, bits)),
            ..deny()
        };
        let mut bridge = bridge(vec![rule], Vec::new());
        let mut bytes = to(MAC_A, udp4(1, 2));
        bytes[26..30].copy_from_slice(&source);
        go(&mut bridge, &bytes, WIRE) == DENIED
    };
    assert!(fits("10.1.2.3", 32, [10, 1, 2, 3]) && !fits("10.1.2.3", 32, [10, 1, 2, 2]));
    assert!(fits("10.1.2.3", 24, [10, 1, 2, 99]) && !fits("10.1.2.3", 24, [10, 1, 3, 3]));
    assert!(fits("10.1.2.3", 1, [127, 0, 0, 1]) && !fits("10.1.2.3", 1, [128, 0, 0, 1]));
    assert!(fits("10.1.2.3", 0, [255, 0, 0, 1]), "any address of IPv4");
    assert!(
        !fits("::", 0, [255, 0, 0, 1]),
        "no address of another version"
    );
}

/// The oracle's knowledge of a field.
#[derive(Clone, Copy, Debug)]
enum Fact<T> {
    Is(T),
    Absent,
    Hidden,
}

/// A frame, and its description.
#[derive(Clone, Debug)]
struct Sent {
    bytes: Vec<u8>,
    ethertype: Fact<u16>,
    addresses: Fact<(IpAddr, IpAddr)>,
    protocol: Fact<u8>,
    ports: Fact<(u16, u16)>,
}

impl Sent {
    fn hidden(bytes: Vec<u8>, ethertype: Fact<u16>) -> Self {
        Self {
            bytes,
            ethertype,
            addresses: Fact::Hidden,
            protocol: Fact::Hidden,
            ports: Fact::Hidden,
        }
    }
}

/// A rule, and its prefixes as written.
#[derive(Clone, Debug)]
struct Written {
    rule: Rule,
    source: Option<(IpAddr, u8)>,
    destination: Option<(IpAddr, u8)>,
}

fn written() -> impl Strategy<Value = Written> {
    let prefixes: Vec<(IpAddr, u8)> = vec![
        (SRC4.into(), 32),
        (DST4.into(), 31),
        ([10, 0, 0, 0].into(), 8),
        (SRC6.into(), 128),
        (DST6.into(), 127),
        ([0; 16].into(), 0),
    ];
    let prefix = prop::option::weighted(0.3, prop::sample::select(prefixes));
    let ports = (0u16..4, 0u16..4).prop_map(|(a, b)| a.min(b)..=a.max(b));
    let ports = prop::option::weighted(0.3, ports);
    let ethertypes = vec![0x0800, 0x0806, 0x86dd, 0x88cc];
    (
        any::<bool>(),
        prop::option::weighted(
            0.3,
            prop::sample::select(vec![Direction::In, Direction::Out]),
        ),
        prop::option::weighted(0.3, prop::sample::select(ethertypes)),
        prop::option::weighted(0.4, prop::sample::select(vec![1u8, 6, 17, 58, 132])),
        (prefix.clone(), prefix),
        (ports.clone(), ports),
    )
        .prop_map(|(allow, direction, ethertype, protocol, prefixes, ports)| {
            let made = |(address, bits)| Prefix::new(address, bits);
            Written {
                source: prefixes.0,
                destination: prefixes.1,
                rule: Rule {
                    allow,
                    direction,
                    state: None,
                    ethertype,
                    protocol,
                    source: prefixes.0.map(made),
                    destination: prefixes.1.map(made),
                    source_ports: ports.0,
                    destination_ports: ports.1,
                },
            }
        })
}

/// IP packets with many kinds of headers, including fragments.
fn packet() -> impl Strategy<Value = Sent> {
    let protocol = prop::sample::select(vec![1u8, 6, 17, 58, 132, 89]);
    (
        any::<bool>(),
        0usize..=2,
        0usize..=10,
        protocol,
        0u16..4,
        0u16..4,
        0u8..3,
        0usize..4,
    )
        .prop_map(
            |(v6, tags, options, number, from, to, fragment, extensions)| {
                let mut transport = udp(from, to);
                transport.resize(60, 0x50);
                let mut build = Build {
                    v6,
                    protocol: number,
                    transport,
                    source: STATION,
                    destination: MAC_A,
                    ..Build::tcp4(&[])
                }
                .tags(tags);
                let later = fragment == 1;
                if v6 {
                    // Destination options of 8 bytes have the same form as a fragment header.
                    build.extensions = vec![(60, vec![1, 4, 0, 0, 0, 0]); extensions];
                    if later {
                        build.extensions.push((44, vec![0x01, 0x01, 0, 0, 0, 9]));
                    }
                } else {
                    build = build.options(options * 4);
                }
                let mut bytes = build.bytes();
                if later && !v6 {
                    bytes[14 + 4 * tags + 6] = 0;
                    bytes[14 + 4 * tags + 7] = 5;
                }
                let (ethertype, addresses) = match v6 {
                    true => (0x86dd, (IpAddr::from(SRC6), IpAddr::from(DST6))),
                    false => (0x0800, (IpAddr::from(SRC4), IpAddr::from(DST4))),
                };
                let has_ports = matches!(number, 6 | 17 | 132);
                Sent {
                    bytes,
                    ethertype: Fact::Is(ethertype),
                    addresses: Fact::Is(addresses),
                    protocol: Fact::Is(number),
                    ports: match has_ports {
                        false => Fact::Absent,
                        true if later => Fact::Hidden,
                        true => Fact::Is((from, to)),
                    },
                }
            },
        )
}

fn sent() -> impl Strategy<Value = Sent> {
    let ethernet = |ethertype: [u8; 2], rest: &[u8]| {
        let mut bytes = [MAC_A.0, STATION.0].concat();
        bytes.extend(ethertype);
        bytes.extend(rest);
        bytes.resize(bytes.len().max(60), 0);
        bytes
    };
    let not_ip = |bytes, ethertype| Sent {
        bytes,
        ethertype: Fact::Is(ethertype),
        addresses: Fact::Absent,
        protocol: Fact::Absent,
        ports: Fact::Absent,
    };
    let mut wanted = arp(1, STATION.0, SRC4, [0; 6], DST4);
    wanted[..6].copy_from_slice(&MAC_A.0);
    let snap = [
        &[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..],
        &to(MAC_A, udp4(1, 2))[14..],
    ]
    .concat();
    let three_tags = [0, 1, 0x81, 0, 0, 1, 0x81, 0, 0, 1, 8, 0, 0x45];
    // The first header announces a destination options header of 256 bytes.
    let mut long = to(MAC_A, Build::tcp6(&[0; 300]));
    (long[20], long[54], long[55]) = (60, 17, 31);
    prop_oneof![
        6 => packet(),
        1 => Just(not_ip(wanted, 0x0806)),
        1 => Just(not_ip(ethernet([0x88, 0xcc], &[]), 0x88cc)),
        1 => Just(Sent::hidden(ethernet([8, 0], &[0x55; 40]), Fact::Is(0x0800))),
        1 => Just(Sent::hidden(ethernet([0x81, 0], &three_tags), Fact::Hidden)),
        1 => Just(Sent::hidden(ethernet([0, 60], &snap), Fact::Hidden)),
        1 => Just(Sent::hidden(long, Fact::Is(0x86dd))),
    ]
}

fn digits(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("4:{:032b}", v4.to_bits()),
        IpAddr::V6(v6) => format!("6:{:0128b}", v6.to_bits()),
    }
}

/// The oracle: BR-18 and BR-20, word by word.
fn decides(written: &Written, direction: Direction, sent: &Sent) -> bool {
    fn matches_field<A, T>(
        wanted: Option<&A>,
        fact: &Fact<T>,
        test: impl Fn(&A, &T) -> bool,
    ) -> Option<bool> {
        match (wanted, fact) {
            (None, _) => Some(true),
            (Some(wanted), Fact::Is(value)) => Some(test(wanted, value)),
            (Some(_), Fact::Absent) => Some(false),
            (Some(_), Fact::Hidden) => None,
        }
    }
    let begins = |(own, bits): &(IpAddr, u8), other: IpAddr| {
        digits(other).starts_with(&digits(*own)[..2 + usize::from(*bits)])
    };
    let Written {
        rule,
        source,
        destination,
    } = written;
    let (from_ports, to_ports) = (&rule.source_ports, &rule.destination_ports);
    let answers = [
        Some(rule.direction.is_none_or(|own| own == direction)),
        matches_field(rule.ethertype.as_ref(), &sent.ethertype, u16::eq),
        matches_field(rule.protocol.as_ref(), &sent.protocol, u8::eq),
        matches_field(source.as_ref(), &sent.addresses, |own, (from, _)| {
            begins(own, *from)
        }),
        matches_field(destination.as_ref(), &sent.addresses, |own, (_, to)| {
            begins(own, *to)
        }),
        matches_field(from_ports.as_ref(), &sent.ports, |own, (from, _)| {
            own.contains(from)
        }),
        matches_field(to_ports.as_ref(), &sent.ports, |own, (_, to)| {
            own.contains(to)
        }),
    ];
    // A hidden field matches every deny rule.
    answers.iter().all(|answer| answer.unwrap_or(!rule.allow))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// BR-18, BR-20: the bridge decides as the oracle does.
    #[test]
    fn frames_pass_as_the_rules_say(
        wire in prop::collection::vec(written(), 0..5),
        a in prop::collection::vec(written(), 0..5),
        sent in sent(),
    ) {
        let rules = |all: &[Written]| all.iter().map(|one| one.rule.clone()).collect();
        let mut bridge = bridge(rules(&wire), rules(&a));
        let mut expected = [vec![0; wire.len()], vec![0; a.len()]];
        let mut passes = true;
        let ends = [(&wire, Direction::In), (&a, Direction::Out)];
        for (at, (rules, direction)) in ends.into_iter().enumerate() {
            let first = rules.iter().position(|written| decides(written, direction, &sent));
            if passes && let Some(first) = first {
                expected[at][first] = 1;
                passes = rules[first].rule.allow;
            }
        }
        let verdict = go(&mut bridge, &sent.bytes, WIRE);
        prop_assert_eq!(verdict, if passes { Verdict::Unicast(A) } else { DENIED });
        prop_assert_eq!([frames(&bridge, WIRE), frames(&bridge, A)], expected);
        let mut header = frame_of(&sent.bytes, &[]);
        header.extend_snapshot(128).unwrap();
        prop_assert_eq!(bridge.denied_by(header.header(), WIRE, 0).is_some(), !passes);
    }

    /// BR-20: a rule that denies by ports drops every frame whose ports are hidden.
    #[test]
    fn no_bytes_panic_and_nothing_unseen_passes(
        bytes in prop::collection::vec(any::<u8>(), 14..200),
    ) {
        let mut bytes = bytes;
        bytes[..6].copy_from_slice(&MAC_A.0);
        bytes[6..12].copy_from_slice(&STATION.0);
        let ethertype = if bytes[13] & 1 == 0 { [8, 0] } else { [0x86, 0xdd] };
        bytes[12..14].copy_from_slice(&ethertype);
        let rule = Rule { protocol: Some(17), destination_ports: Some(53..=53), ..deny() };
        let passes = go(&mut bridge(Vec::new(), vec![rule]), &bytes, WIRE) != DENIED;
        if passes && let Ok(parsed) = etherparse::SlicedPacket::from_ethernet(&bytes)
            && let Some(etherparse::TransportSlice::Udp(udp)) = parsed.transport
        {
            prop_assert_ne!(udp.destination_port(), 53);
        }
    }
}
