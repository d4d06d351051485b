//! Persistent interfaces, which remain after the machine stops.

use crate::attach::{has_interface, loses_interface, reaches};
use crate::machine::{Machine, text};
use crate::processes::kill;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;
use testing::{accept, child_of, wait_for, wait_for_exit};

/// The interfaces. The first two are persistent, the third is not.
const NAMES: [&str; 3] = ["a0", "b0", "c0"];
/// Timeout for a stream whose machine was down for some seconds. The stream continues when its
/// sender retries.
const STREAM_TIMEOUT: Duration = Duration::from_secs(300);

fn config(driver: &str, namespaces: &[String]) -> String {
    let guests = namespaces.iter().zip(NAMES).enumerate();
    let guest = |(n, (netns, name)): (usize, (&String, &str))| {
        format!(
            "[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"tap\"\nifname = \"{name}\"\n\
             netns = \"{netns}\"\naddresses = [\"10.0.0.{}/24\"]\npersistent = {}\n",
            n + 1,
            n < 2
        )
    };
    let guests: String = guests.map(guest).collect();
    format!("[driver]\n{driver}\n{guests}")
}

fn start() -> Option<Machine> {
    Machine::start(&["ip", "ping"], &NAMES, |namespaces| config("", namespaces))
}

fn ip(machine: &Machine, place: usize, args: &[&str]) -> String {
    let ran = machine.run(place, "ip", args);
    assert!(ran.status.success(), "{args:?}: {ran:?}");
    text(&ran.stdout)
}

/// Returns an interface's number and owner.
fn link(machine: &Machine, place: usize) -> (u64, String) {
    let shown = ip(machine, place, &["-j", "link", "show", NAMES[place]]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let alias = shown[0]["ifalias"].as_str().unwrap_or_default();
    (shown[0]["ifindex"].as_u64().unwrap(), alias.to_owned())
}

/// Kills the core, which ends everything that is not persistent.
fn kill_machine(machine: &mut Machine) {
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    assert!(kill(core));
    machine.has_died();
    loses_interface(machine, 2);
}

#[test]
fn persistent_interfaces_outlive_the_machine() {
    let Some(mut machine) = start() else { return };
    reaches(&machine, 0, 1);
    let before = link(&machine, 0);
    assert_eq!(before.1, "grantway grantway");
    ip(&machine, 0, &["address", "add", "10.7.0.1/24", "dev", "a0"]);
    ip(
        &machine,
        0,
        &["route", "add", "10.8.0.0/16", "via", "10.0.0.2"],
    );
    let listen = || TcpListener::bind(("10.0.0.2", 7000)).unwrap();
    let listener = machine.places[1].0.enter(listen).unwrap();
    let connect = || TcpStream::connect(("10.0.0.2", 7000)).unwrap();
    let mut sender = machine.places[0].0.enter(connect).unwrap();
    let mut receiver = accept(&listener);
    receiver.set_read_timeout(Some(STREAM_TIMEOUT)).unwrap();
    let mut carries = |byte: u8| {
        sender.write_all(&[byte]).unwrap();
        let mut got = [0];
        receiver.read_exact(&mut got).unwrap();
        assert_eq!(got, [byte]);
    };
    carries(1);
    for round in 2..4 {
        kill_machine(&mut machine);
        assert_eq!(link(&machine, 0), before);
        machine.start_again();
        assert_eq!(link(&machine, 0), before);
        let addresses = ip(&machine, 0, &["address", "show", "dev", "a0"]);
        assert!(addresses.contains("10.7.0.1/24"), "{addresses}");
        let routes = ip(&machine, 0, &["route"]);
        assert!(routes.contains("10.8.0.0/16 via 10.0.0.2"), "{routes}");
        carries(round);
        reaches(&machine, 2, 0);
    }
    machine.ask(&["detach", "a0"]);
    loses_interface(&machine, 0);
    // A clean shutdown removes the remaining persistent interface.
    machine.end();
}

/// Sends a signal to a process by `kill`.
pub(crate) fn signal(pid: u64, signal: &str) {
    let ran = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status();
    assert!(ran.unwrap().success());
}

#[test]
fn a_shutdown_by_a_signal_leaves_nothing_behind() {
    let Some(mut machine) = start() else { return };
    for how in ["-TERM", "-INT", "-HUP"] {
        let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
        signal(core, how);
        assert!(wait_for_exit(&mut machine.up).success());
        (0..3).for_each(|place| loses_interface(&machine, place));
        machine.start_again();
    }
    // The `grantway up` of the machine is killed, which is not a clean shutdown.
    let before = link(&machine, 0);
    signal(machine.up.id().into(), "-KILL");
    machine.has_died();
    loses_interface(&machine, 2);
    assert_eq!(link(&machine, 0), before);
    machine.start_again();
    assert_eq!(link(&machine, 0), before);
    machine.end();
}

#[test]
fn a_new_netd_closes_the_previous_descriptors() {
    let Some(mut machine) = start() else { return };
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    let netd = || wait_for("no netd", || child_of(core, "grantway-netd"));
    let stop = || {
        let netd = netd();
        signal(netd, "-STOP");
        netd
    };
    let stopped = stop();
    machine.ask(&["detach", "a0"]);
    assert!(has_interface(&machine, 0), "an open interface was removed");
    signal(stopped, "-KILL");
    loses_interface(&machine, 0);
    // A clean shutdown of the machine removes the interface, too.
    let stopped = stop();
    signal(core, "-TERM");
    thread::sleep(Duration::from_millis(200));
    signal(stopped, "-KILL");
    assert!(wait_for_exit(&mut machine.up).success());
    (0..3).for_each(|place| loses_interface(&machine, place));
}

#[test]
fn only_its_own_machine_takes_an_interface_over() {
    let Some(mut machine) = start() else { return };
    let before = link(&machine, 0);
    kill_machine(&mut machine);
    let file = machine.folder.path().join("machine.toml");
    let shown = file.display().to_string();
    let other = machine.grantway(&["up", &shown, "--name", "other", "--detach"]);
    let said = text(&other.stderr);
    assert!(
        !other.status.success() && said.contains("already exists"),
        "{other:?}"
    );
    assert_eq!(link(&machine, 0), before);
    let written = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        written.replacen("[driver]\n", "[driver]\nworkers = 2\n", 1),
    )
    .unwrap();
    machine.start_again();
    let after = link(&machine, 0);
    assert!(after.0 != before.0 && after.1 == before.1, "{after:?}");
    reaches(&machine, 0, 1);
    reaches(&machine, 2, 0);
    machine.end();
}
