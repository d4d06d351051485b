//! A NIC whose device is a separate domain.

use crate::test_dir::{Running, SIM, TestDir, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const DEVICE: &str = "device-wire";

fn up(place: &TestDir) -> Running {
    let soft = "kind = \"soft\"\nrate_mbps = 10000\ninterrupt_us = 20";
    let file = place.file("m.toml", &SIM.replacen("kind = \"sim\"", soft, 1));
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
    let running = up(&place);
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
