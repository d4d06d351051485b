//! Large receive offload under real TCP. Every byte arrives with any setting, a forwarder gets
//! frames that can be segmented into the original ones, and no buffer is lost when a domain dies.

use crate::machine::Machine;
use crate::processes::{kill, pid};
use crate::programs::{
    DB, FOR_FILES, IPV4, NAMES, SomeFile, WEB, WIRE, config, disturbed, lengths_of, start_with,
};
use serde_json::Value;
use std::fs;
use std::time::Duration;
use testing::{wait_for, wait_until};

/// Bytes of a file that `curl` transfers.
const FILE_BYTES: usize = 100_000_000;

/// Returns the counters of a NIC or interface.
fn counted(lro: &Value) -> (u64, u64) {
    let count = |name: &str| lro[name].as_u64().unwrap_or(0);
    (count("segments"), count("aggregates"))
}

fn of_nic(machine: &Machine, nic: &str) -> Value {
    let stat = machine.ask(&["stat", "driver"]);
    stat["driver"]["ports"][format!("nic.{nic}")]["lro"].clone()
}

fn of_guest(machine: &Machine, guest: &str) -> Value {
    machine.ask(&["stat", guest])[guest]["vifs"]["0"]["lro"].clone()
}

/// Covers every value of every setting in few rows.
#[test]
fn files_of_100_mb_arrive_with_every_lro_setting() {
    for (at, buffers, backend, flush, psh, moderation) in [
        ("physical", "skb", "linearize", "poll", "flush", "event"),
        ("physical", "page", "scatter", "t50", "merge", "tick"),
        ("virtual", "skb", "scatter", "da2", "merge", "event"),
        ("virtual", "page", "linearize", "adaptive", "flush", "event"),
        ("both", "skb", "scatter", "t20", "flush", "event"),
        ("both", "page", "linearize", "da2", "flush", "tick"),
        ("physical", "skb", "scatter", "adaptive", "flush", "event"),
    ] {
        let switches = format!(
            "[lro]\nat = \"{at}\"\nbuffers = \"{buffers}\"\nbackend = \"{backend}\"\n\
             flush = \"{flush}\"\npsh = \"{psh}\"\n"
        );
        let started = Machine::start(FOR_FILES, &NAMES, |namespaces| {
            let text = config(&switches, namespaces);
            let nic = format!("kind = \"tap\"\nmoderation = \"{moderation}\"\n");
            text.replacen("kind = \"tap\"\n", &nic, 1)
        });
        let Some(machine) = started else { return };
        eprintln!("{at} {buffers} {backend} {flush} {psh} {moderation}");
        let file = SomeFile::new(&machine, FILE_BYTES);
        file.carry(WIRE, (WEB, IPV4[WIRE]), &[]);
        let (driver, guest) = (of_nic(&machine, "wire"), of_guest(&machine, "web"));
        let merged = |lro: &Value| lro["rate"].as_f64().is_some_and(|rate| rate > 1.5);
        let physical = at != "virtual";
        assert_eq!(merged(&driver), physical, "{driver}");
        // The NIC's driver merges packets up to the maximum length.
        assert_eq!(merged(&guest), !physical, "{guest}");
        assert_eq!(guest["on"], at != "physical");
        let linear = driver["linearized"].as_u64() > Some(0);
        assert_eq!(linear, physical && backend == "linearize", "{driver}");
        file.carry(WEB, (WIRE, IPV4[WEB]), &[]);
        file.carry(WEB, (DB, IPV4[WEB]), &[]);
        machine.end();
    }
}

/// A stream of single packets from one guest to another bypasses the NIC's driver.
#[test]
fn single_packets_of_a_sibling_are_merged() {
    let switches = "[lro]\nat = \"virtual\"\nflush = \"t50\"";
    let started = Machine::start(FOR_FILES, &NAMES, |namespaces| {
        let text = config(switches, namespaces);
        let plain = "name = \"web\"\n[[guest.vif]]\noffloads = \"none\"\n";
        text.replacen("name = \"web\"\n[[guest.vif]]\n", plain, 1)
    });
    let Some(machine) = started else { return };
    let file = SomeFile::new(&machine, FILE_BYTES / 5);
    file.carry(WEB, (DB, IPV4[WEB]), &[]);
    let lro = of_guest(&machine, "db");
    let (segments, aggregates) = counted(&lro);
    assert!(segments > 2 * aggregates && segments > 13_000, "{lro}");
    // An endpoint that accepts only single packets receives them.
    file.carry(DB, (WEB, IPV4[DB]), &[]);
    assert_eq!(of_guest(&machine, "web")["on"], false);
    machine.ask(&["set", "web", "lro.at", "both"]);
    assert_eq!(of_guest(&machine, "web")["on"], false);
    machine.end();
}

/// Returns a configuration of a guest that is a router between two wires.
fn router(switches: &str, namespaces: &[String]) -> String {
    let end = |n: usize, addresses: &str, gateway: &str| {
        format!(
            "netns = \"{}\"\naddresses = [\"{addresses}/24\"]\n{gateway}",
            namespaces[n]
        )
    };
    let nic = |n: usize, name: &str, address: &str, gateway: &str| {
        let gateway = format!("gateway = \"{gateway}\"\n");
        format!(
            "[[nic]]\nname = \"{name}\"\nkind = \"tap\"\n{}",
            end(n, address, &gateway)
        )
    };
    let vif = |address: &str| {
        let end = end(1, address, "");
        format!("[[guest.vif]]\nendpoint = \"tap\"\nforwards = true\n{end}")
    };
    format!(
        "{switches}\n{}{}[[guest]]\nname = \"router\"\n{}{}",
        nic(0, "near", "10.0.0.1", "10.0.0.2"),
        nic(2, "far", "10.1.0.1", "10.1.0.2"),
        vif("10.0.0.2"),
        vif("10.1.0.2")
    )
}

#[test]
fn a_routers_next_wire_gets_original_packets() {
    const NEAR: usize = 0;
    const ROUTER: usize = 1;
    const FAR: usize = 2;
    let needed = [FOR_FILES, &["tcpdump"]].concat();
    for at in ["physical", "both"] {
        let switches = format!("[lro]\nat = \"{at}\"\nflush = \"t50\"\n");
        let names = ["near", "eth", "far"];
        let started = Machine::start(&needed, &names, |paths| router(&switches, paths));
        let Some(machine) = started else { return };
        let forward = || fs::write("/proc/sys/net/ipv4/ip_forward", "1");
        machine.places[ROUTER].0.enter(forward).unwrap().unwrap();
        let file = SomeFile::new(&machine, FILE_BYTES / 5);
        let lengths = lengths_of(&machine, (FAR, "far"), 5000, || {
            file.carry(NEAR, (FAR, "10.0.0.1"), &[]);
        });
        assert_eq!(lengths.iter().max(), Some(&1514));
        let lro = of_nic(&machine, "near");
        assert!(lro["rate"].as_f64() > Some(2.0), "{lro}");
        // Irreversible merging is rejected.
        let run = machine.grantway(&["set", "driver", "lro.rules", "lro"]);
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        machine.end();
    }
}

#[test]
fn settings_change_while_a_stream_runs() {
    let Some(machine) = start_with("", FOR_FILES) else {
        return;
    };
    let switches = [
        ("driver", "lro.at", "physical"),
        ("driver", "lro.flush", "t50"),
        ("web", "lro.at", "virtual"),
        ("driver", "lro.backend", "linearize"),
        ("driver", "lro.flush", "da2"),
        ("web", "lro.flush", "t100"),
        ("driver", "lro.buffers", "page"),
        ("driver", "lro.at", "none"),
        ("web", "lro.buffers", "page"),
        ("web", "lro.flush", "adaptive"),
        ("driver", "lro.at", "both"),
        ("web", "lro.at", "none"),
        ("driver", "lro.rules", "lro"),
        ("driver", "lro.psh", "merge"),
        ("driver", "lro.segments", "8"),
        ("driver", "lro.rules", "gro"),
        ("driver", "lro.flush", "adaptive"),
    ];
    let file = SomeFile::new(&machine, FILE_BYTES);
    let stream = || file.carry(WIRE, (WEB, IPV4[WIRE]), &["--limit-rate", "30M"]);
    disturbed(2 * switches.len(), Duration::from_millis(20), stream, |n| {
        let (domain, key, value) = switches[n % switches.len()];
        machine.ask(&["set", domain, key, value]);
    });
    machine.ask(&["set", "driver", "lro.flush", "t20"]);
    assert_eq!(of_nic(&machine, "wire")["flush"], "t20");
    for (key, value) in [
        ("lro.flush", "soon"),
        ("lro.hold", "9"),
        ("lro.hold_us", "19"),
    ] {
        let run = machine.grantway(&["set", "driver", key, value]);
        assert_eq!(run.status.code(), Some(2), "{run:?}");
    }
    assert_eq!(of_nic(&machine, "wire")["flush"], "t20");
    machine.end();
}

#[test]
fn a_killed_domain_leaks_no_buffer() {
    // With a maximum wait of 10 ms, the machine holds packets at any moment.
    let switches = "[lro]\nat = \"both\"\npsh = \"merge\"\nflush = \"t10000\"\n";
    let Some(machine) = start_with(switches, &["iperf3"]) else {
        return;
    };
    let free = |machine: &Machine| {
        let stat = machine.ask(&["stat", "driver"]);
        let port = &stat["driver"]["ports"]["nic.wire"];
        let held = port["lro"]["held"].as_u64().unwrap();
        (port["buffers_free"].as_u64().unwrap(), held)
    };
    // The test waits until the packets that kernels send at start-up have passed.
    let idle = wait_for("some packets are always held", || {
        let (free, held) = free(&machine);
        (held == 0).then_some(free)
    });
    let server = machine.spawn(WEB, "iperf3", &["-s", "-1"]);
    machine.wait_for_listener(WEB, 5201);
    let args = ["-c", IPV4[WEB], "-t", "600", "-P", "4"];
    let client = machine.spawn(WIRE, "iperf3", &args);
    wait_until("no packet is ever held", || free(&machine).1 > 0);
    assert!(kill(pid(&machine, "web")));
    drop((client, server));
    wait_until("buffers are lost with the domain", || {
        let (free, held) = free(&machine);
        println!("{free} of {idle} buffers, {held} held");
        free >= idle && held == 0
    });
    machine.end();
}
