//! Guests of the file, attached guests and guests that a reload adds are guarded alike. The log and
//! `grantway status` report dropped frames.

use crate::forged::{BROADCAST_MAC, TIMES, hex, mac, send};
use crate::machine::{Machine, text};
use crate::programs::{DB, IPV4, NAMES, WEB, WIRE, config};
use crate::reload::write;
use serde_json::{Value, json};
use std::fs;
use testing::{FORGER, forged_frame_drops, wait_for, wait_until};

const IPV6: [&str; 3] = ["fd00::1", "fd00::2", "fd00::3"];
/// A router behind the wire that is not a station of the machine.
const GATEWAY: &str = "10.0.0.254";

/// Returns the file of a machine whose guests have a gateway.
fn whole_file(namespaces: &[String]) -> String {
    let gateway = format!("endpoint = \"tap\"\ngateway = \"{GATEWAY}\"\n");
    config("", namespaces).replace("endpoint = \"tap\"\n", &gateway)
}

/// Returns a machine whose guests are in its file.
fn of_the_file() -> Option<Machine> {
    Machine::start(&["python3", "ip", "ping"], &NAMES, whole_file)
}

/// Returns the same machine, to which a reload has added the guests.
fn reloaded() -> Option<Machine> {
    let mut whole = String::new();
    let machine = Machine::start(&["python3", "ip", "ping"], &NAMES, |namespaces| {
        whole = whole_file(namespaces);
        let guests = whole.find("[[guest]]").unwrap();
        whole[..guests].to_owned()
    })?;
    let outcome = machine.ask(&["reload", &write(&machine, &whole)]);
    assert_eq!(outcome["done"], 2, "{outcome}");
    Some(machine)
}

/// Returns the same machine with attached guests.
fn attached() -> Option<Machine> {
    let machine = Machine::start(&["python3", "ip", "ping"], &NAMES, |namespaces| {
        let whole = config("", namespaces);
        let guests = whole.find("[[guest]]").unwrap();
        whole[..guests].to_owned()
    })?;
    for place in [WEB, DB] {
        let (namespace, name) = &machine.places[place];
        let netns = namespace.path().display().to_string();
        let [v4, v6] = [format!("{}/24", IPV4[place]), format!("{}/64", IPV6[place])];
        machine.ask(&[
            "attach",
            name,
            "--netns",
            &netns,
            "--ip",
            &v4,
            "--ip",
            &v6,
            "--gateway",
            GATEWAY,
            "--ifname",
            name,
        ]);
    }
    Some(machine)
}

/// Returns a UDP packet in hexadecimal, from an address to the wire's, with these ports.
fn udp(own: &str, to: &str, source: &str, ports: &str) -> String {
    let datagram = format!("{ports}000c000064617461");
    match source.contains(':') {
        false => {
            let header = format!("450000200000000040110000{}{}", hex(source), hex(IPV4[WIRE]));
            format!("{to}{own}0800{header}{datagram}{}", "00".repeat(14))
        }
        true => {
            let address = |n: &str| format!("fd00{}{n:0>2}", "00".repeat(13));
            let last = source.rsplit(':').next().unwrap();
            let header = format!("60000000000c1140{}{}", address(last), address("1"));
            format!("{to}{own}86dd{header}{datagram}")
        }
    }
}

/// Sends from DB every kind of frame that a guest must not send, and checks that it is dropped and
/// reported.
fn is_guarded(machine: &Machine) {
    let [own, wire] = [DB, WIRE].map(|place| mac(machine, place));
    let arp = |address: &str| {
        let head = format!("{BROADCAST_MAC}{own}08060001080006040002{own}");
        let address = hex(address);
        format!(
            "{head}{address}{}{address}{}",
            "00".repeat(6),
            "00".repeat(18)
        )
    };
    let frames = [
        // This frame resembles a frame from a macvlan.
        format!("{BROADCAST_MAC}02000000070788b5{}", "00".repeat(46)),
        arp(GATEWAY),
        arp(IPV4[WEB]),
        arp("10.0.0.77"),
        udp(&own, &wire, "10.0.0.77", "00090009"),
        udp(&own, &wire, "fd00::77", "00090009"),
        udp(&own, &wire, IPV4[DB], "00430044"),
    ];
    send(machine, DB, &frames);
    let expected = [
        ("forged_source", 1),
        ("forged_arp", 3),
        ("forged_address", 2),
        ("forged_dhcp", 1),
    ];
    let are_dropped = |expected: &[(&str, u64)]| {
        wait_until("not every forged frame is dropped", || {
            let drops = machine.ask(&["stat", "driver"])["driver"]["drops"].clone();
            println!("{drops}");
            let wait_until_released = |(reason, count): &(&str, u64)| drops[*reason] == *count;
            expected.iter().all(wait_until_released)
        });
    };
    let expected = expected.map(|(reason, frames)| (reason, frames * TIMES));
    are_dropped(&expected);
    let warnings = machine.ask(&["status"])["warnings"].clone();
    let lines: Vec<&str> = warnings
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let shown = machine.grantway(&["status"]);
    let shown = text(&shown.stdout);
    let log = || fs::read_to_string(machine.folder.path().join("run/grantway.log")).unwrap();
    assert_eq!(lines.len(), expected.len(), "{warnings}");
    for key in [
        "extra_macs = [",
        "claims 10.0.0.254",
        "allowed_sources = [",
        "dhcp_server = true",
    ] {
        let said = lines.iter().find(|line| line.contains(key));
        let said = said.unwrap_or_else(|| panic!("{key}: {warnings}"));
        assert!(said.starts_with("vif.db-0: dropped"), "{said}");
        assert!(shown.contains(&format!("warning: {said}")), "{shown}");
        wait_until("the log does not report it", || log().contains(said));
        assert_eq!(log().matches(said).count(), 1, "{said}");
    }
    // A router, a DHCPv6 server, and a station with another station's MAC cannot send such frames
    // either.
    let args = ["-c", FORGER, NAMES[DB], IPV4[DB], IPV4[WEB]];
    let run = machine.run(DB, "python3", &args);
    assert!(run.status.success(), "{run:?}");
    let sums = forged_frame_drops().map(|(reason, count)| {
        let earlier = expected.iter().find(|(named, _)| *named == reason);
        (reason, count + earlier.map_or(0, |(_, earlier)| *earlier))
    });
    are_dropped(&sums.collect::<Vec<_>>());
    // Frames that the guard allows pass.
    let ping = machine.run(
        DB,
        "ping",
        &["-c", "3", "-i", "0.05", "-w", "60", IPV4[WIRE]],
    );
    assert!(ping.status.success(), "{ping:?}");
}

/// BR-3, BR-13, BR-14, BR-23, end to end.
#[test]
fn guests_of_the_file_are_guarded() {
    if let Some(machine) = of_the_file() {
        is_guarded(&machine);
        machine.end();
    }
}

#[test]
fn attached_guests_are_guarded_alike() {
    if let Some(machine) = attached() {
        is_guarded(&machine);
        machine.end();
    }
}

#[test]
fn guests_added_by_a_reload_are_guarded_alike() {
    if let Some(machine) = reloaded() {
        is_guarded(&machine);
        machine.end();
    }
}

/// If a guest has another guest's IPv6 address, its kernel sends neighbour solicitations from it.
#[test]
fn a_duplicate_ipv6_address_is_named() {
    let Some(machine) = attached() else { return };
    let address = format!("{}/64", IPV6[WEB]);
    let add = ["-6", "addr", "add", &address, "dev", NAMES[DB], "nodad"];
    let run = machine.run(DB, "ip", &add);
    assert!(run.status.success(), "{run:?}");
    let warning = wait_for("the duplicate is not reported", || {
        let args = ["-6", "-c", "1", "-W", "1", "-I", IPV6[WEB], IPV6[WIRE]];
        machine.run(DB, "ping", &args);
        let status = machine.ask(&["status"]);
        let warnings = status["warnings"].as_array()?.iter();
        let mut warnings = warnings.filter_map(Value::as_str);
        warnings
            .find(|said| said.contains("claims"))
            .map(str::to_owned)
    });
    assert!(
        warning.contains("claims fd00::2, the address of vif.web-0"),
        "{warning}"
    );
    machine.end();
}

/// Keys of the interface in a file for `attach` allow frames that are dropped by default.
#[test]
fn keys_allow_frames_dropped_by_default() {
    let Some(machine) = Machine::start(&["python3", "ip"], &NAMES, |namespaces| {
        let whole = config("", namespaces);
        whole[..whole.find("[[guest]]").unwrap()].to_owned()
    }) else {
        return;
    };
    let (namespace, name) = &machine.places[DB];
    let file = machine.folder.path().join("db.toml");
    let described = format!(
        "[[vif]]\nendpoint = \"tap\"\nnetns = \"{}\"\nifname = \"{name}\"\naddresses = \
         [\"{}/24\"]\nextra_macs = [\"02:00:00:00:07:01\"]\nallowed_sources = [\"10.0.0.64/26\"]\n\
         confined = false\ndhcp_server = true\n",
        namespace.path().display(),
        IPV4[DB]
    );
    fs::write(&file, described).unwrap();
    machine.ask(&["attach", name, "--file", &file.display().to_string()]);
    let [own, wire] = [DB, WIRE].map(|place| mac(&machine, place));
    let out = || {
        let stat = machine.ask(&["stat", "driver"]);
        let port = &stat["driver"]["ports"]["nic.wire"];
        port["traffic"]["out_packets"].as_u64().unwrap()
    };
    let before = out();
    let frames = [
        format!("{wire}02000000070188b5{}", "00".repeat(46)),
        udp(&own, &wire, "10.0.0.77", "00090009"),
        udp(&own, &wire, IPV4[DB], "00430044"),
    ];
    send(&machine, DB, &frames);
    wait_until("some frames have not reached the wire", || {
        out() - before >= 3 * TIMES
    });
    let status = machine.ask(&["status"]);
    assert_eq!(status["warnings"], json!([]));
    machine.end();
}

/// Addresses that no station can use are rejected with the reason, and leave nothing.
#[test]
fn addresses_of_no_station_are_rejected() {
    let Some(machine) = attached() else { return };
    let netns = machine.places[WIRE].0.path().display().to_string();
    let refused = |args: &[&str], why: &str| {
        let all = [&["attach", "x", "--netns", &netns, "--ifname", "x"], args].concat();
        let run = machine.grantway(&all);
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    };
    for (address, why) in [
        ("10.91.0.0/24", "is the address of the network itself"),
        ("10.91.0.255/24", "is the broadcast address of its network"),
        ("127.0.0.5/8", "is a loopback address"),
        ("::ffff:10.0.0.1/96", "is an IPv4 address mapped into IPv6"),
        ("fd00::9", "prefix length missing: write it like fd00::9/64"),
        (IPV4[WIRE], "write it like 10.0.0.1/24"),
    ] {
        refused(&["--ip", address], why);
    }
    for (gateway, why) in [
        ("10.91.0.7", "is the station's own"),
        ("10.91.0.255", "is the broadcast address"),
        ("10.92.0.1", "is in none of the networks"),
        ("fe80::1", "no IPv6 address is among"),
    ] {
        refused(&["--ip", "10.91.0.7/24", "--gateway", gateway], why);
    }
    // A link-local router is a neighbour of every station.
    let own = "--allow-overlap --ip fd00::9/64 --gateway fe80::1".split(' ');
    let all: Vec<&str> = ["attach", "x", "--netns", &netns, "--ifname", "x"]
        .into_iter()
        .chain(own)
        .collect();
    machine.ask(&all);
    let routes = machine.run(WIRE, "ip", &["-6", "route", "show", "default"]);
    assert!(
        text(&routes.stdout).contains("via fe80::1 dev x"),
        "{routes:?}"
    );
    machine.ask(&["detach", "x"]);
    machine.end();
}

#[test]
fn a_mismatched_mtu_causes_a_warning() {
    let Some(machine) = attached() else { return };
    let netns = machine.places[WIRE].0.path().display().to_string();
    let all = [
        "attach", "x", "--netns", &netns, "--ifname", "x", "--mtu", "9000", "--json",
    ];
    let run = machine.grantway(&all);
    assert!(run.status.success(), "{run:?}");
    let warns = "`mtu` is 9000, but that of NIC wire is 1500";
    let attached: Value = serde_json::from_slice(&run.stdout).unwrap();
    let said = attached["warnings"][0].as_str().unwrap();
    assert!(said.contains(warns), "{said}");
    assert!(text(&run.stderr).contains(warns), "{run:?}");
    machine.ask(&["detach", "x"]);
    machine.end();
}
