//! Changes of NICs that fail or are interrupted by the death of a process.

use crate::attach::{
    NAMES, address, answers_ping, domains, has_interface, loses_interface, reaches,
};
use crate::machine::{Machine, text};
use crate::nics::{
    GUESTS, NIC_ADDED, NIC_REMOVED, WIRE, on_af_xdp, open_descriptors, reload, when_stable,
    with_nic,
};
use crate::persistent::signal;
use crate::processes::kill;
use crate::reload::{ask, file_of, file_of_paths, request, socket, start, write};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;
use testing::{TIMEOUT, child_of, require, wait_for, wait_until};

#[test]
fn a_nic_that_fails_leaves_the_machine_unchanged() {
    let Some(machine) = start(2) else { return };
    reaches(&machine, 0, 1);
    let netns = machine.places[WIRE].0.path().display().to_string();
    let nowhere = with_nic(&machine, "").replace(&netns, "/no/such/namespace");
    let pid = || machine.ask(&["status"])["domains"][0]["pid"].clone();
    let driver = pid();
    for _ in 0..2 {
        let outcome = ask(&socket(&machine), &request(&nowhere));
        assert_eq!(outcome["done"], 0, "{outcome}");
        let failed = outcome["failed"].as_str().unwrap();
        assert!(
            failed.starts_with("NICs of driver: ") && failed.contains("/no/such/namespace"),
            "{failed}"
        );
        assert_eq!(pid(), driver, "the driver was not restarted");
        reaches(&machine, 0, 1);
    }
    for (changed, says) in [
        (
            on_af_xdp(&with_nic(&machine, "queues = \"vmq\"")),
            "NIC wire is new; this cannot change while the machine runs: restart the machine",
        ),
        (
            with_nic(&machine, "").replace("tap\"\nifname = \"c2", "sim\"\nifname = \"c2"),
            "ifname",
        ),
        (with_nic(&machine, "mtu = 3"), "`mtu` is 3"),
        (
            with_nic(&machine, "").replace(&address(WIRE), &address(0)),
            &address(0),
        ),
    ] {
        let refused = ask(&socket(&machine), &request(&changed));
        let why = refused["error"].as_str().unwrap_or_default();
        assert!(why.contains(says), "{says}: {refused}");
    }
    assert_eq!(reload(&machine, &with_nic(&machine, "")), [NIC_ADDED]);
    reaches(&machine, WIRE, 0);
    machine.end();
}

#[test]
fn a_failed_attach_removes_the_new_nic() {
    let Some(machine) = start(2) else { return };
    let old = file_of(&machine, &GUESTS);
    let nowhere = "[[guest]]\nname = \"g\"\n[[guest.vif]]\nendpoint = \"tap\"\n\
                   netns = \"/no/such/namespace\"\naddresses = [\"10.0.0.77/24\"]\n";
    let with = with_nic(&machine, "");
    // The NIC of the first attempt must leave nothing that disturbs the second attempt.
    for _ in 0..2 {
        let outcome = ask(&socket(&machine), &request(&format!("{with}{nowhere}")));
        let failed = outcome["failed"].as_str().unwrap();
        assert!(failed.starts_with("attach g: "), "{failed}");
        assert_eq!(
            (&outcome["done"], &outcome["warning"]),
            (&json!(0), &Value::Null)
        );
        loses_interface(&machine, WIRE);
        assert_eq!(domains(&machine), ["driver", "c0", "c1"]);
        reaches(&machine, 0, 1);
        assert!(reload(&machine, &old).is_empty());
    }
    assert_eq!(reload(&machine, &with), [NIC_ADDED]);
    reaches(&machine, WIRE, 0);
    machine.end();
}

/// Returns a connection to the machine.
fn connect(machine: &Machine) -> UnixStream {
    let stream = UnixStream::connect(socket(machine)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Requests a reload, and waits for an answer or the end of the connection.
fn request_reload(mut stream: UnixStream, file: &str) {
    let _ = writeln!(stream, "{}", request(file));
    let _ = stream.read(&mut [0; 4096]);
}

/// Returns true if the NIC of this file exists completely, false if it does not exist, and `None`
/// if it exists partially.
fn is_whole(machine: &Machine, with: &str) -> Option<bool> {
    let dry = machine.grantway(&["reload", &write(machine, with), "--dry-run"]);
    let said = text(&dry.stdout);
    let is_unchanged = said == "nothing to change\n";
    let is_known = is_unchanged || said == format!("{NIC_ADDED}\n");
    let fits = is_known && has_interface(machine, WIRE) == is_unchanged;
    let works = || answers_ping(machine, 0, 1) && (!is_unchanged || answers_ping(machine, WIRE, 0));
    (fits && works()).then_some(is_unchanged)
}

#[test]
fn a_death_during_a_nic_change_leaves_no_partial_nic() {
    let Some(machine) = start(2) else { return };
    let with = with_nic(&machine, "");
    check_deaths_during_changes(machine, with);
}

#[test]
fn a_death_during_an_xdp_change_leaves_no_partial_nic() {
    require!(af_xdp);
    let Some(machine) = start(2) else { return };
    let with = on_af_xdp(&with_nic(&machine, ""));
    check_deaths_during_changes(machine, with);
}

/// The manager, netd or the driver die while the NIC is added or removed. A reload of the same file
/// then completes the change.
fn check_deaths_during_changes(machine: Machine, with: String) {
    let files = [with, file_of(&machine, &GUESTS)];
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    for (turn, victim) in (0..).zip(["manager", "netd", "driver"].repeat(4)) {
        let there = turn % 2 == 0;
        let file = &files[turn % 2];
        let pid = match victim {
            "driver" => machine.ask(&["status"])["domains"][0]["pid"].as_u64(),
            helper => {
                let program = format!("grantway-{helper}");
                Some(wait_for("no helper", || child_of(core, &program)))
            }
        };
        thread::scope(|scope| {
            // The killed manager sends no answer.
            scope.spawn(|| request_reload(connect(&machine), file));
            thread::sleep(Duration::from_millis(turn as u64 * 3));
            kill(pid.unwrap());
        });
        wait_until("the NIC exists partially", || {
            is_whole(&machine, &files[0]).is_some()
        });
        wait_until("the NIC does not match its file", || {
            let run = machine.grantway(&["reload", &write(&machine, file)]);
            text(&run.stdout).ends_with("nothing to change\n")
        });
        if there {
            reaches(&machine, WIRE, 0);
        } else {
            loses_interface(&machine, WIRE);
        }
        reaches(&machine, 0, 1);
    }
    machine.end();
}

#[test]
fn a_tap_is_not_added_if_its_manager_dies() {
    let Some(machine) = start(2) else { return };
    let with = with_nic(&machine, "");
    check_manager_death(machine, &with);
}

#[test]
fn an_xdp_nic_is_not_added_if_its_manager_dies() {
    require!(af_xdp);
    let Some(machine) = start(2) else { return };
    let with = on_af_xdp(&with_nic(&machine, ""));
    check_manager_death(machine, &with);
}

/// The manager dies while netd opens the interface. netd then completes or fails.
fn check_manager_death(machine: Machine, with: &str) {
    let netns = machine.places[WIRE].0.path().display().to_string();
    let nowhere = with.replace(&netns, "/no/such/namespace");
    reaches(&machine, 0, 1);
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    let helper = |name| wait_for("no helper", || child_of(core, name));
    let before = when_stable(&machine);
    for file in [with, &nowhere, with] {
        let (manager, netd) = (helper("grantway-manager"), helper("grantway-netd"));
        // The connection is established before the manager is killed, because a waiting connection
        // would reach the next manager.
        let mut stream = connect(&machine);
        writeln!(stream, "{{\"op\":\"status\"}}").unwrap();
        assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0);
        thread::scope(|scope| {
            signal(netd, "-STOP");
            scope.spawn(|| request_reload(stream, file));
            // After this time the change has begun, and the manager waits for netd.
            thread::sleep(Duration::from_millis(300));
            kill(manager);
            signal(netd, "-CONT");
        });
        wait_until("the NIC exists at least partially", || {
            is_whole(&machine, with) == Some(false)
        });
    }
    wait_until("a descriptor is still open", || {
        let mut open = open_descriptors(&machine).into_iter().zip(before);
        open.all(|(now, before)| now <= before)
    });
    assert_eq!(reload(&machine, with), [NIC_ADDED]);
    reaches(&machine, WIRE, 0);
    machine.end();
}

/// Writes an empty capture file.
fn capture(at: &Path) {
    let words: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    fs::write(at, bytes).unwrap();
}

#[test]
fn a_failed_restart_restores_the_old_nics() {
    check_failed_restart(str::to_owned);
}

#[test]
fn a_failed_restart_removes_the_xdp_nic() {
    require!(af_xdp);
    check_failed_restart(on_af_xdp);
}

/// The driver cannot start with the added NIC. `of_kind` changes the kind of the NIC in the file.
fn check_failed_restart(of_kind: fn(&str) -> String) {
    let folder = tempfile::tempdir().unwrap();
    let read = folder.path().join("in.pcap");
    capture(&read);
    let pcap = format!(
        "[[nic]]\nname = \"p\"\nkind = \"pcap\"\nread = \"{}\"\n",
        read.display()
    );
    let mut own = String::new();
    let machine = Machine::start(&["ping", "ip"], &NAMES, |paths| {
        own = file_of_paths(paths, &GUESTS) + &pcap;
        own.clone()
    });
    let Some(machine) = machine else { return };
    let with = of_kind(&with_nic(&machine, "")) + &pcap;
    reaches(&machine, 0, 1);
    // No driver can start without this file.
    fs::remove_file(&read).unwrap();
    let outcome = ask(&socket(&machine), &request(&with));
    let failed = outcome["failed"].as_str().unwrap();
    for says in ["did not start", "in.pcap", "its previous NICs are restored"] {
        assert!(failed.contains(says), "{says}: {failed}");
    }
    loses_interface(&machine, WIRE);
    let dry = machine.grantway(&["reload", &write(&machine, &with), "--dry-run"]);
    assert_eq!(text(&dry.stdout), format!("{NIC_ADDED}\n"), "{dry:?}");
    capture(&read);
    reaches(&machine, 0, 1);
    assert_eq!(reload(&machine, &with), [NIC_ADDED]);
    reaches(&machine, WIRE, 1);
    assert_eq!(reload(&machine, &own), [NIC_REMOVED]);
    // A NIC of kind `pcap` is removed, and added by the next start.
    let without = file_of(&machine, &GUESTS);
    let expected = "restart driver: NIC p is no longer in the file";
    assert_eq!(reload(&machine, &without), [expected]);
    reaches(&machine, 0, 1);
    let refused = ask(&socket(&machine), &request(&own));
    let why = refused["error"].as_str().unwrap_or_default();
    assert!(why.contains("NIC p is new; this cannot change"), "{why}");
    machine.end();
}
