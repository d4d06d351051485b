//! A NIC whose device is a separate domain.

use crate::test_dir::{Running, SIM, TestDir, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const DEVICE: &str = "device-wire";

const SOFT: &str = "kind = \"soft\"\nrate_mbps = 10000\ninterrupt_us = 20";

fn up(place: &TestDir, machine: &str) -> Running {
    let file = place.file("m.toml", &machine.replacen("kind = \"sim\"", SOFT, 1));
    let running = place.start(&["up", &file]);
    place.wait_for_output(&running, "is up");
    running
}

fn json(place: &TestDir, args: &[&str]) -> Value {
    let output = place.run(args);
    assert!(output.ok(), "{output:?}");
    serde_json::from_str(&output.out).unwrap()
}

/// Returns the process of a running domain, and the number of its restarts.
fn domain(place: &TestDir, name: &str) -> Option<(i32, u64)> {
    let status = json(place, &["status", "--json"]);
    let mut domains = status["domains"].as_array().unwrap().iter();
    let domain = domains.find(|domain| domain["name"] == name).unwrap();
    let is_running = domain["state"] == "running";
    let restarts = domain["restarts"]["count"].as_u64().unwrap_or(0);
    is_running.then(|| (domain["pid"].as_i64().unwrap() as i32, restarts))
}

/// Finds a number by its key, at any depth.
fn number(value: &Value, key: &str) -> Option<u64> {
    let map = value.as_object()?;
    let own = map.get(key).and_then(Value::as_u64);
    own.or_else(|| map.values().find_map(|value| number(value, key)))
}

/// Waits until the guest gets more answers from the station behind the device.
fn wait_for_answers(place: &TestDir) {
    let answers = || {
        let stat = place.run(&["stat", "web", "--json"]);
        let stat: Value = serde_json::from_str(&stat.out).ok()?;
        number(&stat, "app.0.received")
    };
    let before = wait(answers);
    wait(|| answers().filter(|now| *now > before + 2));
}

/// D-26: either death loses only frames, and the guest stays connected.
#[test]
fn traffic_survives_deaths_of_device_and_driver() {
    let place = TestDir::with_machine();
    let running = up(&place, SIM);
    wait_for_answers(&place);
    let link = |of: &str| number(&json(&place, &["stat", of, "--json"]), "link");
    assert_eq!([link("driver"), link(DEVICE)], [Some(1); 2]);

    for (killed, other) in [(DEVICE, "driver"), ("driver", DEVICE), (DEVICE, "driver")] {
        let (pid, before) = domain(&place, killed).unwrap();
        let (others, _) = domain(&place, other).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        wait(|| domain(&place, killed).filter(|(_, restarts)| *restarts == before + 1));
        wait_for_answers(&place);
        assert_eq!(domain(&place, other).unwrap().0, others, "{other}");
    }
    let audit = json(&place, &["grants", "--json"]);
    assert_eq!(audit["leaked"], 0, "{audit}");
    let device = json(&place, &["stat", DEVICE, "--json"]);
    assert_eq!(number(&device, "io_faults"), Some(0), "{device}");

    let log = place.read("run/grantway.log");
    assert!(
        log.contains("nic.wire: the device has closed; the link is down"),
        "{log}"
    );
    let end = running.terminate();
    assert!(end.ok(), "{end:?}");
}

/// Returns a machine whose guest has a dedicated queue of the device.
fn with_queue() -> String {
    let wire = "kind = \"sim\"\nqueues = \"vmq\"\nvmq_queues = 2";
    let machine = SIM.replacen("kind = \"sim\"", wire, 1);
    let vif = "[[guest.vif]]\npdev = \"wire:2\"";
    let machine = machine.replacen("[[guest.vif]]", vif, 1);
    format!("[driver]\ngrants = \"counted\"\n{machine}")
}

/// Returns the driver's report about the guest's dedicated queue.
fn queue(place: &TestDir) -> Value {
    let stat = json(place, &["stat", "driver", "--json"]);
    stat["driver"]["ports"]["vif.web-0"]["queue"].clone()
}

/// Waits until the device has stored further frames in the guest's pages.
fn wait_for_direct_frames(place: &TestDir) {
    let direct = || {
        let queue = queue(place);
        let is_open = queue["state"] == "open";
        queue["direct_packets"].as_u64().filter(|_| is_open)
    };
    let before = wait(direct);
    wait(|| direct().filter(|now| *now > before + 2));
}

/// D-32 to D-34: a device writes into pages of a guest, and continues to do so after the death of
/// the device, the driver domain or the guest, with buffers posted.
#[test]
fn dedicated_queue_survives_each_death() {
    let place = TestDir::with_machine();
    let running = up(&place, &with_queue());
    wait_for_answers(&place);
    wait_for_direct_frames(&place);
    for killed in [DEVICE, "driver", "web", DEVICE] {
        let (pid, before) = domain(&place, killed).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        wait(|| domain(&place, killed).filter(|(_, restarts)| *restarts == before + 1));
        wait_for_answers(&place);
        wait_for_direct_frames(&place);
        let audit = json(&place, &["grants", "--json"]);
        assert_eq!(audit["leaked"], 0, "{killed}: {audit}");
    }
    let device = json(&place, &["stat", DEVICE, "--json"]);
    assert_eq!(number(&device, "io_faults"), Some(0), "{device}");
    let end = running.terminate();
    assert!(end.ok(), "{end:?}");
}
