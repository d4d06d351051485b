//! The bridge, clause by clause (`specs/bridge.md`).

mod common;

use common::{Build, arp, frame_of};
use net::bridge::{
    AddError, Bridge, DropReason, Kind, MAX_PORTS, Port, PortSet, Rate, Settings, Verdict, wanted,
};
use net::packet::{Mac, protocol};
use nic::frame::{HOT, SNAPSHOT};
use std::net::IpAddr;

const WIRE: usize = 0;
const WIRE2: usize = 1;
const A: usize = 2;
const B: usize = 3;
const ROUTER: usize = 4;

const MAC_A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const MAC_A2: Mac = Mac([2, 0, 0, 0, 0xff, 0xa]);
const MAC_B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const MAC_R: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
const STATION: Mac = Mac([0x52, 0x54, 0, 1, 2, 3]);
const OTHER: Mac = Mac([0x52, 0x54, 0, 1, 2, 4]);
const ALL: Mac = Mac::BROADCAST;

const S: u64 = 1_000_000_000;

fn guest(macs: &[Mac], addresses: &[&str]) -> Port {
    Port {
        kind: Kind::Guest {
            macs: macs.to_vec(),
            router: false,
            confined: !addresses.is_empty(),
        },
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        rate: None,
        rules: Vec::new(),
    }
}

fn settings() -> Settings {
    Settings {
        ageing_ns: 300 * S,
        group_pps: 10,
        group_burst: 5,
        hash_seed: 7,
        learned_max: 64,
    }
}

/// Two NIC ports; guest A with two MACs and addresses; guest B with addresses; a router.
fn bridge() -> Bridge {
    let mut bridge = Bridge::new(settings());
    bridge.add(WIRE, &Port::nic()).unwrap();
    bridge.add(WIRE2, &Port::nic()).unwrap();
    bridge
        .add(A, &guest(&[MAC_A, MAC_A2], &["10.0.0.10", "fd00::a"]))
        .unwrap();
    bridge
        .add(B, &guest(&[MAC_B], &["10.0.0.11", "fd00::b"]))
        .unwrap();
    let router = Kind::Guest {
        macs: vec![MAC_R],
        router: true,
        confined: false,
    };
    bridge
        .add(
            ROUTER,
            &Port {
                kind: router,
                ..Port::guest(MAC_R)
            },
        )
        .unwrap();
    bridge
}

fn plain(to: Mac, from: Mac) -> Vec<u8> {
    Build {
        source: from,
        destination: to,
        ..Build::tcp4(b"data")
    }
    .bytes()
}

fn go(bridge: &mut Bridge, bytes: &[u8], port: usize, now_ns: u64) -> Verdict {
    let header = &bytes[..bytes.len().min(SNAPSHOT)];
    bridge.forward(header, bytes.len(), port, now_ns)
}

fn set(ports: &[usize]) -> Verdict {
    Verdict::Many(ports.iter().copied().collect())
}

fn dropped(reason: DropReason) -> Verdict {
    Verdict::Drop(reason)
}

/// BR-1: a frame to a guest's MAC goes to that guest alone, whoever sent it.
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
    // For ever.
    assert_eq!(
        go(&mut bridge, &plain(MAC_B, MAC_A), A, u64::MAX - 1),
        Verdict::Unicast(B)
    );
}

/// BR-2: never back to where it came from.
#[test]
fn nothing_goes_back() {
    let mut bridge = bridge();
    assert_eq!(
        go(&mut bridge, &plain(MAC_A2, MAC_A), A, 0),
        dropped(DropReason::SamePort)
    );
    go(&mut bridge, &plain(MAC_A, STATION), WIRE, 0);
    let back = go(&mut bridge, &plain(STATION, OTHER), WIRE, 0);
    assert_eq!(back, dropped(DropReason::SamePort));
}

/// BR-3: a guest sends from its own MACs only.
#[test]
fn guests_cannot_forge_their_source() {
    let mut bridge = bridge();
    for from in [MAC_B, STATION, Mac([0; 6]), ALL, Mac([3, 0, 0, 0, 0, 0xa])] {
        for to in [STATION, MAC_B, ALL] {
            let verdict = go(&mut bridge, &plain(to, from), A, 0);
            assert_eq!(verdict, dropped(DropReason::ForgedSource));
        }
    }
    // Nothing was learned from it, and B's frames still go to B.
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

/// BR-4: learning on NIC ports only, and only from sources that can be a station's.
#[test]
fn stations_are_learned_behind_nics() {
    let mut bridge = bridge();
    go(&mut bridge, &plain(MAC_A, STATION), WIRE2, 0);
    assert_eq!(
        go(&mut bridge, &plain(STATION, MAC_A), A, 0),
        Verdict::Unicast(WIRE2)
    );
    // It moves.
    go(&mut bridge, &plain(MAC_A, STATION), WIRE, 1);
    assert_eq!(
        go(&mut bridge, &plain(STATION, MAC_A), A, 1),
        Verdict::Unicast(WIRE)
    );
    for from in [Mac([0; 6]), ALL, Mac([1, 0, 0x5e, 0, 0, 1])] {
        let verdict = go(&mut bridge, &plain(MAC_A, from), WIRE, 0);
        assert_eq!(verdict, dropped(DropReason::BadSource));
    }
    assert_eq!(
        bridge.stations(1).filter(|station| !station.bound).count(),
        1
    );
    assert_eq!(
        bridge.stations(1).filter(|station| station.bound).count(),
        4
    );
    let learned = bridge.stations(1).find(|station| !station.bound).unwrap();
    assert_eq!((learned.mac, learned.port), (STATION, WIRE));
}

/// BR-5: what is bound cannot be learned away, and a guest's MAC does not come in from a NIC.
#[test]
fn a_wire_cannot_take_a_guest_s_mac() {
    let mut bridge = bridge();
    let verdict = go(&mut bridge, &plain(MAC_B, MAC_A), WIRE, 0);
    assert_eq!(verdict, dropped(DropReason::BoundSource));
    assert_eq!(
        go(&mut bridge, &plain(MAC_A, MAC_B), B, 0),
        Verdict::Unicast(A)
    );
}

/// BR-5: also when it was learned before the guest came.
#[test]
fn a_guest_that_comes_later_takes_its_mac_back() {
    let mut bridge = bridge();
    let late = Mac([2, 0, 0, 0, 0, 0x77]);
    go(&mut bridge, &plain(MAC_A, late), WIRE, 0);
    assert_eq!(
        go(&mut bridge, &plain(late, MAC_A), A, 0),
        Verdict::Unicast(WIRE)
    );
    bridge.add(9, &Port::guest(late)).unwrap();
    assert_eq!(
        go(&mut bridge, &plain(late, MAC_A), A, 0),
        Verdict::Unicast(9)
    );
    let verdict = go(&mut bridge, &plain(MAC_A, late), WIRE, 0);
    assert_eq!(verdict, dropped(DropReason::BoundSource));
    assert_eq!(
        bridge
            .stations(0)
            .filter(|station| station.mac == late)
            .count(),
        1
    );
}

/// BR-6: a station that is silent is forgotten, one that speaks is not.
#[test]
fn learned_stations_age() {
    let mut bridge = bridge();
    let unknown = set(&[WIRE, WIRE2]);
    go(&mut bridge, &plain(MAC_A, STATION), WIRE, 5);
    let to_it = plain(STATION, MAC_A);
    assert_eq!(
        go(&mut bridge, &to_it, A, 5 + 300 * S - 1),
        Verdict::Unicast(WIRE)
    );
    assert_eq!(go(&mut bridge, &to_it, A, 5 + 300 * S), unknown);
    assert_eq!(bridge.stations(5 + 300 * S).count(), 4);
    // Being sent to keeps nothing alive; speaking does.
    go(&mut bridge, &plain(MAC_A, STATION), WIRE, 200 * S);
    assert_eq!(go(&mut bridge, &to_it, A, 499 * S), Verdict::Unicast(WIRE));
    assert_eq!(go(&mut bridge, &to_it, A, 500 * S), unknown);
}

fn numbered(n: u32) -> Mac {
    let [a, b, c, d] = n.to_be_bytes();
    Mac([0x52, 0x54, a, b, c, d])
}

/// BR-7: the table is bounded, strangers displace nobody, and old entries make room.
#[test]
fn a_flood_of_sources_fills_nothing_but_its_share() {
    let mut bridge = bridge();
    for n in 0..10_000 {
        let verdict = go(&mut bridge, &plain(MAC_A, numbered(n)), WIRE, 1);
        assert_eq!(verdict, Verdict::Unicast(A));
    }
    let learned: Vec<_> = bridge
        .stations(1)
        .filter(|station| !station.bound)
        .collect();
    assert_eq!(learned.len(), 64);
    assert!(learned.iter().all(|station| station.mac <= numbered(80)));
    assert_eq!(
        bridge.stations(1).filter(|station| station.bound).count(),
        4
    );
    // They have aged: another station finds room, and so do 63 more.
    let later = 400 * S;
    for n in 0..64 {
        go(
            &mut bridge,
            &plain(MAC_A, numbered(0x0100_0000 + n)),
            WIRE2,
            later,
        );
    }
    let learned = bridge.stations(later).filter(|station| !station.bound);
    assert!(learned.filter(|station| station.port == WIRE2).count() >= 60);
}

/// BR-7: the whole table is searched for old entries only now and then.
#[test]
fn room_is_made_when_all_have_aged_and_not_before() {
    let mut bridge = bridge();
    for n in 0..64 {
        go(&mut bridge, &plain(MAC_A, numbered(n)), WIRE, 0);
    }
    let full: Vec<Mac> = bridge.stations(0).map(|station| station.mac).collect();
    // 300 s later nobody has spoken again but one.
    go(
        &mut bridge,
        &plain(MAC_A, full_learned(&full)),
        WIRE,
        200 * S,
    );
    go(&mut bridge, &plain(MAC_A, STATION), WIRE2, 300 * S);
    let known: Vec<_> = bridge
        .stations(300 * S)
        .filter(|station| !station.bound)
        .collect();
    assert_eq!(known.len(), 2);
    assert!(
        known
            .iter()
            .any(|station| station.mac == STATION && station.port == WIRE2)
    );
}

fn full_learned(macs: &[Mac]) -> Mac {
    *macs.iter().find(|mac| mac.0[0] == 0x52).unwrap()
}

/// BR-8: unknown unicast goes to other NIC ports only.
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

/// BR-9: groups go to all others, within a budget per ingress port.
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
    // Others have their own, unicast needs none, and ten a second come back.
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

/// BR-10: group addresses that bridges keep to themselves are not forwarded.
#[test]
fn reserved_groups_stay() {
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

/// BR-11: a port's rate, in bytes of frames.
#[test]
fn a_port_s_rate_is_kept() {
    let mut bridge = bridge();
    let rate = Some(Rate {
        bytes_per_s: 1000,
        burst_bytes: 200,
    });
    bridge
        .add(
            9,
            &Port {
                rate,
                ..Port::guest(STATION)
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
    // What is refused for another reason costs nothing.
    let forged = plain(MAC_A, MAC_B);
    for _ in 0..10 {
        bridge.forward(&forged, 200, 9, S);
    }
    assert_eq!(bridge.forward(&bytes, 200, 9, S), Verdict::Unicast(A));
}

/// BR-12: what is no Ethernet frame, or comes in by no port.
#[test]
fn runts_and_strangers() {
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

fn arp_from(mac: Mac, sender: Mac, ip: [u8; 4]) -> Vec<u8> {
    let mut bytes = arp(2, sender.0, ip, [9; 6], [10, 0, 0, 1]);
    bytes[6..12].copy_from_slice(&mac.0);
    bytes
}

/// BR-13: ARP from a guest: its own MAC, and no address that is another's.
#[test]
fn guests_cannot_forge_arp() {
    let mut bridge = bridge();
    let mut now = 0;
    let mut verdict = |bytes: &[u8], port| {
        now += S;
        go(&mut bridge, bytes, port, now)
    };
    let mine = [10, 0, 0, 10];
    let passes = set(&[WIRE, WIRE2, B, ROUTER]);
    assert_eq!(verdict(&arp_from(MAC_A, MAC_A, mine), A), passes);
    assert_eq!(verdict(&arp_from(MAC_A2, MAC_A2, mine), A), passes);
    // A probe for an address that is still free (RFC 5227).
    assert_eq!(verdict(&arp_from(MAC_A, MAC_A, [0; 4]), A), passes);
    let forged = dropped(DropReason::ForgedArp);
    // Another's MAC, even the guest's own other one, and even for an address of its own.
    for sender in [MAC_B, STATION, MAC_A2, ALL] {
        assert_eq!(verdict(&arp_from(MAC_A, sender, mine), A), forged);
    }
    // Another guest's address; an address of nobody's.
    assert_eq!(verdict(&arp_from(MAC_A, MAC_A, [10, 0, 0, 11]), A), forged);
    assert_eq!(verdict(&arp_from(MAC_A, MAC_A, [10, 0, 0, 1]), A), forged);
    // A guest without configured addresses may have any that is not another's.
    let from_router = set(&[WIRE, WIRE2, A, B]);
    assert_eq!(
        verdict(&arp_from(MAC_R, MAC_R, [10, 0, 0, 1]), ROUTER),
        from_router
    );
    assert_eq!(
        verdict(&arp_from(MAC_R, MAC_R, [10, 0, 0, 11]), ROUTER),
        forged
    );
    // Behind tags, and as reverse ARP, it is the same.
    for ethertype in [[8, 6], [0x80, 0x35]] {
        for tags in [
            &[][..],
            &[0x81, 0, 0, 5],
            &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6],
        ] {
            let mut bytes = arp_from(MAC_A, MAC_B, mine);
            bytes[12..14].copy_from_slice(&ethertype);
            bytes.splice(12..12, tags.iter().copied());
            assert_eq!(verdict(&bytes, A), forged);
            let mut bytes = arp_from(MAC_A, MAC_A, mine);
            bytes[12..14].copy_from_slice(&ethertype);
            bytes.splice(12..12, tags.iter().copied());
            assert_eq!(verdict(&bytes, A), passes);
        }
    }
    // A NIC's stations may say what they like.
    let from_wire = set(&[WIRE2, A, B, ROUTER]);
    assert_eq!(
        verdict(&arp_from(STATION, OTHER, [10, 0, 0, 77]), WIRE),
        from_wire
    );
}

/// BR-15: what cannot be read cannot be judged.
#[test]
fn guests_cannot_hide_what_a_frame_is() {
    let mut bridge = bridge();
    let mut verdict = |bytes: &[u8], port| go(&mut bridge, bytes, port, 1000 * S);
    let obscure = dropped(DropReason::Obscure);
    let good = arp_from(MAC_A, MAC_A, [10, 0, 0, 10]);
    // Cut short; another form of ARP.
    for len in 14..42 {
        assert_eq!(verdict(&good[..len], A), obscure);
    }
    let mut odd = good.clone();
    odd[18] = 8;
    assert_eq!(verdict(&odd, A), obscure);
    // Three tags.
    let mut tagged = good.clone();
    tagged.splice(12..12, [0x81, 0, 0, 1].repeat(3));
    assert_eq!(verdict(&tagged, A), obscure);
    // Behind LLC and SNAP.
    let mut snap = [MAC_B.0, MAC_A.0].concat();
    snap.extend([0, 36, 0xaa, 0xaa, 3, 0, 0, 0, 8, 6]);
    snap.extend(&good[14..]);
    assert_eq!(verdict(&snap, A), obscure);
    let mut llc = snap.clone();
    llc[14] = 0x42;
    assert_eq!(verdict(&llc, A), Verdict::Unicast(B));
    let mut other = snap.clone();
    other[12] = 0x88;
    assert_eq!(verdict(&other, A), Verdict::Unicast(B));
    // The first EtherType that is none of a length.
    other[12..14].copy_from_slice(&1536u16.to_be_bytes());
    assert_eq!(verdict(&other, A), Verdict::Unicast(B));
    other[12..14].copy_from_slice(&1535u16.to_be_bytes());
    assert_eq!(verdict(&other, A), obscure);
    // A chain of extension headers without an end in sight.
    let mut build = Build {
        source: MAC_A,
        destination: MAC_B,
        ..Build::tcp6(b"")
    };
    build.extensions = vec![(protocol::DESTINATION, vec![0; 6]); 9];
    assert_eq!(verdict(&build.bytes(), A), obscure);
    build.extensions = vec![(protocol::DESTINATION, vec![0; 126])];
    assert_eq!(verdict(&build.bytes(), A), obscure);
    // The same from a NIC is nobody's business.
    let from_wire = Build {
        source: STATION,
        ..build
    };
    assert_eq!(verdict(&from_wire.bytes(), WIRE), Verdict::Unicast(B));
}

const FD00_A: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xa];
const FD00_B: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xb];
const FD00_1: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const LINK_LOCAL: [u8; 16] = [0xfe, 0xbf, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
const NOT_LINK_LOCAL: [u8; 16] = [0xfe, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];

/// A neighbour discovery message: its fixed part (`fixed` bytes, a target in them if there is one),
/// then options of kind and MAC.
fn nd(kind: u8, fixed: usize, target: [u8; 16], options: &[(u8, Mac)]) -> Vec<u8> {
    let mut bytes = vec![0; fixed];
    bytes[0] = kind;
    if fixed >= 24 {
        bytes[8..24].copy_from_slice(&target);
    }
    for (option, mac) in options {
        bytes.extend([*option, 1]);
        bytes.extend(mac.0);
    }
    bytes
}

fn from(mac: Mac, source6: [u8; 16], icmp: Vec<u8>) -> Build {
    Build {
        source: mac,
        destination: MAC_B,
        source6,
        ..Build::icmp6(icmp)
    }
}

/// BR-14: neighbour discovery from a guest: its own MAC, and no address that is another's.
#[test]
fn guests_cannot_forge_neighbour_discovery() {
    let mut bridge = bridge();
    let mut verdict = |build: &Build| go(&mut bridge, &build.bytes(), A, 0);
    let passes = Verdict::Unicast(B);
    let forged = dropped(DropReason::ForgedNd);
    let solicit = |source6, mac| from(MAC_A, source6, nd(135, 24, FD00_B, &[(1, mac)]));
    let advertise = |target, mac| from(MAC_A, FD00_A, nd(136, 24, target, &[(2, mac)]));

    assert_eq!(verdict(&solicit(FD00_A, MAC_A)), passes);
    assert_eq!(verdict(&solicit([0; 16], MAC_A)), passes);
    assert_eq!(verdict(&solicit(LINK_LOCAL, MAC_A)), passes);
    assert_eq!(verdict(&advertise(FD00_A, MAC_A)), passes);
    assert_eq!(verdict(&advertise(LINK_LOCAL, MAC_A)), passes);
    assert_eq!(
        verdict(&from(MAC_A, FD00_A, nd(136, 24, FD00_A, &[]))),
        passes
    );
    assert_eq!(
        verdict(&from(MAC_A, FD00_A, nd(133, 8, FD00_A, &[(1, MAC_A)]))),
        passes
    );

    assert_eq!(verdict(&solicit(FD00_A, MAC_B)), forged);
    assert_eq!(verdict(&solicit(FD00_A, MAC_A2)), forged);
    assert_eq!(verdict(&solicit(FD00_B, MAC_A)), forged);
    assert_eq!(verdict(&solicit(FD00_1, MAC_A)), forged);
    assert_eq!(verdict(&solicit(NOT_LINK_LOCAL, MAC_A)), forged);
    assert_eq!(verdict(&advertise(FD00_B, MAC_A)), forged);
    assert_eq!(verdict(&advertise(FD00_1, MAC_A)), forged);
    assert_eq!(verdict(&advertise(FD00_A, MAC_B)), forged);
    assert_eq!(
        verdict(&from(MAC_A, FD00_A, nd(133, 8, FD00_A, &[(1, MAC_B)]))),
        forged
    );
    // Whichever option, and wherever it stands.
    let second = nd(136, 24, FD00_A, &[(14, MAC_A), (1, MAC_B)]);
    assert_eq!(verdict(&from(MAC_A, FD00_A, second)), forged);
    let harmless = nd(136, 24, FD00_A, &[(14, MAC_B), (3, MAC_B)]);
    assert_eq!(verdict(&from(MAC_A, FD00_A, harmless)), passes);
    // Behind tags and extension headers.
    for (tags, extensions) in [(2, 0), (1, 1), (0, 2)] {
        let mut build = advertise(FD00_A, MAC_B).tags(tags);
        build.extensions = vec![(protocol::HOP_BY_HOP, vec![0; 6]); extensions];
        assert_eq!(verdict(&build), forged);
        let mut build = advertise(FD00_A, MAC_A).tags(tags);
        build.extensions = vec![(protocol::HOP_BY_HOP, vec![0; 6]); extensions];
        assert_eq!(verdict(&build), passes);
    }
    assert_eq!(bridge.drops(A).unwrap().get(DropReason::ForgedNd), 13);
}

/// BR-14: an address of another port's is also not link-local enough.
#[test]
fn a_link_local_address_can_be_owned() {
    let mut bridge = bridge();
    bridge.add(9, &guest(&[STATION], &["febf::9"])).unwrap();
    let claim = from(MAC_A, FD00_A, nd(136, 24, LINK_LOCAL, &[]));
    assert_eq!(
        go(&mut bridge, &claim.bytes(), A, 0),
        dropped(DropReason::ForgedNd)
    );
}

/// BR-14: router advertisements and redirects are for routers.
#[test]
fn only_routers_advertise_themselves() {
    let mut bridge = bridge();
    let advertisement = |mac| from(mac, LINK_LOCAL, nd(134, 16, [0; 16], &[(1, mac)]));
    let redirect = |mac| from(mac, LINK_LOCAL, nd(137, 40, FD00_1, &[(2, mac)]));
    for (message, kind) in [(advertisement(MAC_A), 134), (redirect(MAC_A), 137)] {
        let verdict = go(&mut bridge, &message.bytes(), A, 0);
        assert_eq!(verdict, dropped(DropReason::ForgedRouter), "{kind}");
    }
    for message in [advertisement(MAC_R), redirect(MAC_R)] {
        assert_eq!(
            go(&mut bridge, &message.bytes(), ROUTER, 0),
            Verdict::Unicast(B)
        );
    }
    let lies = from(MAC_R, LINK_LOCAL, nd(134, 16, [0; 16], &[(1, MAC_B)]));
    let verdict = go(&mut bridge, &lies.bytes(), ROUTER, 0);
    assert_eq!(verdict, dropped(DropReason::ForgedNd));
    let lies = from(MAC_R, LINK_LOCAL, nd(137, 40, FD00_1, &[(2, MAC_B)]));
    let verdict = go(&mut bridge, &lies.bytes(), ROUTER, 0);
    assert_eq!(verdict, dropped(DropReason::ForgedNd));
}

/// BR-15: neighbour discovery that is cut short, fragmented, or whose options go on too far.
#[test]
fn neighbour_discovery_that_cannot_be_read() {
    let mut bridge = bridge();
    let mut verdict = |build: &Build| go(&mut bridge, &build.bytes(), A, 0);
    let obscure = dropped(DropReason::Obscure);
    let message = nd(136, 24, FD00_A, &[(2, MAC_A)]);
    for len in 0..message.len() {
        // The IP length says that there is more.
        let mut build = from(MAC_A, FD00_A, message.clone());
        let bytes = build.bytes();
        build.transport.truncate(len);
        let cut = &bytes[..14 + 40 + len];
        assert_eq!(go(&mut bridge_of(), cut, A, 0), obscure, "{len}");
    }
    let mut endless = message.clone();
    endless[25] = 0;
    assert_eq!(verdict(&from(MAC_A, FD00_A, endless)), obscure);
    let mut beyond = message.clone();
    beyond.extend([14, 9]);
    beyond.extend([0; 70]);
    assert_eq!(
        verdict(&from(MAC_A, FD00_A, beyond.clone())),
        Verdict::Unicast(B)
    );
    // One more option: it starts where the snapshot has ended.
    beyond.extend([2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(verdict(&from(MAC_A, FD00_A, beyond)), obscure);
    let fragment = |offset: u8, icmp: Vec<u8>| {
        let mut build = from(MAC_A, FD00_A, icmp);
        build.extensions = vec![(protocol::FRAGMENT, vec![0, offset << 3 | 1, 0, 0, 0, 0])];
        build
    };
    assert_eq!(verdict(&fragment(0, message.clone())), obscure);
    // A fragmented ping is nothing of the kind, nor is what follows.
    assert_eq!(verdict(&fragment(0, vec![128; 32])), Verdict::Unicast(B));
    assert_eq!(verdict(&fragment(1, message)), Verdict::Unicast(B));
}

fn bridge_of() -> Bridge {
    bridge()
}

/// BR-14: other ICMPv6 and other IPv6 pass.
#[test]
fn other_ipv6_passes() {
    let mut bridge = bridge();
    for kind in (0..133).chain(138..=255) {
        let build = from(MAC_A, FD00_1, vec![kind; 40]);
        assert_eq!(
            go(&mut bridge, &build.bytes(), A, 0),
            Verdict::Unicast(B),
            "{kind}"
        );
    }
    for number in [protocol::TCP, protocol::UDP, 50, 132] {
        // What would be a neighbour advertisement if it were ICMPv6.
        let mut build = from(MAC_A, FD00_1, nd(136, 24, FD00_B, &[(2, MAC_B)]));
        build.protocol = number;
        assert_eq!(go(&mut bridge, &build.bytes(), A, 0), Verdict::Unicast(B));
        assert_eq!(
            go(&mut bridge, &build.tags(1).bytes(), A, 0),
            Verdict::Unicast(B)
        );
    }
}

/// BR-16: how much of a frame the bridge wants to see, and that a batch shows it.
#[test]
fn only_what_must_be_looked_into_needs_more_than_a_cache_line() {
    let more = |build: Build| wanted(&build.bytes()[..HOT]) == SNAPSHOT;
    assert!(!more(Build::tcp4(&[0; 50])));
    assert!(!more(Build::tcp6(&[0; 50])));
    assert!(!more(Build {
        protocol: protocol::UDP,
        ..Build::tcp6(&[0; 50])
    }));
    assert!(more(Build::icmp6(vec![0; 50])));
    assert!(more(Build {
        extensions: vec![(0, vec![0; 6])],
        ..Build::tcp6(&[0; 50])
    }));
    assert!(more(Build::tcp4(&[0; 50]).tags(1)));
    assert!(more(Build::tcp4(&[0; 50]).tags(2)));
    assert_eq!(wanted(&arp(1, [2; 6], [0; 4], [0; 6], [0; 4])), 0);
    assert_eq!(wanted(&[0; 13]), 0);

    let mut bridge = bridge();
    let honest = from(MAC_A, FD00_A, nd(136, 24, FD00_A, &[(2, MAC_A)])).bytes();
    let forged = from(MAC_A, FD00_A, nd(136, 24, FD00_A, &[(2, MAC_B)])).bytes();
    let mut frames = [
        frame_of(&honest, &[10, 60, 70]),
        frame_of(&forged, &[10, 60, 70]),
        frame_of(&plain(MAC_B, MAC_A), &[]),
    ];
    let mut verdicts = vec![Verdict::Unicast(0)];
    bridge.forward_batch(&mut frames, A, 0, &mut verdicts);
    let forged = dropped(DropReason::ForgedNd);
    let to = Verdict::Unicast;
    assert_eq!(verdicts, [to(0), to(B), forged, to(B)]);
    assert_eq!(frames[0].header().len(), honest.len());
    assert_eq!(bridge.drops(A).unwrap().get(DropReason::ForgedNd), 1);
    // From a NIC nothing has to be looked into; by no port nothing comes.
    let mut from_wire = [frame_of(&from(STATION, FD00_A, vec![136; 60]).bytes(), &[])];
    verdicts.clear();
    bridge.forward_batch(&mut from_wire, WIRE, 0, &mut verdicts);
    bridge.forward_batch(&mut from_wire, 77, 0, &mut verdicts);
    assert_eq!(verdicts, [to(B), dropped(DropReason::UnknownPort)]);
    assert_eq!(from_wire[0].header().len(), HOT);
    assert_eq!(bridge.drops_total().get(DropReason::UnknownPort), 1);
    assert_eq!(frames[2].header().len(), 58);
}

/// BR-17: ports come and go while frames pass.
#[test]
fn a_port_that_goes_takes_everything_with_it() {
    let mut bridge = bridge();
    go(&mut bridge, &plain(MAC_A, STATION), WIRE, 0);
    go(&mut bridge, &plain(MAC_A, OTHER), WIRE2, 0);
    go(&mut bridge, &plain(MAC_A, MAC_B), A, 0);
    assert!(bridge.remove(WIRE));
    assert!(!bridge.remove(WIRE));
    assert!(!bridge.remove(MAX_PORTS));
    assert_eq!(
        go(&mut bridge, &plain(STATION, MAC_A), A, 0),
        Verdict::Unicast(WIRE2)
    );
    assert_eq!(
        go(&mut bridge, &plain(OTHER, MAC_A), A, 0),
        Verdict::Unicast(WIRE2)
    );
    assert!(
        bridge
            .stations(0)
            .all(|station| station.port != WIRE && station.mac != STATION)
    );

    // Others' addresses stay theirs.
    let claim = arp_from(MAC_R, MAC_R, [10, 0, 0, 11]);
    assert_eq!(
        go(&mut bridge, &claim, ROUTER, 0),
        dropped(DropReason::ForgedArp)
    );

    assert!(bridge.remove(A));
    assert_eq!(
        go(&mut bridge, &plain(MAC_B, MAC_A), A, 0),
        dropped(DropReason::UnknownPort)
    );
    // Its MAC is anybody's again, and so are its addresses.
    assert_eq!(
        go(&mut bridge, &plain(MAC_B, MAC_A), WIRE2, 0),
        Verdict::Unicast(B)
    );
    let claim = arp_from(MAC_R, MAC_R, [10, 0, 0, 10]);
    assert_eq!(go(&mut bridge, &claim, ROUTER, 0), set(&[WIRE2, B]));
    // What it dropped is not forgotten; a new port of its number starts at zero.
    assert_eq!(bridge.drops_total().get(DropReason::ForgedSource), 1);
    bridge
        .add(A, &guest(&[MAC_A, MAC_A2], &["10.0.0.10"]))
        .unwrap();
    assert_eq!(bridge.drops(A).unwrap().total(), 0);
    assert_eq!(bridge.drops_total().get(DropReason::ForgedSource), 1);
    assert_eq!(
        go(&mut bridge, &plain(MAC_A, MAC_B), B, 0),
        Verdict::Unicast(A)
    );
    let back = go(&mut bridge, &plain(MAC_B, MAC_A), WIRE2, 0);
    assert_eq!(back, dropped(DropReason::BoundSource));
}

/// BR-17: what cannot be added changes nothing.
#[test]
fn ports_that_contradict_others_are_refused() {
    let mut bridge = bridge();
    let mut add = |number, port: &Port| bridge.add(number, port);
    assert_eq!(
        add(MAX_PORTS, &Port::nic()),
        Err(AddError::Number(MAX_PORTS))
    );
    assert_eq!(add(A, &Port::nic()), Err(AddError::Exists(A)));
    assert_eq!(add(9, &guest(&[], &[])), Err(AddError::NoMac));
    for mac in [ALL, Mac([0; 6]), Mac([1, 0, 0, 0, 0, 0])] {
        assert_eq!(add(9, &guest(&[mac], &[])), Err(AddError::NotAStation(mac)));
    }
    assert_eq!(
        add(9, &guest(&[STATION, MAC_A2], &[])),
        Err(AddError::MacTaken(MAC_A2))
    );
    assert_eq!(
        add(9, &guest(&[STATION, STATION], &[])),
        Err(AddError::MacTaken(STATION))
    );
    let taken: IpAddr = "fd00::b".parse().unwrap();
    let clash = guest(&[STATION], &["10.9.9.9", "fd00::b"]);
    assert_eq!(add(9, &clash), Err(AddError::AddressTaken(taken)));
    assert_eq!(
        add(MAX_PORTS - 1, &guest(&[STATION], &["10.9.9.9"])),
        Ok(())
    );
    assert_eq!(bridge.stations(0).count(), 5);
    let to_it = go(&mut bridge, &plain(STATION, MAC_A), A, 0);
    assert_eq!(to_it, Verdict::Unicast(MAX_PORTS - 1));
    let all = go(&mut bridge, &plain(ALL, MAC_A), A, 0);
    assert_eq!(all, set(&[WIRE, WIRE2, B, ROUTER, MAX_PORTS - 1]));
}

/// BR-13: addresses protect their owner; only a confined guest is kept to them.
#[test]
fn a_guest_with_addresses_may_have_more() {
    let mut bridge = bridge();
    let addresses = vec!["10.0.0.50".parse().unwrap()];
    let port = Port {
        addresses,
        ..Port::guest(STATION)
    };
    bridge.add(9, &port).unwrap();
    let passes = set(&[WIRE, WIRE2, A, B, ROUTER]);
    for ip in [[10, 0, 0, 50], [10, 0, 0, 51]] {
        let claim = arp_from(STATION, STATION, ip);
        assert_eq!(go(&mut bridge, &claim, 9, 0), passes);
    }
    let claim = arp_from(MAC_R, MAC_R, [10, 0, 0, 50]);
    assert_eq!(
        go(&mut bridge, &claim, ROUTER, 0),
        dropped(DropReason::ForgedArp)
    );
}

/// BR-13: a NIC port's addresses (a gateway's, say) are protected as a guest's are.
#[test]
fn a_gateway_s_address_is_protected() {
    let mut bridge = Bridge::new(settings());
    let addresses = vec!["10.0.0.1".parse().unwrap()];
    bridge
        .add(
            0,
            &Port {
                addresses,
                ..Port::nic()
            },
        )
        .unwrap();
    bridge.add(1, &Port::guest(MAC_A)).unwrap();
    let claim = arp_from(MAC_A, MAC_A, [10, 0, 0, 1]);
    assert_eq!(
        go(&mut bridge, &claim, 1, 0),
        dropped(DropReason::ForgedArp)
    );
    let own = arp_from(MAC_A, MAC_A, [10, 0, 0, 2]);
    assert_eq!(go(&mut bridge, &own, 1, 0), Verdict::Unicast(0));
}

#[test]
fn every_reason_has_a_name_of_its_own() {
    let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), DropReason::ALL.len());
    for name in names {
        assert!(
            name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
            "{name}"
        );
    }
    let mut bridge = bridge();
    go(&mut bridge, &[], A, 0);
    go(&mut bridge, &[], 77, 0);
    let total = bridge.drops_total();
    assert_eq!(
        (total.total(), total.iter().count()),
        (2, DropReason::ALL.len())
    );
    let json = serde_json::to_value(&total).unwrap();
    assert_eq!(json["runt"], 1);
    assert_eq!(json["unknown_port"], 1);
    assert_eq!(json["forged_source"], 0);
    assert_eq!(json.as_object().unwrap().len(), DropReason::ALL.len());
}

#[test]
fn sets_of_ports() {
    let ports = [0, 1, 63, 64, 65, 127, 128, 255];
    let set: PortSet = ports
        .into_iter()
        .rev()
        .chain([64, MAX_PORTS, usize::MAX])
        .collect();
    assert_eq!(set.iter().collect::<Vec<_>>(), ports);
    for port in 0..300 {
        assert_eq!(set.contains(port), ports.contains(&port));
        let without: Vec<_> = ports.into_iter().filter(|other| *other != port).collect();
        assert_eq!(set.without(port).iter().collect::<Vec<_>>(), without);
    }
    assert_eq!(set.without(64), set.without(64));
    assert_ne!(set.without(64), set);
    // What is left out is one port, not all that ever were.
    assert!(set.without(64).without(1).contains(64));
    assert_eq!(PortSet::from_iter([]).iter().count(), 0);
}
