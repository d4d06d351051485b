//! A wire on AF_XDP with a queue for each guest (`pdev`): the kernel writes what comes into the
//! guest's own pages and into no other's, also when the guest or the driver domain dies.

use crate::crowd::{self, MARK, for_whom};
use crate::machine::{Machine, Running};
use crate::pages::Pages;
use crate::processes::{descriptors, kill, pid};
use crate::programs::{FOR_FILES, NAMES, WEB, carry_files, config};
use crate::queues::{count, driver};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use testing::{require, wait_for, wait_until};

const FILE_BYTES: usize = 20_000_000;

/// The usual machine with a queue for each guest; `switches` comes first.
fn start(switches: &str, needed: &[&str]) -> Option<Machine> {
    require!(af_xdp);
    let text = |namespaces: &[String]| {
        let wire = "kind = \"xdp\"\nqueues = \"vmq\"\nvmq_queues = 2\n";
        let mut text = config(switches, namespaces).replacen("kind = \"tap\"\n", wire, 1);
        for (n, name) in NAMES.iter().enumerate().skip(WEB) {
            let own = format!("ifname = \"{name}\"");
            text = text.replacen(&own, &format!("pdev = \"wire:{n}\"\n{own}"), 1);
        }
        text
    };
    Machine::start(needed, &NAMES, text)
}

const NEW: &str = "[driver]\ngrants = \"counted\"\n";
/// A driver domain that dies stays dead.
const FOR_GOOD: &str = "[driver]\ngrants = \"counted\"\nrestart = false\n";

/// What the driver says of a guest's own queue.
fn queue(machine: &Machine, guest: &str) -> Value {
    driver(machine)["ports"][format!("vif.{guest}-0")]["queue"].clone()
}

#[test]
fn files_arrive_by_queues_of_the_guests_own() {
    for (switches, merged) in [
        ("", true),
        ("[lro]\nat = \"virtual\"\n", false),
        (
            "[ring]\nformat = \"xen\"\n[buffers]\nsize = \"full\"\n",
            true,
        ),
        ("[buffers]\nto_guest = 64\nfrom_guest = 64\n", true),
    ] {
        let Some(machine) = start(&format!("{NEW}{switches}"), FOR_FILES) else {
            return;
        };
        eprintln!("{switches}");
        carry_files(&machine, FILE_BYTES);
        for guest in ["web", "db"] {
            let queue = queue(&machine, guest);
            assert_eq!(queue["state"], "open", "{queue}");
            assert_eq!(queue["misdirected"], 0, "{queue}");
            for wrong in ["rx_malformed", "rx_fault", "rx_foreign_buffer"] {
                assert_eq!(queue["device"][wrong], 0, "{wrong}: {queue}");
            }
        }
        // All that came for this guest by the wire: half of a file, and acknowledgements.
        let web = queue(&machine, "web");
        let direct = count(&web["direct_packets"]);
        assert!(direct > FILE_BYTES as u64 / 1448, "{web}");
        assert_eq!(web["lro"]["merged"].as_u64() > Some(1000), merged, "{web}");
        machine.end();
    }
}

const GUESTS: usize = 4;

/// All guests but the last have queues of their own.
fn crowd(switches: &str, netns: &str) -> String {
    let wire = format!("kind = \"xdp\"\nvmq_queues = {GUESTS}\n");
    crowd::config(switches, netns, &wire, GUESTS, |n| {
        let own = format!("pdev = \"wire:{}\"\n", n + 1);
        if n + 1 < GUESTS { own } else { String::new() }
    })
}

fn start_crowd(switches: &str) -> Option<Machine> {
    require!(af_xdp);
    Machine::start(&["python3"], &["wire"], |namespaces| {
        crowd(switches, &namespaces[0])
    })
}

/// Sends to every guest in turn.
fn sender(machine: &Machine) -> Running {
    crowd::sender(machine, GUESTS, "while True:\n    send(frames)\n")
}

fn direct(machine: &Machine, n: usize) -> u64 {
    count(&queue(machine, &format!("g{n}"))["direct_packets"])
}

fn wait_for_frames(machine: &Machine, n: usize, more: u64) {
    let from = direct(machine, n);
    wait_until("nothing comes any more", || {
        direct(machine, n) >= from + more
    });
}

#[test]
fn a_guest_sees_its_own_frames_alone_in_its_pages() {
    let Some(machine) = start_crowd(NEW) else {
        return;
    };
    let names: Vec<String> = (0..GUESTS).map(|n| format!("g{n}")).collect();
    let pages: Vec<Pages> = names.iter().map(|g| Pages::of_guest(&machine, g)).collect();
    let sender = sender(&machine);
    let mut room = Vec::new();
    let mut seen = [false; GUESTS];
    let mut rounds = 0;
    let end = Instant::now() + Duration::from_secs(600);
    // The scanner sees what there is.
    let enough = |seen| seen == [true; GUESTS] && direct(&machine, 0) >= 50_000;
    while rounds < 100 || !enough(seen) {
        rounds += 1;
        for (n, pages) in pages.iter().enumerate() {
            pages.read(&mut room);
            for digits in for_whom(&room) {
                let own = format!("{n:02}");
                assert_eq!(digits, own.as_bytes(), "guest {n} has another's frame");
                seen[n] = true;
            }
        }
        assert!(
            Instant::now() < end,
            "too few frames: {}, {seen:?}",
            direct(&machine, 0)
        );
    }
    for name in names.iter().take(GUESTS - 1) {
        assert_eq!(queue(&machine, name)["misdirected"], 0);
    }
    drop(sender);
    machine.end();
}

/// The sockets whose rings a process sees, one for each ring.
fn rings(pid: u64) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let names = maps.lines().filter_map(|line| line.rsplit(' ').next());
    let sockets = names.filter(|name| name.starts_with("socket:["));
    sockets.map(str::to_owned).collect()
}

#[test]
fn the_queue_of_a_dead_guest_ends_and_the_others_go_on() {
    let Some(machine) = start_crowd(NEW) else {
        return;
    };
    let sender = sender(&machine);
    (0..3).for_each(|n| wait_for_frames(&machine, n, 1000));
    let monitor = count(&machine.ask(&["status"])["pid"]);
    let driver_pid = pid(&machine, "driver");
    let before = [monitor, driver_pid].map(descriptors);
    let there = rings(driver_pid);
    for n in 0..2 {
        assert!(kill(pid(&machine, &format!("g{n}"))));
        let name = format!("g{n}");
        wait_until("its queue is there", || {
            queue(&machine, &name)["state"] == "over"
        });
        wait_for_frames(&machine, 2, 1000);
    }
    // The driver has closed the queues' descriptors, and the monitor has done with them and with
    // the dead.
    wait_until("descriptors stay", || {
        descriptors(driver_pid) <= before[1] - 2 && descriptors(monitor) < before[0] - 4
    });
    // Four of the shared socket, two of the last guest's.
    let left = wait_for("rings stay", || {
        let left = rings(driver_pid);
        (left.len() == 4 + 2).then_some(left)
    });
    let ended: Vec<_> = there.iter().filter(|ring| !left.contains(ring)).collect();
    assert_eq!(ended.len(), 2 * 2, "{ended:?}");
    // A socket that somebody has a descriptor of has not ended.
    wait_until("the monitor has sockets that have ended", || {
        let mut all = fs::read_dir(format!("/proc/{monitor}/fd")).unwrap();
        !all.any(|fd| {
            let name = fs::read_link(fd.unwrap().path()).unwrap_or_default();
            ended.iter().any(|ring| name == Path::new(ring))
        })
    });
    assert_eq!(machine.ask(&["grants"])["leaked"], 0);
    assert_eq!(
        pid(&machine, "driver"),
        driver_pid,
        "nobody was killed for it"
    );
    drop(sender);
    machine.end();
}

#[test]
fn a_driver_that_is_killed_leaves_no_queue_behind() {
    let Some(machine) = start_crowd(FOR_GOOD) else {
        return;
    };
    let sender = sender(&machine);
    (0..3).for_each(|n| wait_for_frames(&machine, n, 1000));
    let guest = Pages::of_guest(&machine, "g0");
    assert!(kill(pid(&machine, "driver")));
    let grants = || machine.ask(&["grants"]);
    wait_until("the driver's mappings stay", || {
        grants()["domains"][0]["mapped"] == 0
    });
    assert_eq!(grants()["leaked"], 0);
    // What is in the guest's pages is the guest's to say from now on.
    let (mut one, mut two) = (Vec::new(), Vec::new());
    guest.read(&mut one);
    std::thread::sleep(Duration::from_millis(200));
    guest.read(&mut two);
    let writes = one.chunks(4096).zip(two.chunks(4096));
    let frames = writes
        .filter(|(a, b)| a != b)
        .filter(|(_, b)| b.windows(MARK.len()).any(|window| window == MARK));
    assert_eq!(frames.count(), 0, "a frame came after the death");
    drop(sender);
    machine.end();
}

/// The one that takes a dead driver's place gets sockets of its own over the same pools, with
/// frames in flight all the time.
#[test]
fn a_driver_that_is_started_again_has_the_queues_again() {
    let Some(machine) = start_crowd(NEW) else {
        return;
    };
    let sender = sender(&machine);
    for _ in 0..3 {
        (0..3).for_each(|n| wait_for_frames(&machine, n, 1000));
        let before = pid(&machine, "driver");
        assert!(kill(before));
        wait_until("no driver comes", || {
            let status = machine.ask(&["status"]);
            let mut domains = status["domains"].as_array().unwrap().iter();
            domains.any(|d| d["name"] == "driver" && d["alive"] == true && d["pid"] != before)
        });
        wait_until("no queue is open", || {
            let run = machine.grantway(&["stat", "driver", "--json"]);
            let stat: Value = serde_json::from_slice(&run.stdout).unwrap_or_default();
            let open = |n: usize| {
                stat["driver"]["ports"][format!("vif.g{n}-0")]["queue"]["state"] == "open"
            };
            (0..3).all(open)
        });
    }
    // One that is dead by then is none of its concern.
    assert!(kill(pid(&machine, "g0")));
    wait_until("its queue is there", || {
        queue(&machine, "g0")["state"] == "over"
    });
    assert!(kill(pid(&machine, "driver")));
    wait_until("nothing comes", || {
        let run = machine.grantway(&["stat", "driver", "--json"]);
        let stat: Value = serde_json::from_slice(&run.stdout).unwrap_or_default();
        let ports = &stat["driver"]["ports"];
        ports["vif.g0-0"]["queue"].is_null()
            && ports["vif.g1-0"]["queue"]["direct_packets"].as_u64() > Some(1000)
    });
    assert_eq!(machine.ask(&["grants"])["leaked"], 0);
    drop(sender);
    machine.end();
}
