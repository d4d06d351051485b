//! A wire on AF_XDP, with the same programs and settings, and with kills that must leave nothing.

use crate::machine::{Machine, text};
use crate::processes::{kill, pid};
use crate::programs::{
    FOR_FILES, IPV4, NAMES, PATHS, SomeFile, WEB, WIRE, carry_files, config, ping_every_way,
};
use crate::restart::{driver, wait_for_another};
use netdev::netns::Namespace;
use serde_json::Value;
use std::fs;
use std::process::Command;
use testing::{require, skip, wait_until};

const FILE_BYTES: usize = 5_000_000;

/// Starts the usual machine with its wire on AF_XDP. `switches` precedes the configuration, and
/// `nic` holds keys of the wire.
fn start(switches: &str, nic: &str, needed: &[&str]) -> Option<Machine> {
    require!(af_xdp);
    Machine::start(needed, &NAMES, |namespaces| {
        let wire = format!("kind = \"xdp\"\n{nic}\n");
        config(switches, namespaces).replacen("kind = \"tap\"\n", &wire, 1)
    })
}

fn wire(machine: &Machine) -> Value {
    machine.ask(&["stat", "driver"])["driver"]["ports"]["nic.wire"].clone()
}

#[test]
fn unmodified_programs_work_over_af_xdp() {
    let needed = [FOR_FILES, &["ping", "iperf3"]].concat();
    let Some(machine) = start("", "", &needed) else {
        return;
    };
    ping_every_way(&machine);
    carry_files(&machine, FILE_BYTES);
    for (from, to) in PATHS {
        let server = machine.spawn(from, "iperf3", &["-s", "-1"]);
        machine.wait_for_listener(from, 5201);
        let args = ["-c", IPV4[from], "-t", "1", "-J"];
        let run = machine.run(to, "iperf3", &args);
        let report: Value = serde_json::from_slice(&run.stdout).unwrap();
        let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
        assert!(bits > Some(1e6), "{}", text(&run.stdout));
        drop(server);
    }
    let wire = wire(&machine);
    let device = &wire["device"];
    for count in [
        "rx_malformed",
        "rx_fault",
        "rx_foreign_buffer",
        "tx_bad_descriptor",
    ] {
        assert_eq!(device[count], 0, "{wire}");
    }
    assert!(device["wakeups"].as_u64() > Some(0), "{wire}");
    assert!(wire["lro"]["rate"].as_f64() > Some(1.5), "{wire}");
    machine.end();
}

#[test]
fn files_arrive_with_every_setting_over_af_xdp() {
    for (lro, nic) in [
        (
            "at = \"physical\"\nbuffers = \"page\"\nbackend = \"linearize\"\nflush = \"t50\"",
            "moderation = \"tick\"",
        ),
        ("at = \"none\"", "rate_mbps = 300\nmoderation = \"spin\""),
        (
            "at = \"both\"\npsh = \"merge\"\nflush = \"adaptive\"",
            "buffers = 65",
        ),
    ] {
        let Some(machine) = start(&format!("[lro]\n{lro}\n"), nic, FOR_FILES) else {
            return;
        };
        eprintln!("{lro} {nic}");
        let file = SomeFile::new(&machine, FILE_BYTES);
        for (from, to) in PATHS {
            file.carry(from, (to, IPV4[from]), &[]);
        }
        machine.end();
    }
}

/// Returns whether the wire's interface is in its namespace.
fn wire_exists(machine: &Machine) -> bool {
    let devices = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    machine.places[WIRE]
        .0
        .enter(devices)
        .unwrap()
        .contains(NAMES[WIRE])
}

#[test]
fn a_killed_driver_leaves_no_wire() {
    let Some(machine) = start("[driver]\nrestart = false", "", &["iperf3"]) else {
        return;
    };
    let server = machine.spawn(WEB, "iperf3", &["-s", "-1"]);
    machine.wait_for_listener(WEB, 5201);
    let args = ["-c", IPV4[WEB], "-t", "600", "-P", "4", "--bidir"];
    let client = machine.spawn(WIRE, "iperf3", &args);
    let packets = |machine: &Machine| wire(machine)["traffic"]["in_packets"].as_u64().unwrap();
    wait_until("no frames are in flight", || packets(&machine) > 10_000);
    assert!(kill(pid(&machine, "driver")));
    wait_until("the driver still runs", || {
        let status = machine.ask(&["status"]);
        let mut domains = status["domains"].as_array().unwrap().iter();
        domains.any(|domain| domain["name"] == "driver" && domain["alive"] == false)
    });
    // The driver's exit closes its socket, which removes the wire.
    wait_until("the wire outlives its driver", || !wire_exists(&machine));
    drop((client, server));
    machine.end();
}

/// XDP-10: the socket stays the same, so frames that arrive in the meantime are not lost.
#[test]
fn the_next_driver_continues_with_the_socket() {
    let Some(machine) = start("[driver]\nrestart_pause_ms = 20", "", FOR_FILES) else {
        return;
    };
    let socket = |driver: &Value| {
        let number = abi::layout::fd::DEVICE;
        let path = format!("/proc/{}/fd/{number}", driver["pid"]);
        fs::read_link(path).unwrap()
    };
    let mut before = driver(&machine);
    let first = socket(&before);
    assert!(first.to_string_lossy().starts_with("socket:"), "{first:?}");
    for _ in 0..5 {
        // The files need enough frames to make the kernel reuse all entries left in the rings. Each
        // entry must be valid.
        carry_files(&machine, FILE_BYTES);
        assert!(kill(before["pid"].as_u64().unwrap()));
        before = wait_for_another(&machine, &before);
        assert_eq!(socket(&before), first);
    }
    carry_files(&machine, FILE_BYTES);
    let wire = wire(&machine);
    assert_eq!(wire["device"]["rx_malformed"], 0, "{wire}");
    machine.end();
}

#[test]
fn a_killed_monitor_leaves_no_wire() {
    let Some(machine) = start("", "", &[]) else {
        return;
    };
    let status = machine.ask(&["status"]);
    assert!(wire_exists(&machine));
    assert!(kill(status["pid"].as_u64().unwrap()));
    wait_until("the wire outlives its monitor", || !wire_exists(&machine));
}

/// The wire is an existing interface: one end of a pair that another program has created.
#[test]
fn an_existing_interface_becomes_the_wire() {
    require!(af_xdp);
    let started = Machine::start(&["ping", "ip"], &["far", "web", "db"], |namespaces| {
        let pair = "link add near type veth peer name far";
        let own = "addr add 10.0.0.1/24 dev far";
        let ip = |args: &str| {
            let netns = format!("--net={}", namespaces[WIRE]);
            let run = Command::new("nsenter")
                .args([netns.as_str(), "ip"])
                .args(args.split(' '))
                .status();
            assert!(run.unwrap().success(), "ip {args}");
        };
        for args in [pair, own, "link set far up", "link set near up"] {
            ip(args);
        }
        format!(
            "[[nic]]\nname = \"wire\"\nkind = \"xdp\"\nnetdev = \"near\"\nnetns = \"{}\"\n\
             [[guest]]\nname = \"web\"\n[[guest.vif]]\nendpoint = \"tap\"\nifname = \"web\"\n\
             netns = \"{}\"\naddresses = [\"10.0.0.2/24\"]\n",
            namespaces[WIRE], namespaces[WEB]
        )
    });
    let Some(mut machine) = started else { return };
    let args = ["-c", "5", "-i", "0.05", "-w", "60", IPV4[WEB]];
    let run = machine.run(WIRE, "ping", &args);
    assert!(run.status.success(), "{run:?}");
    // The machine does not remove the pair.
    let (far, _) = machine.places.remove(WIRE);
    machine.end();
    let left = far.enter(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    assert!(left.unwrap().contains("near"));
}

#[test]
fn a_wrong_interface_is_reported_with_a_remedy() {
    require!(netns, tool("ip"));
    let namespace = Namespace::new().unwrap();
    let made = namespace.enter(|| {
        let pair = "link add many numrxqueues 4 numtxqueues 4 type veth peer name other";
        Command::new("ip").args(pair.split(' ')).status()
    });
    if !made.unwrap().is_ok_and(|status| status.success()) {
        return skip("veth");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.toml");
    let netns = namespace.path().display().to_string();
    for (netdev, what, remedy) in [
        (
            "nowhere",
            "the interface nowhere does not exist",
            "`ip link`",
        ),
        ("many", "has 4 receive queues", "ethtool -L many combined 1"),
    ] {
        let nic = "[[nic]]\nname = \"wire\"\nkind = \"xdp\"\n";
        let config = format!("{nic}netdev = \"{netdev}\"\nnetns = \"{netns}\"\n");
        fs::write(&file, config).unwrap();
        let run = Command::new(env!("CARGO_BIN_EXE_grantway"))
            .arg("up")
            .arg(&file)
            .env("GRANTWAY_RUNTIME_DIR", folder.path().join("run"))
            .output()
            .unwrap();
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{said}");
        assert!(said.contains("m.toml:4: [[nic]] 1: "), "{said}");
        assert!(said.contains(what) && said.contains(remedy), "{said}");
    }
}
