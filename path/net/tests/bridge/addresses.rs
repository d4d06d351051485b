//! Address ownership: BR-13, and BR-15 without neighbour discovery.

use super::*;
use net::packet::protocol;

/// BR-13: ARP from a guest carries only its MAC, and no address of another port.
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
    // A MAC other than the frame's source, even the guest's second one, and even for its own
    // address.
    for sender in [MAC_B, STATION, MAC_A2, ALL] {
        assert_eq!(verdict(&arp_from(MAC_A, sender, mine), A), forged);
    }
    // Another guest's address, then a free address.
    assert_eq!(verdict(&arp_from(MAC_A, MAC_A, [10, 0, 0, 11]), A), forged);
    assert_eq!(verdict(&arp_from(MAC_A, MAC_A, [10, 0, 0, 1]), A), forged);
    // A guest without configured addresses may claim any address that no other port owns.
    let from_router = set(&[WIRE, WIRE2, A, B]);
    assert_eq!(
        verdict(&arp_from(MAC_R, MAC_R, [10, 0, 0, 1]), ROUTER),
        from_router
    );
    assert_eq!(
        verdict(&arp_from(MAC_R, MAC_R, [10, 0, 0, 11]), ROUTER),
        forged
    );
    // Behind tags and in reverse ARP, the verdicts are the same.
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
    // A NIC's stations may claim anything.
    let from_wire = set(&[WIRE2, A, B, ROUTER]);
    assert_eq!(
        verdict(&arp_from(STATION, OTHER, [10, 0, 0, 77]), WIRE),
        from_wire
    );
}

/// BR-15: a frame that cannot be parsed is dropped.
#[test]
fn guests_cannot_disguise_frames() {
    let mut bridge = bridge();
    let mut verdict = |bytes: &[u8], port| go(&mut bridge, bytes, port, 1000 * S);
    let obscure = dropped(DropReason::Obscure);
    let good = arp_from(MAC_A, MAC_A, [10, 0, 0, 10]);
    // The frames are truncated, or have another form of ARP.
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
    // The first EtherType that is not a length.
    other[12..14].copy_from_slice(&1536u16.to_be_bytes());
    assert_eq!(verdict(&other, A), Verdict::Unicast(B));
    other[12..14].copy_from_slice(&1535u16.to_be_bytes());
    assert_eq!(verdict(&other, A), obscure);
    // A chain of extension headers that is too long.
    let mut build = Build {
        source: MAC_A,
        destination: MAC_B,
        ..Build::tcp6(b"")
    };
    build.extensions = vec![(protocol::DESTINATION, vec![0; 6]); 9];
    assert_eq!(verdict(&build.bytes(), A), obscure);
    build.extensions = vec![(protocol::DESTINATION, vec![0; 126])];
    assert_eq!(verdict(&build.bytes(), A), obscure);
    // Frames from a NIC are not checked.
    let from_wire = Build {
        source: STATION,
        ..build
    };
    assert_eq!(verdict(&from_wire.bytes(), WIRE), Verdict::Unicast(B));
}

/// BR-13: configured addresses protect their owner; only a confined guest is limited to them.
#[test]
fn a_guest_with_addresses_may_have_more() {
    let mut bridge = bridge();
    let addresses = vec!["10.0.0.50".parse().unwrap()];
    let port = PortConfig {
        addresses,
        ..PortConfig::guest(STATION)
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

/// BR-13: a NIC port's addresses (a gateway's, for example) are protected like a guest's.
#[test]
fn a_gateway_s_address_is_protected() {
    let mut bridge = Bridge::new(settings());
    let addresses = vec!["10.0.0.1".parse().unwrap()];
    bridge
        .add(
            0,
            &PortConfig {
                addresses,
                ..PortConfig::nic()
            },
        )
        .unwrap();
    bridge.add(1, &PortConfig::guest(MAC_A)).unwrap();
    let claim = arp_from(MAC_A, MAC_A, [10, 0, 0, 1]);
    assert_eq!(
        go(&mut bridge, &claim, 1, 0),
        dropped(DropReason::ForgedArp)
    );
    let own = arp_from(MAC_A, MAC_A, [10, 0, 0, 2]);
    assert_eq!(go(&mut bridge, &own, 1, 0), Verdict::Unicast(0));
}
