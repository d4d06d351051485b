//! Forwarding of membership reports: BR-22.

use super::*;
use net::packet::protocol;

const IGMP: u8 = 2;
const PIM: u8 = 103;
const IGMP_REPORTS: [u8; 4] = [0x12, 0x16, 0x17, 0x22];
const MLD_REPORTS: [u8; 3] = [131, 132, 143];

fn igmp(kind: u8, from: Mac) -> Build {
    Build {
        source: from,
        destination: Mac([1, 0, 0x5e, 0, 0, 22]),
        protocol: IGMP,
        ip_options: 4,
        transport: vec![kind, 0, 0, 0, 239, 0, 0, 1],
        ..Build::tcp4(&[])
    }
}

/// Returns an MLD message, with the router alert option that RFC 2710 and RFC 3810 require.
fn mld(kind: u8, from: Mac) -> Build {
    Build {
        source: from,
        destination: Mac([0x33, 0x33, 0, 0, 0, 22]),
        extensions: vec![(protocol::HOP_BY_HOP, vec![5, 2, 0, 0, 1, 0])],
        ..Build::icmp6(vec![kind, 0, 0, 0, 0, 0, 0, 0])
    }
}

fn reports(from: Mac) -> Vec<Vec<u8>> {
    let igmp = IGMP_REPORTS.map(|kind| igmp(kind, from));
    let mld = MLD_REPORTS.map(|kind| mld(kind, from));
    let all = igmp.into_iter().chain(mld);
    let tagged = all.flat_map(|build| [0, 1, 2].map(|tags| build.clone().tags(tags).bytes()));
    tagged.collect()
}

/// Returns a bridge whose budgets never limit these tests.
fn wide() -> Bridge {
    let mut bridge = Bridge::new(BridgeSettings {
        group_pps: u32::MAX,
        group_burst: u32::MAX,
        ..settings()
    });
    bridge.add(WIRE, &PortConfig::nic()).unwrap();
    bridge.add(A, &PortConfig::guest(MAC_A)).unwrap();
    bridge.add(B, &PortConfig::guest(MAC_B)).unwrap();
    bridge
}

/// BR-22: reports are forwarded to NIC ports and to guests configured as routers.
#[test]
fn reports_are_sent_only_to_routers() {
    for report in reports(MAC_A) {
        let mut bridge = bridge();
        let routers = set(&[WIRE, WIRE2, ROUTER]);
        assert_eq!(go(&mut bridge, &report, A, 0), routers, "{report:02x?}");
    }
    for report in reports(STATION) {
        let mut bridge = bridge();
        let others = set(&[WIRE2, ROUTER]);
        assert_eq!(go(&mut bridge, &report, WIRE, 0), others, "{report:02x?}");
    }
    let mut bridge = wide();
    for report in reports(MAC_A) {
        let verdict = go(&mut bridge, &report, A, 0);
        assert_eq!(verdict, Verdict::Unicast(WIRE), "{report:02x?}");
    }
    assert!(bridge.remove(WIRE));
    for report in reports(MAC_A) {
        let nowhere = dropped(DropReason::NoPort);
        assert_eq!(go(&mut bridge, &report, A, 0), nowhere, "{report:02x?}");
    }
}

/// BR-22: one of several workers does not see all queries, so reports go to all ports.
#[test]
fn reports_of_several_workers_go_to_all() {
    let mut bridge = Bridge::new(BridgeSettings {
        reports_to_all: true,
        ..settings()
    });
    bridge.add(WIRE, &PortConfig::nic()).unwrap();
    bridge.add(A, &PortConfig::guest(MAC_A)).unwrap();
    bridge.add(B, &PortConfig::guest(MAC_B)).unwrap();
    let report = mld(143, MAC_A).bytes();
    assert_eq!(go(&mut bridge, &report, A, 0), set(&[WIRE, B]));
}

/// BR-22: a guest that routes multicast is recognized by its queries.
#[test]
fn querier_gets_reports_until_its_port_is_removed() {
    let pim = Build {
        protocol: PIM,
        ..igmp(0x20, MAC_B)
    };
    for asks in [igmp(0x11, MAC_B), mld(130, MAC_B), pim] {
        let mut bridge = wide();
        let report = mld(143, MAC_A).bytes();
        assert_eq!(go(&mut bridge, &report, A, 0), Verdict::Unicast(WIRE));
        // Queries are flooded to all ports.
        let ports = go(&mut bridge, &asks.bytes(), B, 0);
        assert_eq!(ports, set(&[WIRE, A]));
        assert_eq!(go(&mut bridge, &report, A, 0), set(&[WIRE, B]));
        // A guest does not become a router by receiving queries.
        let from_wire = Build {
            source: STATION,
            ..asks
        };
        assert_eq!(go(&mut bridge, &from_wire.bytes(), WIRE, 0), set(&[A, B]));
        assert_eq!(go(&mut bridge, &report, A, 0), set(&[WIRE, B]));
        assert!(bridge.remove(B));
        bridge.add(B, &PortConfig::guest(MAC_B)).unwrap();
        assert_eq!(go(&mut bridge, &report, A, 0), Verdict::Unicast(WIRE));
    }
}

/// BR-22, BR-9: all other multicast is flooded.
#[test]
fn non_reports_are_flooded() {
    let all = set(&[WIRE, B]);
    let mut bridge = wide();
    let router = [protocol::HOP_BY_HOP, protocol::UDP];
    for kind in 0..=255u8 {
        for tags in 0..=2 {
            let asks = kind == 0x11;
            if !IGMP_REPORTS.contains(&kind) && !asks {
                let bytes = igmp(kind, MAC_A).tags(tags).bytes();
                assert_eq!(go(&mut bridge, &bytes, A, 0), all, "IGMP {kind}");
            }
            // Neighbour discovery is inspected: invalid messages are dropped.
            if !MLD_REPORTS.contains(&kind) && !(133..=137).contains(&kind) && kind != 130 {
                let bytes = mld(kind, MAC_A).tags(tags).bytes();
                assert_eq!(go(&mut bridge, &bytes, A, 0), all, "ICMPv6 {kind}");
            }
        }
        // The same bytes under another protocol, or in a later fragment, are not membership
        // messages.
        for protocol in router {
            let bytes = Build {
                protocol,
                ..igmp(kind, MAC_A)
            };
            assert_eq!(go(&mut bridge, &bytes.bytes(), A, 0), all);
        }
    }
    // Truncated before its type.
    for report in reports(STATION) {
        for len in 14..22 {
            let verdict = go(&mut bridge, &report[..len], WIRE, 0);
            assert_eq!(verdict, set(&[A, B]), "{len}");
        }
    }
}
