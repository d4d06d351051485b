//! A NIC of `kind = "soft"` whose wire is a TAP. TCP streams pass it, also in dedicated queues, and
//! also after the death of the device domain or the removal of the TAP.

use crate::machine::Machine;
use crate::processes::{domain, kill, pid};
use crate::programs::{FOR_FILES, NAMES, WEB, WIRE, carry_files, config, ping_every_way};
use crate::queues::{count, driver};
use crate::reload::{ask, socket};
use serde_json::{Value, json};
use std::time::Duration;
use testing::wait_until;

const FILE_BYTES: usize = 5_000_000;
const DEVICE: &str = "device-wire";

/// Starts the usual machine with such a NIC, which has the additional keys in `wire`. If `queues`
/// is true, each guest has a dedicated queue.
fn start(switches: &str, wire: &str, queues: bool) -> Option<Machine> {
    let text = |namespaces: &[String]| {
        let vmq = if queues {
            "queues = \"vmq\"\nvmq_queues = 2\n"
        } else {
            ""
        };
        let soft = "kind = \"soft\"\nwire = \"tap\"\ninterrupt_us = 20";
        let wire = format!("{soft}\n{wire}{vmq}");
        let mut text = config(switches, namespaces).replacen("kind = \"tap\"\n", &wire, 1);
        if queues {
            for (n, name) in NAMES.iter().enumerate().skip(WEB) {
                let own = format!("ifname = \"{name}\"");
                text = text.replacen(&own, &format!("pdev = \"wire:{n}\"\n{own}"), 1);
            }
        }
        text
    };
    Machine::start(FOR_FILES, &NAMES, text)
}

/// Returns the device's counters.
fn device(machine: &Machine) -> Value {
    machine.ask(&["stat", DEVICE])[DEVICE].clone()
}

/// D-37: the kernel's frames pass the device in both directions.
#[test]
fn files_pass_a_device_whose_wire_is_a_tap() {
    let counted = "[driver]\ngrants = \"counted\"\n";
    for (switches, queues) in [("", false), (counted, true)] {
        let Some(machine) = start(switches, "", queues) else {
            return;
        };
        carry_files(&machine, FILE_BYTES);
        if queues {
            let web = driver(&machine)["ports"]["vif.web-0"]["queue"].clone();
            let direct = count(&web["direct_packets"]);
            assert!(direct > FILE_BYTES as u64 / 2 / 1448, "{web}");
        }
        let device = device(&machine);
        assert_eq!(device["device"]["io_faults"], 0, "{device}");
        let before = pid(&machine, DEVICE);
        assert!(kill(before));
        wait_until("the device domain does not restart", || {
            let device = domain(&machine, DEVICE);
            device["pid"] != before && device["state"] == "running"
        });
        ping_every_way(&machine);
        carry_files(&machine, FILE_BYTES);
        machine.end();
    }
}

/// D-39, D-40: streams pass unchanged through a device that merges segments, in the shared queue
/// and in pages of the guests. Both receive frames that span several buffers.
#[test]
fn files_pass_a_device_that_merges_segments() {
    let switches = |grants: &str| {
        let merges_nothing_else = "[lro]\nat = \"none\"\n";
        format!("{merges_nothing_else}[driver]\ngrants = \"{grants}\"\n")
    };
    for (grants, queues) in [("copy", false), ("counted", true)] {
        let Some(machine) = start(&switches(grants), "lro = true\n", queues) else {
            return;
        };
        let device = carry_intact(&machine, queues);
        let [segments, aggregates] =
            ["segments", "aggregates"].map(|name| count(&device["lro"][name]));
        assert!(segments >= FILE_BYTES as u64 / 1448, "{device}");
        assert!(aggregates * 3 < segments * 2, "{device}");
        if queues {
            let web = &driver(&machine)["ports"]["vif.web-0"]["queue"];
            assert_eq!(web["device"]["rx_malformed"], 0, "{web}");
        }
        machine.end();
    }
}

/// Sends pings and files, in dedicated queues if `queues` is true, and checks that the device has
/// violated no rule. Returns the device's counters.
fn carry_intact(machine: &Machine, queues: bool) -> Value {
    ping_every_way(machine);
    carry_files(machine, FILE_BYTES);
    let device = device(machine);
    assert_eq!(device["device"]["io_faults"], 0, "{device}");
    let driver = driver(machine);
    let wire = &driver["ports"]["nic.wire"];
    assert_eq!(count(&wire["device"]["rx_malformed"]), 0, "{wire}");
    if queues {
        let web = &driver["ports"]["vif.web-0"]["queue"];
        assert!(count(&web["direct_packets"]) > 0, "{web}");
    }
    device
}

/// D-44: streams pass through a device that splits headers, in the shared queue and in pages of the
/// guests.
#[test]
fn files_pass_a_device_that_splits_headers() {
    let counted = "[driver]\ngrants = \"counted\"\n";
    for (switches, queues) in [("", false), (counted, true)] {
        let Some(machine) = start(switches, "header_split = true\n", queues) else {
            return;
        };
        let device = carry_intact(&machine, queues);
        assert_eq!(device["device"]["too_long"], 0, "{device}");
        machine.end();
    }
}

/// D-32, D-35: pages of dedicated queues are revoked and granted again under traffic. The device
/// never accesses a revoked page, and every byte arrives.
#[test]
fn dedicated_queues_survive_page_recycling() {
    let switches = "[driver]\ngrants = \"counted\"\n[buffers]\nsize = \"full\"\nto_guest = 256\n\
                    spare = 64\nrelease_threshold = 4\n";
    let Some(machine) = start(switches, "", true) else {
        return;
    };
    carry_intact(&machine, true);
    for guest in ["web", "db"] {
        let stat = machine.ask(&["stat", guest]);
        let pool = &stat[guest]["vifs"]["0"]["pool"];
        println!("{guest}: {pool}");
        assert_eq!(pool["pages"], 256 + 64, "{guest}: {pool}");
        if guest == "web" {
            // `db` receives no stream from the wire.
            assert!(count(&pool["revoked"]) > 0, "{pool}");
            assert!(count(&pool["granted_anew"]) > 0, "{pool}");
        }
    }
    machine.end();
}

#[test]
fn removed_tap_of_a_device_is_created_again() {
    let Some(machine) = start("", "", false) else {
        return;
    };
    ping_every_way(&machine);
    let removed = machine.run(WIRE, "ip", &["link", "del", NAMES[WIRE]]);
    assert!(removed.status.success(), "{removed:?}");
    let gone = || device(&machine)["wire"]["no_device"] == 1;
    wait_until("the removal is not detected", gone);
    let is_reported = || domain(&machine, DEVICE)["removed"] == json!([NAMES[WIRE]]);
    wait_until("the removal is not reported", is_reported);
    machine.ask(&["restart", DEVICE]);
    ping_every_way(&machine);
    machine.end();
}

#[test]
fn idle_driver_and_device_cost_no_cpu() {
    const SECONDS: u64 = 2;
    /// Maximum CPU time of a domain: a thousandth of a CPU.
    const CPU_MAX_NS: u64 = SECONDS * 1_000_000;
    let counted = "[driver]\ngrants = \"counted\"\n";
    for (switches, queues) in [("", false), (counted, true)] {
        let Some(machine) = start(switches, "", queues) else {
            return;
        };
        ping_every_way(&machine);
        let socket = socket(&machine);
        let cpu_ns = || {
            // `grantway status` would make the driver domain answer.
            let status = ask(&socket, &json!({ "op": "status" }));
            ["driver", DEVICE].map(|name| {
                let mut domains = status["domains"].as_array().unwrap().iter();
                let found = domains.find(|domain| domain["name"] == name).unwrap();
                let keys = ["cpu_ns", "agent_cpu_ns", "worker_cpu_ns"];
                keys.map(|key| count(&found[key])).iter().sum::<u64>()
            })
        };
        // The test repeats this, because the kernels announce themselves for a few seconds.
        let mut least = [u64::MAX; 2];
        wait_until("an idle driver or device domain costs CPU time", || {
            let before = cpu_ns();
            std::thread::sleep(Duration::from_secs(SECONDS));
            let after = cpu_ns();
            for (n, least) in least.iter_mut().enumerate() {
                *least = (*least).min(after[n] - before[n]);
            }
            least.iter().all(|ns| *ns <= CPU_MAX_NS)
        });
        println!("driver and device: {least:?} ns in {SECONDS} s");
        machine.end();
    }
}
