//! The IP sources of guests (BR-23), DHCP servers (BR-14) and gateways (BR-13).

use super::*;
use net::bridge::Prefix;
use net::packet::protocol;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns a guest with these addresses that may send from them and from `more`.
fn strict(addresses: &[&str], more: &[(&str, u8)]) -> PortConfig {
    let more = more.iter();
    let more = more.map(|(address, bits)| Prefix::new(address.parse().unwrap(), *bits));
    let permissions = PortPermissions {
        sources: Some(more.collect()),
        ..PortPermissions::default()
    };
    with(permissions, addresses)
}

fn with(permissions: PortPermissions, addresses: &[&str]) -> PortConfig {
    let macs = vec![MAC_A];
    PortConfig {
        kind: PortKind::Guest { macs, permissions },
        ..guest(&[MAC_A], addresses)
    }
}

/// Returns a bridge with a NIC port, guest A as `port`, and guest B with 10.0.0.11 and fe80::b.
fn bridge_with(port: &PortConfig) -> Bridge {
    let mut bridge = Bridge::new(settings());
    bridge.add(WIRE, &PortConfig::nic()).unwrap();
    bridge.add(A, port).unwrap();
    let other = guest(&[MAC_B], &["10.0.0.11", "fe80::b"]);
    bridge.add(B, &other).unwrap();
    bridge
}

fn udp(source: IpAddr, ports: [u16; 2]) -> Build {
    let [from, to] = ports.map(u16::to_be_bytes);
    let build = match source {
        IpAddr::V4(v4) => Build {
            source4: v4.octets(),
            ..Build::tcp4(b"")
        },
        IpAddr::V6(v6) => Build {
            source6: v6.octets(),
            ..Build::tcp6(b"")
        },
    };
    Build {
        source: MAC_A,
        destination: MAC_B,
        protocol: protocol::UDP,
        transport: [&from[..], &to, &[0, 12, 0, 0], b"data"].concat(),
        ..build
    }
}

/// BR-23: a guest sends from its addresses and from its permitted prefixes.
#[test]
fn guests_send_from_their_own_addresses() {
    let addresses = ["10.0.0.10", "fd00::a"];
    let mut closed = bridge_with(&strict(&addresses, &[]));
    let mut routes = bridge_with(&strict(&addresses, &[("10.9.0.0", 16), ("fd09::", 16)]));
    let mut open = bridge_with(&guest(&[MAC_A], &addresses));
    let (yes, no) = (Verdict::Unicast(B), dropped(DropReason::ForgedAddress));
    for (source, by_closed, by_routes) in [
        ("10.0.0.10", true, true),
        ("fd00::a", true, true),
        // The guest does not have an address yet.
        ("0.0.0.0", true, true),
        ("::", true, true),
        ("fe80::1", true, true),
        ("febf::1", true, true),
        ("fec0::1", false, false),
        // Another guest's address, also a link-local one.
        ("10.0.0.11", false, false),
        ("fe80::b", false, false),
        ("10.0.0.12", false, false),
        ("127.0.0.1", false, false),
        ("::1", false, false),
        ("10.9.7.7", false, true),
        ("10.8.7.7", false, false),
        ("fd09::7", false, true),
    ] {
        for tags in 0..=2 {
            let frame = udp(source.parse().unwrap(), [9, 9]).tags(tags).bytes();
            let judged = |allowed| if allowed { yes.clone() } else { no.clone() };
            assert_eq!(go(&mut closed, &frame, A, 0), judged(by_closed), "{source}");
            assert_eq!(go(&mut routes, &frame, A, 0), judged(by_routes), "{source}");
            assert_eq!(go(&mut open, &frame, A, 0), yes, "{source}");
        }
    }
}

/// BR-23: a guest may have more addresses than are stored inline.
#[test]
fn a_guest_may_have_many_addresses() {
    let all: Vec<String> = (1..=40).map(|n| format!("10.0.1.{n}")).collect();
    let all = all.iter().map(String::as_str).collect::<Vec<_>>();
    let mut bridge = bridge_with(&strict(&all, &[]));
    for n in 1..=50 {
        let frame = udp(Ipv4Addr::new(10, 0, 1, n).into(), [9, 9]).bytes();
        let passes = go(&mut bridge, &frame, A, 0) == Verdict::Unicast(B);
        assert_eq!(passes, n <= 40, "{n}");
    }
}

/// BR-14: only a DHCP server sends to DHCP clients.
#[test]
fn only_dhcp_servers_send_to_clients() {
    let mut host = bridge_with(&guest(&[MAC_A], &[]));
    let server = PortPermissions {
        dhcp_server: true,
        ..PortPermissions::default()
    };
    let mut server = bridge_with(&with(server, &[]));
    let forged = dropped(DropReason::ForgedDhcp);
    let (v4, v6) = ("10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap());
    for (source, from, to, is_reply) in [
        (v4, 67, 68, true),
        // DHCP clients receive only on their port.
        (v4, 9, 68, true),
        (v4, 68, 67, false),
        (v4, 547, 546, false),
        (v6, 547, 546, true),
        (v6, 546, 547, false),
        (v6, 67, 68, false),
    ] {
        let plain = udp(source, [from, to]);
        let mut shapes = vec![plain.clone(), plain.clone().tags(1), plain.clone().tags(2)];
        match source {
            IpAddr::V4(_) => shapes.push(plain.options(40)),
            IpAddr::V6(_) => shapes.push(Build {
                extensions: vec![(protocol::DESTINATION, vec![0; 6])],
                ..plain
            }),
        }
        for shape in shapes {
            let passes = Verdict::Unicast(B);
            let judged = if is_reply { &forged } else { &passes };
            let bytes = shape.bytes();
            assert_eq!(go(&mut host, &bytes, A, 0), *judged, "{shape:?}");
            assert_eq!(go(&mut server, &bytes, A, 0), passes, "{shape:?}");
        }
    }
    // The payload of a later fragment does not contain ports.
    let mut later = udp(v4, [67, 68]).bytes();
    later[21] = 1;
    assert_eq!(go(&mut host, &later, A, 0), Verdict::Unicast(B));
    // A port outside the first 128 bytes.
    let hidden = Build {
        extensions: vec![(protocol::DESTINATION, vec![0; 70])],
        ..udp(v6, [9, 9])
    };
    assert_eq!(hidden.transport_at(), 126);
    let obscure = dropped(DropReason::Obscure);
    assert_eq!(go(&mut host, &hidden.bytes(), A, 0), obscure);
}

/// BR-13: a gateway is protected while a port names it, in any order of adding.
#[test]
fn gateways_are_protected_while_they_are_in_use() {
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let user = |mac, address| PortConfig {
        gateways: vec![gateway],
        ..guest(&[mac], &[address])
    };
    let mut bridge = Bridge::new(settings());
    bridge.add(WIRE, &PortConfig::nic()).unwrap();
    bridge.add(ROUTER, &PortConfig::guest(MAC_R)).unwrap();
    let mut now = 0;
    let mut claims = |bridge: &mut Bridge| {
        now += S;
        let claim = arp_from(MAC_R, MAC_R, [10, 0, 0, 1]);
        go(bridge, &claim, ROUTER, now) != dropped(DropReason::ForgedArp)
    };
    assert!(claims(&mut bridge));
    bridge.add(A, &user(MAC_A, "10.0.0.10")).unwrap();
    assert!(!claims(&mut bridge));
    bridge.add(B, &user(MAC_B, "10.0.0.11")).unwrap();
    bridge.remove(A);
    assert!(!claims(&mut bridge), "B still uses the gateway");
    bridge.remove(B);
    assert!(claims(&mut bridge));
    // Only the guest that owns the address may claim it.
    bridge.add(A, &user(MAC_A, "10.0.0.10")).unwrap();
    bridge.add(B, &guest(&[MAC_B], &["10.0.0.1"])).unwrap();
    assert!(!claims(&mut bridge));
    let own = arp_from(MAC_B, MAC_B, [10, 0, 0, 1]);
    assert_eq!(go(&mut bridge, &own, B, 0), set(&[WIRE, A, ROUTER]));
}

/// Returns one of a few addresses, so that they collide.
fn any_address() -> impl Strategy<Value = IpAddr> {
    let v4 = (0u8..3, 0u8..4).prop_map(|(net, n)| Ipv4Addr::new(10, net, 0, n).into());
    let start = prop::sample::select(vec![0xfd00u16, 0xfd01, 0xfe80]);
    let v6 = (start, 0u16..4).prop_map(|(a, n)| Ipv6Addr::new(a, 0, 0, 0, 0, 0, 0, n).into());
    let unspecified = vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    prop_oneof![5 => v4, 5 => v6, 1 => prop::sample::select(unspecified)]
}

/// Returns whether two addresses begin with the same bits, compared bit by bit.
fn agree(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    let bytes = |address| match address {
        IpAddr::V4(v4) => Ipv4Addr::octets(&v4).to_vec(),
        IpAddr::V6(v6) => Ipv6Addr::octets(&v6).to_vec(),
    };
    let (one, other) = (bytes(one), bytes(other));
    let bit = |of: &[u8], n: usize| of[n / 8] >> (7 - n % 8) & 1;
    let bits = usize::from(bits).min(one.len() * 8);
    one.len() == other.len() && (0..bits).all(|n| bit(&one, n) == bit(&other, n))
}

proptest! {
    /// BR-23: compares the bridge with a model of two lists, of addresses and of prefixes, that
    /// compares bit by bit.
    #[test]
    fn sources_pass_as_the_model_says(
        mut own in prop::collection::vec(any_address(), 0..8),
        mut others in prop::collection::vec(any_address(), 0..4),
        prefixes in prop::collection::vec((any_address(), 0u8..=128), 0..3),
        frames in prop::collection::vec((any_address(), 0usize..=2, any::<bool>()), 1..20),
    ) {
        own.retain(|address| !address.is_unspecified());
        own.sort_unstable();
        own.dedup();
        others.retain(|address| !address.is_unspecified() && !own.contains(address));
        others.sort_unstable();
        others.dedup();
        let mut bridge = Bridge::new(settings());
        let allowed = prefixes.iter().map(|(address, bits)| Prefix::new(*address, *bits));
        let sources = Some(allowed.collect());
        let permissions = PortPermissions { sources, ..PortPermissions::default() };
        let port = PortConfig { addresses: own.clone(), ..with(permissions, &[]) };
        bridge.add(A, &port).unwrap();
        let other = PortConfig { addresses: others.clone(), ..PortConfig::guest(MAC_B) };
        bridge.add(B, &other).unwrap();
        for (source, tags, is_tcp) in frames {
            let mut build = udp(source, [9, 9]).tags(tags);
            if is_tcp {
                build.protocol = protocol::TCP;
                build.transport = common::tcp(1, 2, 0, b"");
            }
            let is_link_local = agree(source, "fe80::".parse().unwrap(), 10);
            let passes = source.is_unspecified()
                || own.contains(&source)
                || prefixes.iter().any(|(address, bits)| agree(*address, source, *bits))
                || is_link_local && !others.contains(&source);
            let expected = match passes {
                true => Verdict::Unicast(B),
                false => dropped(DropReason::ForgedAddress),
            };
            prop_assert_eq!(go(&mut bridge, &build.bytes(), A, 0), expected, "{}", source);
        }
    }

    /// BR-14, BR-21, BR-23: the claims of an earlier frame permit no frame with others.
    #[test]
    fn batches_are_judged_like_single_frames(
        frames in prop::collection::vec(
            (
                any_address(),
                prop::sample::select(vec![9u16, 68, 546]),
                any::<bool>(),
                prop::sample::select(vec![0usize, 0, 0, 1]),
            ),
            2..32,
        ),
    ) {
        let frames: Vec<Vec<u8>> = frames
            .into_iter()
            .map(|(source, to, is_tcp, tags)| {
                let mut build = udp(source, [9, to]).tags(tags);
                if is_tcp {
                    build.protocol = protocol::TCP;
                    build.transport = common::tcp(1, 2, 0, b"");
                    build.transport[2..4].copy_from_slice(&to.to_be_bytes());
                }
                build.bytes()
            })
            .collect();
        let port = strict(&["10.0.0.1", "10.1.0.1", "fd00::1", "fd01::1", "fe80::1"], &[]);
        let mut bridge = bridge_with(&port);
        let expected: Vec<Verdict> =
            frames.iter().map(|frame| go(&mut bridge, frame, A, 0)).collect();

        let mut batch: Vec<_> = frames.iter().map(|frame| common::frame_of(frame, &[])).collect();
        let mut verdicts = Vec::new();
        bridge.forward_batch(&mut batch, A, 0, &mut verdicts);
        prop_assert_eq!(&verdicts, &expected);

        let all: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let mut routes = Vec::new();
        for batch in all.chunks(2).chain([all.as_slice()]) {
            if bridge.routes(&mut small_frames(batch), A, 0, &mut routes) {
                let first = all.iter().position(|frame| std::ptr::eq(*frame, batch[0]));
                let expected = expected.iter().skip(first.unwrap()).take(batch.len());
                prop_assert!(expected.into_iter().all(|verdict| *verdict == Verdict::Unicast(B)));
            }
        }
    }
}
