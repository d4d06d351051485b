//! Neighbour discovery: BR-14 to BR-16.

use super::*;
use crate::common::frame_of;
use net::bridge::needed_header_bytes;
use net::packet::protocol;
use nic::frame::SNAPSHOT_MIN;

const FD00_A: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xa];
const FD00_B: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xb];
const FD00_1: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const LINK_LOCAL: [u8; 16] = [0xfe, 0xbf, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
const NOT_LINK_LOCAL: [u8; 16] = [0xfe, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];

/// Returns a neighbour discovery message: its fixed part (`fixed` bytes, including the target if it
/// has one), then options of kind and MAC.
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

/// BR-14: neighbour discovery from a guest carries only its MAC, and no address of another port.
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
    // Any option, at any position.
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

/// BR-14: another port's address is protected even if it is link-local.
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

/// BR-14: only routers send router advertisements and redirects.
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

/// BR-15: neighbour discovery that is truncated, is fragmented, or has too many options is dropped.
#[test]
fn neighbour_discovery_that_cannot_be_read() {
    let mut bridge = bridge();
    let mut verdict = |build: &Build| go(&mut bridge, &build.bytes(), A, 0);
    let obscure = dropped(DropReason::Obscure);
    let message = nd(136, 24, FD00_A, &[(2, MAC_A)]);
    for len in 0..message.len() {
        // The IP length claims more bytes.
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
    // One more option, which starts at the end of the snapshot.
    beyond.extend([2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(verdict(&from(MAC_A, FD00_A, beyond)), obscure);
    let fragment = |offset: u8, icmp: Vec<u8>| {
        let mut build = from(MAC_A, FD00_A, icmp);
        build.extensions = vec![(protocol::FRAGMENT, vec![0, offset << 3 | 1, 0, 0, 0, 0])];
        build
    };
    assert_eq!(verdict(&fragment(0, message.clone())), obscure);
    // The bridge forwards fragments of a ping, because they are not neighbour discovery.
    assert_eq!(verdict(&fragment(0, vec![128; 32])), Verdict::Unicast(B));
    assert_eq!(verdict(&fragment(1, message)), Verdict::Unicast(B));
}

fn bridge_of() -> Bridge {
    bridge()
}

/// BR-14: other ICMPv6 messages and other IPv6 packets pass.
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
        // The bytes would be a neighbour advertisement if the protocol were ICMPv6.
        let mut build = from(MAC_A, FD00_1, nd(136, 24, FD00_B, &[(2, MAC_B)]));
        build.protocol = number;
        assert_eq!(go(&mut bridge, &build.bytes(), A, 0), Verdict::Unicast(B));
        assert_eq!(
            go(&mut bridge, &build.tags(1).bytes(), A, 0),
            Verdict::Unicast(B)
        );
    }
}

/// BR-16: the bridge needs long snapshots only of frames that it inspects, and a batch provides
/// them.
#[test]
fn only_inspected_frames_need_long_snapshots() {
    let more = |build: Build| needed_header_bytes(&build.bytes()[..SNAPSHOT_MIN]) == SNAPSHOT_MAX;
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
    assert_eq!(
        needed_header_bytes(&arp(1, [2; 6], [0; 4], [0; 6], [0; 4])),
        0
    );
    assert_eq!(needed_header_bytes(&[0; 13]), 0);

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
    // Frames from a NIC, and from a port that does not exist, need no inspection.
    let mut from_wire = [frame_of(&from(STATION, FD00_A, vec![136; 60]).bytes(), &[])];
    verdicts.clear();
    bridge.forward_batch(&mut from_wire, WIRE, 0, &mut verdicts);
    bridge.forward_batch(&mut from_wire, 77, 0, &mut verdicts);
    assert_eq!(verdicts, [to(B), dropped(DropReason::UnknownPort)]);
    assert_eq!(from_wire[0].header().len(), SNAPSHOT_MIN);
    assert_eq!(bridge.drops_total().get(DropReason::UnknownPort), 1);
    assert_eq!(frames[2].header().len(), 58);
}
