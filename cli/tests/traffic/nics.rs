//! NICs come to a machine that runs, and go again.

use crate::attach::{NAMES, address, domains, loses_interface, reaches, replace, stream};
use crate::machine::{Machine, text};
use crate::processes::{descriptors, kill};
use crate::reload::{ask, file_of, request, socket, start, write};
use serde_json::Value;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use testing::{Stops, child_of, wait_for, wait_until};

/// The place where the NIC's end in the kernel is.
const WIRE: usize = 2;
const GUESTS: [(usize, &str); 2] = [(0, ""), (1, "")];

/// A NIC whose end in the kernel is in the last namespace, under its usual address.
fn nic(machine: &Machine, keys: &str) -> String {
    let netns = machine.places[WIRE].0.path().display().to_string();
    let (ifname, address) = (NAMES[WIRE], address(WIRE));
    format!(
        "[[nic]]\nname = \"wire\"\nkind = \"tap\"\nifname = \"{ifname}\"\nnetns = \"{netns}\"\n\
         addresses = [\"{address}/24\"]\n{keys}\n"
    )
}

/// The machine's file, with such a NIC and the two guests.
fn with_nic(machine: &Machine, keys: &str) -> String {
    file_of(machine, &GUESTS) + &nic(machine, keys)
}

/// What a reload says that it does, line by line but the last, which says that it is done.
fn reload(machine: &Machine, text_of_file: &str) -> Vec<String> {
    let run = machine.grantway(&["reload", &write(machine, text_of_file)]);
    assert!(run.status.success(), "{run:?}");
    let mut lines: Vec<String> = text(&run.stdout).lines().map(str::to_owned).collect();
    let last = lines.pop().unwrap();
    if last != "nothing to change" {
        assert!(last.contains("is reloaded"), "{last}");
    }
    lines
}

fn link(machine: &Machine) -> String {
    text(
        &machine
            .run(WIRE, "ip", &["link", "show", NAMES[WIRE]])
            .stdout,
    )
}

/// Descriptors of the core and its helpers.
fn held(machine: &Machine) -> [usize; 3] {
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    let helper = |name| wait_for("no helper", || child_of(core, name));
    let all = [core, helper("grantway-netd"), helper("grantway-manager")];
    all.map(descriptors)
}

/// The same when it stays so.
fn at_rest(machine: &Machine) -> [usize; 3] {
    wait_for("it never stays the same", || {
        let now = held(machine);
        (0..3).all(|_| held(machine) == now).then_some(now)
    })
}

const NEW: &str = "start driver again: NIC wire is new";
const GONE: &str = "start driver again: NIC wire is not in the file any more";

#[test]
fn a_nic_comes_and_goes_under_a_stream_of_guests() {
    let Some(machine) = start(2) else { return };
    let without = file_of(&machine, &GUESTS);
    let with = with_nic(&machine, "");
    reaches(&machine, 0, 1);
    let (stop, carried) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let stops = Stops(&stop);
        let streaming = scope.spawn(|| stream(&machine, (0, 1), &stop, &carried));
        let goes_on = || {
            let so_far = carried.load(Ordering::Relaxed);
            wait_until("the stream stands", || {
                carried.load(Ordering::Relaxed) > so_far
            });
        };
        let dry = machine.grantway(&["reload", &write(&machine, &with), "--dry-run"]);
        assert_eq!(text(&dry.stdout), format!("{NEW}\n"), "{dry:?}");
        assert!(link(&machine).is_empty(), "a dry run does nothing");
        let mut before = None;
        for _ in 0..4 {
            assert_eq!(reload(&machine, &with), [NEW]);
            goes_on();
            for guest in [0, 1] {
                reaches(&machine, WIRE, guest);
            }
            // Twice is once.
            assert!(reload(&machine, &with).is_empty());
            assert_eq!(reload(&machine, &without), [GONE]);
            goes_on();
            loses_interface(&machine, WIRE);
            assert!(reload(&machine, &without).is_empty());
            // As with the first one that came and went.
            match before {
                None => before = Some(at_rest(&machine)),
                Some(before) => wait_until("a descriptor has stayed", || {
                    let mut open = held(&machine).into_iter().zip(before);
                    open.all(|(now, before)| now <= before)
                }),
            }
        }
        assert_eq!(domains(&machine), ["driver", "c0", "c1"]);
        drop(stops);
        streaming.join().unwrap();
    });
    machine.end();
}

#[test]
fn the_next_manager_and_the_next_driver_have_the_nics_of_the_last_reload() {
    let Some(machine) = start(2) else { return };
    let with = with_nic(&machine, "");
    assert_eq!(reload(&machine, &with), [NEW]);
    for victim in ["manager", "driver", "manager"] {
        replace(&machine, victim);
        assert!(reload(&machine, &with).is_empty(), "{victim}");
        reaches(&machine, WIRE, 0);
    }
    // One that is described otherwise goes and comes again, with its MAC.
    let mac = |link: String| link.lines().nth(1).unwrap_or_default().to_owned();
    let before = mac(link(&machine));
    let slower = with_nic(&machine, "mtu = 1400");
    let steps = reload(&machine, &slower);
    let expected = [
        "start driver again: NIC wire: `mtu` is 1400 and was left out",
        "start driver again: NIC wire is there again",
    ];
    assert_eq!(steps, expected);
    let now = link(&machine);
    assert!(now.contains("mtu 1400"), "{now}");
    assert_eq!(mac(now), before);
    reaches(&machine, WIRE, 1);
    replace(&machine, "manager");
    assert_eq!(reload(&machine, &file_of(&machine, &GUESTS)), [GONE]);
    loses_interface(&machine, WIRE);
    reaches(&machine, 0, 1);
    machine.end();
}

#[test]
fn a_nic_that_cannot_come_leaves_the_machine_as_it_was() {
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
        assert_eq!(pid(), driver, "nothing was started again");
        reaches(&machine, 0, 1);
    }
    for (changed, says) in [
        (
            with_nic(&machine, "queues = \"vmq\""),
            "NIC wire is new; that cannot change while the machine runs: restart the machine",
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
    assert_eq!(reload(&machine, &with_nic(&machine, "")), [NEW]);
    reaches(&machine, WIRE, 0);
    machine.end();
}

/// Manager, netd or driver die while NICs come or go: the same files again make the machine what
/// they say.
#[test]
fn who_dies_while_nics_come_or_go_leaves_no_half() {
    let Some(machine) = start(2) else { return };
    let files = [with_nic(&machine, ""), file_of(&machine, &GUESTS)];
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
        let asked = socket(&machine);
        thread::scope(|scope| {
            scope.spawn(|| {
                use std::io::{Read as _, Write as _};
                let mut stream = std::os::unix::net::UnixStream::connect(asked).unwrap();
                // Who kills the manager hears nothing.
                let _ = writeln!(stream, "{}", request(file));
                let _ = stream.read(&mut [0; 4096]);
            });
            thread::sleep(Duration::from_millis(turn as u64 * 3));
            kill(pid.unwrap());
        });
        wait_until("it does not become what its file says", || {
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
fn an_uplink_is_set_up_and_taken_away_with_its_nic() {
    let Some(machine) = start(2) else { return };
    let forwards = || {
        let read = || fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        let text = machine.places[WIRE].0.enter(read).unwrap();
        text.trim().to_owned()
    };
    let as_made = forwards();
    let up = with_nic(&machine, "uplink = { nat = true }");
    for _ in 0..2 {
        assert_eq!(reload(&machine, &up), [NEW]);
        assert_eq!(forwards(), "1");
        reaches(&machine, 0, WIRE);
        assert_eq!(reload(&machine, &file_of(&machine, &GUESTS)), [GONE]);
        wait_until("it still forwards", || forwards() == as_made);
        loses_interface(&machine, WIRE);
    }
    let stat = machine.ask(&["stat"]);
    assert_eq!(stat.to_string().matches("nic.wire").count(), 0, "{stat}");
    assert_ne!(stat, Value::Null);
    machine.end();
}
