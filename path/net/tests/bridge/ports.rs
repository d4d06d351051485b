//! Adding and removing ports (BR-17), port sets, and counter names.

use super::*;
use net::bridge::{AddError, MAX_PORTS, PortSet};
use std::net::IpAddr;

/// BR-17: ports are added and removed while frames pass.
#[test]
fn removed_port_leaves_no_state() {
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

    // Addresses of other ports stay protected.
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
    // Its MAC and addresses are free again.
    assert_eq!(
        go(&mut bridge, &plain(MAC_B, MAC_A), WIRE2, 0),
        Verdict::Unicast(B)
    );
    let claim = arp_from(MAC_R, MAC_R, [10, 0, 0, 10]);
    assert_eq!(go(&mut bridge, &claim, ROUTER, 0), set(&[WIRE2, B]));
    // Its drops stay in the total; a new port of the same number starts at zero.
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

/// BR-17: a port that cannot be added changes nothing.
#[test]
fn ports_that_contradict_others_are_refused() {
    let mut bridge = bridge();
    let mut add = |number, port: &PortConfig| bridge.add(number, port);
    assert_eq!(
        add(MAX_PORTS, &PortConfig::nic()),
        Err(AddError::Number(MAX_PORTS))
    );
    assert_eq!(add(A, &PortConfig::nic()), Err(AddError::Exists(A)));
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

#[test]
fn every_reason_has_a_unique_name() {
    let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), DropReason::ALL.len());
    for name in names {
        assert!(
            name.chars()
                .all(|c| c.is_ascii_lowercase() || matches!(c, '_' | '.')),
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
    let json = serde_json::to_value(total).unwrap();
    assert_eq!(json["runt"], 1);
    assert_eq!(json["unknown_port"], 1);
    assert_eq!(json["forged_source"], 0);
    assert_eq!(json.as_object().unwrap().len(), DropReason::ALL.len());
}

/// Users find each reason in the pages, with its cause.
#[test]
fn every_reason_is_documented() {
    let spec = include_str!("../../../../specs/bridge.md");
    let pages = [
        include_str!("../../../../docs/config.md"),
        include_str!("../../../../docs/troubleshooting.md"),
    ];
    for reason in DropReason::ALL {
        let name = format!("`{}`", reason.name());
        assert!(spec.contains(&name), "specs/bridge.md lacks {name}");
        assert!(
            pages.iter().any(|page| page.contains(&name)),
            "docs/config.md and docs/troubleshooting.md lack {name}"
        );
    }
}

#[test]
fn port_set_lists_each_valid_port_once() {
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
    // `without` excludes one port, and discards earlier exclusions.
    assert!(set.without(64).without(1).contains(64));
    assert_eq!(PortSet::from_iter([]).iter().count(), 0);
}
