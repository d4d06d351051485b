//! A driver domain that dies under real traffic is restarted. Streams of unmodified programs stall
//! and then continue.

use crate::machine::{Machine, text};
use crate::processes::{descriptors, domain, kill, pid};
use crate::programs::{
    FOR_FILES, IPV4, NAMES, PATHS, SomeFile, WEB, WIRE, carry_files, config, disturbed,
};
use serde_json::Value;
use std::time::Duration;
use testing::{Running, wait_until};

/// Makes the driver restart quickly, however often it dies.
const SHORT_PAUSE: &str = "restart_pause_ms = 20\n";

fn start(switches: &str, nic: &str, needed: &[&str]) -> Option<Machine> {
    let switches = format!("[driver]\n{SHORT_PAUSE}{switches}\n");
    Machine::start(needed, &NAMES, |namespaces| {
        config(&switches, namespaces).replacen("kind = \"tap\"", nic, 1)
    })
}

pub(crate) fn driver(machine: &Machine) -> Value {
    domain(machine, "driver")
}

/// Waits until a new driver, not in `before`, serves every running guest.
pub(crate) fn wait_for_another(machine: &Machine, before: &Value) -> Value {
    let mut now = Value::Null;
    wait_until("no other driver serves the guests", || {
        now = driver(machine);
        now["id"] != before["id"]
            && now["state"] == "running"
            && !now["restarts"]["connected_ns"].is_null()
    });
    now
}

fn kill_driver(machine: &Machine) -> Value {
    let before = driver(machine);
    // The result is ignored, because the driver may have just died by itself.
    kill(before["pid"].as_u64().unwrap());
    wait_for_another(machine, &before)
}

/// With every kind of NIC and every grant mechanism, a file that is transferred during the restart
/// arrives complete. Then every path works.
#[test]
fn a_file_arrives_complete_despite_a_killed_driver() {
    for (switches, nic) in [
        ("", "kind = \"tap\""),
        ("grants = \"counted\"", "kind = \"tap\""),
        ("grants = \"copy\"", "kind = \"tap\""),
        ("grants = \"map\"", "kind = \"tap\""),
        ("grants = \"persistent\"", "kind = \"tap\""),
        ("grants = \"counted\"", "kind = \"tap\"\nqueues = \"vmq\""),
        ("", "kind = \"xdp\""),
    ] {
        eprintln!("{switches} {nic}");
        let Some(machine) = start(switches, nic, FOR_FILES) else {
            return;
        };
        let file = SomeFile::new(&machine, 40_000_000);
        let ways = || {
            for (from, to) in PATHS {
                file.carry(from, (to, IPV4[from]), &["--limit-rate", "40M"]);
            }
        };
        disturbed(5, Duration::from_millis(300), ways, |_| {
            kill_driver(&machine);
        });
        carry_files(&machine, 100_000);
        let audit = machine.ask(&["grants"]);
        assert_eq!(audit["leaked"], 0, "{audit}");
        machine.end();
    }
}

fn iperf3(machine: &Machine, seconds: &str) -> (Running, Running) {
    let server = machine.spawn(WEB, "iperf3", &["-s", "-1"]);
    machine.wait_for_listener(WEB, 5201);
    let args = ["-c", IPV4[WEB], "-t", seconds, "-P", "2", "--bidir"];
    (machine.spawn(WIRE, "iperf3", &args), server)
}

#[test]
fn a_hundred_kills_in_a_row_under_load() {
    let Some(machine) = start(
        "grants = \"counted\"",
        "kind = \"tap\"",
        &["iperf3", "curl", "python3"],
    ) else {
        return;
    };
    kill_driver(&machine);
    let monitor = machine.ask(&["status"])["pid"].as_u64().unwrap();
    let before = descriptors(monitor);
    let load = iperf3(&machine, "600");
    for round in 0..100 {
        let old = driver(&machine);
        if round % 4 == 0 {
            // Kills the driver during the transfer.
            kill(old["pid"].as_u64().unwrap());
            wait_until("no new process runs", || {
                let now = driver(&machine);
                now["id"] != old["id"] && now["pid"] != 0
            });
        }
        kill_driver(&machine);
    }
    drop(load);
    carry_files(&machine, 100_000);
    // Both counts include the connection of `status`.
    wait_until("descriptors are still open", || {
        descriptors(monitor) <= before
    });
    let restarts = driver(&machine)["restarts"].clone();
    assert!(restarts["count"].as_u64().unwrap() > 100, "{restarts}");
    machine.end();
}

#[test]
fn a_guest_death_during_a_driver_restart_is_handled() {
    let Some(machine) = start("", "kind = \"tap\"", FOR_FILES) else {
        return;
    };
    let before = driver(&machine);
    let guest = pid(&machine, "db");
    kill(before["pid"].as_u64().unwrap());
    kill(guest);
    let now = wait_for_another(&machine, &before);
    assert_eq!(now["restarts"]["count"], 1, "{now}");
    SomeFile::new(&machine, 5_000_000).carry(WIRE, (WEB, IPV4[WIRE]), &[]);
    machine.end();
}

#[test]
fn guests_learn_that_a_driver_is_not_restarted() {
    let Some(machine) = start("restart = false", "kind = \"tap\"", &[]) else {
        return;
    };
    kill(driver(&machine)["pid"].as_u64().unwrap());
    wait_until("the guests are notified", || {
        let status = machine.ask(&["status"]);
        let mut connections = status["connections"].as_array().unwrap().iter();
        connections.all(|c| c["backend_state"] == "unknown" && c["frontend_state"] == "closed")
    });
    let status = machine.grantway(&["status"]);
    assert!(text(&status.stdout).contains("killed by signal 9"));
    assert!(driver(&machine)["restarts"].is_null());
    machine.end();
}
