//! Kills of the core's helpers and of guests under real traffic.

use crate::machine::{Machine, text};
use crate::processes::{domain, kill, pid};
use crate::programs::{
    FOR_FILES, IPV4, NAMES, PATHS, SomeFile, WEB, WIRE, carry_files, config, disturbed,
};
use std::thread;
use std::time::Duration;
use testing::{child_of, wait_for, wait_until};

fn start(switches: &str, nic: &str, needed: &[&str]) -> Option<Machine> {
    Machine::start(needed, &NAMES, |namespaces| {
        config(switches, namespaces).replacen("kind = \"tap\"", nic, 1)
    })
}

/// Kills a helper, and waits for the next one.
fn kill_helper(core: u64, name: &str) {
    let before = wait_for("no helper", || child_of(core, name));
    assert!(kill(before));
    wait_until("no new helper runs", || {
        child_of(core, name).is_some_and(|now| now != before)
    });
}

#[test]
fn traffic_survives_manager_and_netd() {
    for nic in [
        "kind = \"tap\"",
        "kind = \"tap\"\nqueues = \"vmq\"",
        "kind = \"xdp\"",
    ] {
        let Some(machine) = start("", nic, &["curl", "python3", "ping"]) else {
            return;
        };
        let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
        let before = NAMES[1..].iter().map(|name| pid(&machine, name));
        let before: Vec<u64> = before.chain([pid(&machine, "driver")]).collect();
        let file = SomeFile::new(&machine, 20_000_000);
        // No other traffic runs, because streams fill queues, in which a ping may be lost in any
        // case.
        let pings = ["-i", "0.01", "-c", "200", "-W", "60", IPV4[WEB]];
        let pings = machine.spawn(WIRE, "ping", &pings);
        for name in ["grantway-manager", "grantway-netd", "grantway-manager"] {
            thread::sleep(Duration::from_millis(300));
            kill_helper(core, name);
        }
        let pings = text(&pings.output().stdout);
        assert!(pings.contains(" 0% packet loss"), "{nic}: {pings}");
        let ways = || {
            for (from, to) in PATHS {
                file.carry(from, (to, IPV4[from]), &["--limit-rate", "20M"]);
            }
        };
        disturbed(5, Duration::from_millis(100), ways, |n| {
            kill_helper(core, ["grantway-manager", "grantway-netd"][n % 2]);
        });
        wait_until("nobody answers", || {
            machine.grantway(&["stat", "driver"]).status.success()
        });
        let after = NAMES[1..].iter().map(|name| pid(&machine, name));
        let after: Vec<u64> = after.chain([pid(&machine, "driver")]).collect();
        assert_eq!(after, before, "no domain has died");
        // The next driver receives descriptors that a killed netd has opened.
        let restarted = machine.ask(&["restart", "driver"]);
        assert_eq!(restarted["domain"], "driver", "{restarted}");
        carry_files(&machine, 100_000);
        machine.end();
    }
}

#[test]
fn a_dead_guest_returns_with_its_interface() {
    for nic in ["kind = \"tap\"", "kind = \"tap\"\nqueues = \"vmq\""] {
        let Some(machine) = start("", nic, FOR_FILES) else {
            return;
        };
        for round in 1..=3 {
            let before = domain(&machine, "web");
            assert!(kill(before["pid"].as_u64().unwrap()));
            wait_until("the guest does not return", || {
                let now = domain(&machine, "web");
                now["restarts"]["count"] == round && !now["restarts"]["connected_ns"].is_null()
            });
            SomeFile::new(&machine, 1_000_000).carry(WIRE, (WEB, IPV4[WIRE]), &[]);
        }
        carry_files(&machine, 100_000);
        let audit = machine.ask(&["grants"]);
        assert_eq!(audit["leaked"], 0, "{audit}");
        machine.end();
    }
}

#[test]
fn a_stream_survives_restarts_of_all_domains() {
    let Some(machine) = start("", "kind = \"tap\"", FOR_FILES) else {
        return;
    };
    let file = SomeFile::new(&machine, 40_000_000);
    thread::scope(|scope| {
        let carried = scope.spawn(|| file.carry(WIRE, (WEB, IPV4[WIRE]), &["--limit-rate", "20M"]));
        for domains in [["driver", "web"], ["db", "driver"]] {
            let all = [&["restart"], &domains[..], &["--json"]].concat();
            let run = machine.grantway(&all);
            assert!(run.status.success(), "{run:?}");
            assert_eq!(text(&run.stdout).lines().count(), 2);
        }
        carried.join().unwrap();
    });
    let unknown = machine.grantway(&["restart", "absent"]);
    assert!(!unknown.status.success());
    assert!(text(&unknown.stderr).contains("domain absent does not exist"));
    machine.end();
}
