//! Learned stations: BR-4 to BR-7.

use super::*;

/// BR-4: learning on NIC ports only, and only from unicast sources.
#[test]
fn stations_are_learned_behind_nics() {
    let mut bridge = bridge();
    go(&mut bridge, &plain(MAC_A, STATION), WIRE2, 0);
    assert_eq!(
        go(&mut bridge, &plain(STATION, MAC_A), A, 0),
        Verdict::Unicast(WIRE2)
    );
    // The station moves.
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

/// BR-5: a bound MAC cannot be learned elsewhere, and a guest's MAC as source from a NIC is
/// dropped.
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

/// BR-5: this also holds if the MAC was learned before the guest was added.
#[test]
fn later_guest_reclaims_its_mac() {
    let mut bridge = bridge();
    let late = Mac([2, 0, 0, 0, 0, 0x77]);
    go(&mut bridge, &plain(MAC_A, late), WIRE, 0);
    assert_eq!(
        go(&mut bridge, &plain(late, MAC_A), A, 0),
        Verdict::Unicast(WIRE)
    );
    bridge.add(9, &PortConfig::guest(late)).unwrap();
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

/// BR-6: a silent station is removed, an active one is not.
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
    // Only sending keeps a station known, not receiving.
    go(&mut bridge, &plain(MAC_A, STATION), WIRE, 200 * S);
    assert_eq!(go(&mut bridge, &to_it, A, 499 * S), Verdict::Unicast(WIRE));
    assert_eq!(go(&mut bridge, &to_it, A, 500 * S), unknown);
}

fn numbered(n: u32) -> Mac {
    let [a, b, c, d] = n.to_be_bytes();
    Mac([0x52, 0x54, a, b, c, d])
}

/// BR-7: the table is bounded, new stations displace none, and expired ones make room.
#[test]
fn flood_of_sources_is_bounded() {
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
    // The stations have expired: another one fits, and so do 63 more.
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

/// BR-7: the whole table is searched for expired entries only occasionally.
#[test]
fn room_is_made_only_after_expiry() {
    let mut bridge = bridge();
    for n in 0..64 {
        go(&mut bridge, &plain(MAC_A, numbered(n)), WIRE, 0);
    }
    let full: Vec<Mac> = bridge.stations(0).map(|station| station.mac).collect();
    // 300 s later one station has sent again.
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
