//! Interfaces that are removed while a machine runs. No process spins, the removal is reported, and
//! a restart recreates them.

use crate::attach::{NAMES, answers_ping, attach, domains, empty, loses_interface, reaches};
use crate::machine::{Machine, text};
use crate::nics::{GUESTS, QUEUES, WIRE, on_af_xdp, reload, with_nic};
use crate::processes::{domain, kill, pid};
use crate::reload::{file_of, start};
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use testing::{child_of, cpu_ticks, require, wait_for, wait_until};

/// Waits for a second in which no process of the machine uses a third of a CPU.
fn wait_until_idle(machine: &Machine) {
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    let helper = |name| wait_for("no helper", || child_of(core, name));
    let mut pids = vec![core, helper("grantway-netd"), helper("grantway-manager")];
    pids.extend(domains(machine).iter().map(|name| pid(machine, name)));
    wait_until("a process spins", || {
        let before: Vec<u64> = pids.iter().map(|pid| cpu_ticks(*pid)).collect();
        thread::sleep(Duration::from_secs(1));
        pids.iter()
            .zip(before)
            .all(|(pid, before)| cpu_ticks(*pid) - before < 33)
    });
}

fn remove(machine: &Machine, place: usize) {
    let run = machine.run(place, "ip", &["link", "del", NAMES[place]]);
    assert!(run.status.success(), "{run:?}");
}

/// Waits until the status lists exactly these missing interfaces of a domain.
fn wait_for_missing(machine: &Machine, name: &str, interfaces: &[&str]) {
    wait_until("the missing interface is not reported", || {
        domain(machine, name)["removed"] == json!(interfaces)
    });
}

/// Waits until the log contains some words. Returns the log.
fn wait_for_log(machine: &Machine, words: &str) -> String {
    let log = machine.folder.path().join("run/grantway.log");
    wait_for("nothing about it is logged", || {
        let log = fs::read_to_string(&log).unwrap();
        log.contains(words).then_some(log)
    })
}

/// Checks the reports about a domain without its interface.
fn check_reports(machine: &Machine, name: &str, interface: &str) {
    wait_for_missing(machine, name, &[interface]);
    let status = text(&machine.grantway(&["status"]).stdout);
    assert!(
        status.contains(&format!("running, no device: {interface}")),
        "{status}"
    );
    let metrics = text(&machine.grantway(&["metrics"]).stdout);
    let gauge = format!("grantway_domain_removed_interfaces{{domain=\"{name}\"}} 1");
    assert!(metrics.contains(&gauge), "{metrics}");
    let line = format!("{name}: interface {interface} was removed");
    let log = wait_for_log(machine, &line);
    assert_eq!(log.matches(&line).count(), 1, "{log}");
}

fn missing_devices(stat: &Value) -> u64 {
    match stat {
        Value::Object(all) => {
            let own = all.get("no_device").and_then(Value::as_u64);
            own.unwrap_or(0) + all.values().map(missing_devices).sum::<u64>()
        }
        _ => 0,
    }
}

#[test]
fn a_removed_interface_is_created_again() {
    let Some(machine) = start(2) else { return };
    reaches(&machine, 0, 1);
    remove(&machine, 0);
    check_reports(&machine, "c0", "c0");
    wait_until_idle(&machine);
    assert_eq!(missing_devices(&machine.ask(&["stat", "c0"])), 1);
    assert!(!answers_ping(&machine, 1, 0));
    // A restarted helper also reports the missing interface.
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    for helper in ["grantway-manager", "grantway-netd"] {
        assert!(kill(wait_for("no helper", || child_of(core, helper))));
        wait_for_missing(&machine, "c0", &["c0"]);
        wait_until_idle(&machine);
    }
    machine.ask(&["restart", "c0"]);
    wait_for_missing(&machine, "c0", &[]);
    reaches(&machine, 1, 0);
    // A reload and a crash also recreate the interface.
    remove(&machine, 0);
    wait_for_missing(&machine, "c0", &["c0"]);
    let file = file_of(&machine, &GUESTS);
    assert_eq!(reload(&machine, &file), ["restart c0: c0 was removed"]);
    reaches(&machine, 1, 0);
    assert!(reload(&machine, &file).is_empty());
    remove(&machine, 0);
    wait_for_missing(&machine, "c0", &["c0"]);
    assert!(kill(pid(&machine, "c0")));
    reaches(&machine, 1, 0);
    wait_for_missing(&machine, "c0", &[]);
    machine.end();
}

/// The kernel removes the interface together with its namespace.
#[test]
fn removal_with_another_namespace_is_noticed() {
    let Some(machine) = start(2) else { return };
    reaches(&machine, 0, 1);
    let mut sleep = Command::new("unshare");
    sleep.args(["--net", "sleep", "1000"]).stdin(Stdio::null());
    let mut elsewhere = sleep.spawn().unwrap();
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let there = format!("/proc/{}/ns/net", elsewhere.id());
    wait_until("the process has no new namespace", || {
        fs::read_link(&there).unwrap() != own
    });
    let to = elsewhere.id().to_string();
    let run = machine.run(0, "ip", &["link", "set", "c0", "netns", &to]);
    assert!(run.status.success(), "{run:?}");
    elsewhere.kill().unwrap();
    elsewhere.wait().unwrap();
    check_restart(&machine);
    machine.end();
}

/// Checks that guest `c0`, whose interface was removed, is reported and uses no CPU time, and that
/// a restart recreates the interface.
fn check_restart(machine: &Machine) {
    check_reports(machine, "c0", "c0");
    wait_until_idle(machine);
    machine.ask(&["restart", "c0"]);
    reaches(machine, 0, 1);
}

/// An attached guest stays as long as its namespace exists.
#[test]
fn an_attached_guest_without_interface_remains() {
    let Some(machine) = empty(&["ping", "ip"]) else {
        return;
    };
    for place in [0, 1] {
        attach(&machine, place);
    }
    reaches(&machine, 0, 1);
    remove(&machine, 0);
    check_restart(&machine);
    machine.end();
}

/// Another interface now has the name, so the guest runs without an interface.
#[test]
fn an_interface_whose_name_is_taken_is_skipped() {
    let Some(machine) = start(2) else { return };
    remove(&machine, 0);
    wait_for_missing(&machine, "c0", &["c0"]);
    let ip = |words: &[&str]| assert!(machine.run(0, "ip", words).status.success());
    ip(&["link", "add", "c0", "type", "veth", "peer", "name", "other"]);
    machine.ask(&["restart", "c0"]);
    wait_for_missing(&machine, "c0", &["c0"]);
    wait_for_log(&machine, "c0: runs without an interface: ");
    wait_until_idle(&machine);
    ip(&["link", "del", "c0"]);
    machine.ask(&["restart", "c0"]);
    reaches(&machine, 0, 1);
    machine.end();
}

/// The NIC's interface is removed. A reload of the same file recreates it.
fn check_nic_recreation(machine: Machine, with: &str) {
    reload(&machine, with);
    reaches(&machine, WIRE, 0);
    for _ in 0..2 {
        remove(&machine, WIRE);
        check_reports(&machine, "driver", NAMES[WIRE]);
        wait_until_idle(&machine);
        // Guests are not affected.
        reaches(&machine, 0, 1);
        let steps = reload(&machine, with);
        assert_eq!(
            steps,
            [format!("restart driver: {} was removed", NAMES[WIRE])]
        );
        wait_for_missing(&machine, "driver", &[]);
        reaches(&machine, WIRE, 0);
        reaches(&machine, WIRE, 1);
        fs::write(machine.folder.path().join("run/grantway.log"), "").unwrap();
    }
    remove(&machine, WIRE);
    wait_for_missing(&machine, "driver", &[NAMES[WIRE]]);
    // The NIC is no longer in the file.
    reload(&machine, &file_of(&machine, &GUESTS));
    wait_for_missing(&machine, "driver", &[]);
    loses_interface(&machine, WIRE);
    machine.end();
}

#[test]
fn a_removed_nic_interface_is_created_again() {
    let Some(machine) = start(2) else { return };
    let with = with_nic(&machine, "");
    check_nic_recreation(machine, &with);
}

#[test]
fn a_removed_nic_with_queues_is_created_again() {
    let Some(machine) = start(2) else { return };
    let with = with_nic(&machine, QUEUES);
    check_nic_recreation(machine, &with);
}

#[test]
fn a_removed_xdp_nic_is_created_again() {
    require!(af_xdp);
    let Some(machine) = start(2) else { return };
    let with = on_af_xdp(&with_nic(&machine, ""));
    check_nic_recreation(machine, &with);
}
