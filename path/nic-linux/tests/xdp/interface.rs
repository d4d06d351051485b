//! Tests interfaces that the set-up creates, or takes over and restores.

use super::*;

#[test]
fn the_pair_is_removed_with_the_device() {
    let Some(wire) = Wire::new() else { return };
    let has_interface = || {
        let devices = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        devices.contains("wire")
    };
    assert!(wire.namespace.enter(has_interface).unwrap());
    let namespace = wire.drop_all();
    wait_until("the interface still exists", || {
        !namespace.enter(has_interface).unwrap()
    });
}

#[test]
fn existing_interface_is_taken_over_and_returned() {
    require!(tool("ethtool"));
    let Some(namespace) = place() else { return };
    let ip = |args: &[&str]| {
        let run = namespace.enter(|| Command::new("ip").args(args).status());
        run.unwrap().is_ok_and(|status| status.success())
    };
    if !ip(&[
        "link", "add", "near", "type", "veth", "peer", "name", "wire",
    ]) {
        return skip("veth");
    }
    assert!(ip(&["link", "set", "wire", "up"]));
    let netdev = Netdev::Existing {
        ifname: "near".into(),
        netns: Some(path(&namespace)),
    };
    let Some(mut wire) = Wire::on(namespace, netdev) else {
        return;
    };
    // The other end detects the carrier after a delay, and sends no frame before that time.
    let show = || Command::new("ip").args(["link", "show", "wire"]).output();
    let is_up = |shown: std::process::Output| {
        String::from_utf8(shown.stdout).is_ok_and(|text| text.contains("state UP"))
    };
    wait_until("no carrier", || {
        is_up(wire.namespace.enter(show).unwrap().unwrap())
    });
    // Offloads must be off, because a socket receives a frame's bytes without the kernel's
    // metadata.
    let features = |ifname: &str| {
        let show = || Command::new("ethtool").args(["-k", ifname]).output();
        let shown = wire.namespace.enter(show).unwrap().unwrap();
        String::from_utf8(shown.stdout).unwrap()
    };
    let (near, far) = (features("near"), features("wire"));
    for (shown, feature) in [
        (&near, "rx-vlan-offload"),
        (&near, "rx-vlan-stag-hw-parse"),
        (&far, "tx-vlan-offload"),
        (&far, "tx-vlan-stag-hw-insert"),
        (&far, "tx-checksumming"),
    ] {
        assert!(
            shown.contains(&format!("{feature}: off")),
            "{feature}: {shown}"
        );
    }
    let station = Station::new(&wire.namespace, "wire");
    station.send(&frame(1, 100));
    assert_eq!(wire.receive(1, TIMEOUT), [frame(1, 100)]);
    let namespace = wire.drop_all();
    let show = || Command::new("ip").args(["link", "show", "near"]).output();
    let shown = || String::from_utf8(namespace.enter(show).unwrap().unwrap().stdout).unwrap();
    assert!(shown().contains("near"));
    wait_until("the interface is not restored", || {
        let shown = shown();
        !shown.contains("xdp") && !shown.contains("PROMISC")
    });
}

#[test]
fn unusable_interfaces_are_reported_with_a_remedy() {
    let Some(namespace) = place() else { return };
    let netns = path(&namespace);
    let missing = inspect("nowhere", Some(&netns), 0).unwrap_err();
    assert!(matches!(missing, NetError::NoInterface { .. }), "{missing}");
    let text = missing.to_string();
    assert!(
        text.contains("`nowhere`") && text.contains("ip link"),
        "{text}"
    );
    let made = namespace.enter(|| {
        let pair = "link add many numrxqueues 4 numtxqueues 4 type veth peer name other";
        Command::new("ip").args(pair.split(' ')).status()
    });
    if !made.unwrap().is_ok_and(|status| status.success()) {
        return skip("veth");
    }
    let many = inspect("many", Some(&netns), 0).unwrap_err().to_string();
    assert!(
        many.contains("4 receive queues") && many.contains("ethtool -L many"),
        "{many}"
    );
    // The name is in use.
    let area = Area::anonymous(CHUNKS * CHUNK).unwrap();
    let taken = Netdev::Veth(TapSpec {
        ifname: "many".into(),
        netns: Some(netns),
        mtu: 1500,
        ..TapSpec::default()
    });
    let taken = open(&spec(taken), area.span()).unwrap_err();
    assert!(matches!(taken, NetError::Exists { .. }), "{taken}");
}
