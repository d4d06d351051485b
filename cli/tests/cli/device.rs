//! A NIC whose device is a separate domain.

use crate::test_dir::{SIM, TestDir, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testing::Running;

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

/// Waits until a guest gets more answers from the station behind its device.
fn wait_for_answers(place: &TestDir, guest: &str) {
    let answers = || {
        let stat = place.run(&["stat", guest, "--json"]);
        let stat: Value = serde_json::from_str(&stat.out).ok()?;
        number(&stat, "app.0.received")
    };
    let before = wait(answers);
    wait(|| answers().filter(|now| *now > before + 2));
}

/// D-26: the death of the device domain or the driver domain only loses frames, and the guest stays
/// connected.
#[test]
fn traffic_survives_deaths_of_device_and_driver() {
    let place = TestDir::with_machine();
    let running = up(&place, SIM);
    wait_for_answers(&place, "web");
    let link = |of: &str| number(&json(&place, &["stat", of, "--json"]), "link");
    assert_eq!([link("driver"), link(DEVICE)], [Some(1); 2]);

    for (killed, other) in [(DEVICE, "driver"), ("driver", DEVICE), (DEVICE, "driver")] {
        let (pid, before) = domain(&place, killed).unwrap();
        let (others, _) = domain(&place, other).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        wait(|| domain(&place, killed).filter(|(_, restarts)| *restarts == before + 1));
        wait_for_answers(&place, "web");
        assert_eq!(domain(&place, other).unwrap().0, others, "{other}");
    }
    let audit = json(&place, &["grants", "--json"]);
    assert_eq!(audit["leaked"], 0, "{audit}");
    let device = json(&place, &["stat", DEVICE, "--json"]);
    assert_eq!(number(&device, "io_faults"), Some(0), "{device}");

    // The reason depends on the time of the driver's check: before, during or after the restart.
    let is_outage =
        |line: &str| line.contains("nic.wire: ") && line.ends_with("; the link is down");
    // The log is written by another thread.
    wait(|| {
        let log = place.read("run/grantway.log");
        log.lines().any(is_outage).then_some(())
    });
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

/// Returns the driver's report about a guest's dedicated queue.
fn queue(place: &TestDir, guest: &str) -> Value {
    let stat = json(place, &["stat", "driver", "--json"]);
    stat["driver"]["ports"][format!("vif.{guest}-0")]["queue"].clone()
}

/// Waits until the device has stored further frames in a guest's pages.
fn wait_for_direct_frames(place: &TestDir, guest: &str) {
    let direct = || {
        let queue = queue(place, guest);
        let is_open = queue["state"] == "open";
        queue["direct_packets"].as_u64().filter(|_| is_open)
    };
    let before = wait(direct);
    wait(|| direct().filter(|now| *now > before + 2));
}

/// D-32 to D-34: a device writes into pages of a guest. It continues to do so after the death of
/// the device domain, the driver domain or the guest while buffers are posted.
#[test]
fn dedicated_queue_survives_each_death() {
    let place = TestDir::with_machine();
    let running = up(&place, &with_queue());
    wait_for_answers(&place, "web");
    wait_for_direct_frames(&place, "web");
    for killed in [DEVICE, "driver", "web", DEVICE] {
        let (pid, before) = domain(&place, killed).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        wait(|| domain(&place, killed).filter(|(_, restarts)| *restarts == before + 1));
        wait_for_answers(&place, "web");
        wait_for_direct_frames(&place, "web");
        let audit = json(&place, &["grants", "--json"]);
        assert_eq!(audit["leaked"], 0, "{killed}: {audit}");
    }
    let device = json(&place, &["stat", DEVICE, "--json"]);
    assert_eq!(number(&device, "io_faults"), Some(0), "{device}");
    let end = running.terminate();
    assert!(end.ok(), "{end:?}");
}

/// Returns a machine with two NICs with devices, and a guest with a dedicated queue of each.
fn with_two_devices() -> String {
    let first = with_queue().replacen("kind = \"sim\"", SOFT, 1);
    let (_, other) = first.split_once("[[nic]]").unwrap();
    let mut other = format!("[[nic]]{other}");
    for (from, to) in [
        ("\"wire\"", "\"other\""),
        ("wire:2", "other:1"),
        ("\"web\"", "\"data\""),
        ("10.0.0.1", "10.0.0.9"),
        ("10.0.0.2", "10.0.0.3"),
        ("queues = \"vmq\"", "descriptors = 64\nqueues = \"vmq\""),
    ] {
        assert!(other.contains(from), "{from}: {other}");
        other = other.replace(from, to);
    }
    first + &other
}

/// Each NIC has a device domain, a link and queues for guests. The death of one device domain does
/// not affect the others. All devices work again after the death of the driver domain.
#[test]
fn machine_has_several_devices() {
    const OTHER: &str = "device-other";
    let place = TestDir::with_machine();
    let running = up(&place, &with_two_devices());
    let work = || {
        for guest in ["web", "data"] {
            wait_for_answers(&place, guest);
            wait_for_direct_frames(&place, guest);
        }
    };
    work();
    for (killed, others) in [
        (OTHER, [DEVICE, "driver"]),
        (DEVICE, [OTHER, "driver"]),
        ("driver", [DEVICE, OTHER]),
    ] {
        let pids = others.map(|other| domain(&place, other).unwrap().0);
        let (pid, before) = domain(&place, killed).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        wait(|| domain(&place, killed).filter(|(_, restarts)| *restarts == before + 1));
        work();
        assert_eq!(others.map(|other| domain(&place, other).unwrap().0), pids);
    }
    for device in [DEVICE, OTHER] {
        let stat = json(&place, &["stat", device, "--json"]);
        assert_eq!(number(&stat, "io_faults"), Some(0), "{stat}");
    }
    let audit = json(&place, &["grants", "--json"]);
    assert_eq!(audit["leaked"], 0, "{audit}");
    let end = running.terminate();
    assert!(end.ok(), "{end:?}");
}
