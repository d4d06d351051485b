//! An AF_XDP wire with a queue for each guest (`pdev`). The kernel writes a guest's frames only
//! into that guest's pages, even when the guest or the driver domain dies.

use crate::machine::Machine;
use crate::many_guests::{self, MARK, receivers};
use crate::pages::Pages;
use crate::processes::{descriptors, kill, pid};
use crate::programs::{FOR_FILES, NAMES, WEB, carry_files, config};
use crate::queues::{count, driver};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use testing::{Running, child_of, require, wait_for, wait_until};

const FILE_BYTES: usize = 20_000_000;

/// Starts the usual machine with a queue for each guest. `switches` precedes the configuration.
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
/// A driver domain that is not restarted.
const NO_RESTART: &str = "[driver]\ngrants = \"counted\"\nrestart = false\n";

/// Returns the driver's counters of a guest's queue.
fn queue(machine: &Machine, guest: &str) -> Value {
    driver(machine)["ports"][format!("vif.{guest}-0")]["queue"].clone()
}

#[test]
fn files_arrive_in_dedicated_queues() {
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
        // The queue carries all frames from the wire to this guest: half of the file transfers, and
        // acknowledgements.
        let web = queue(&machine, "web");
        let direct = count(&web["direct_packets"]);
        assert!(direct > FILE_BYTES as u64 / 1448, "{web}");
        assert_eq!(web["lro"]["merged"].as_u64() > Some(1000), merged, "{web}");
        machine.end();
    }
}

const GUESTS: usize = 4;

/// Returns a configuration in which all guests but the last have dedicated queues.
fn crowd(switches: &str, netns: &str) -> String {
    let wire = format!("kind = \"xdp\"\nvmq_queues = {GUESTS}\n");
    many_guests::config(switches, netns, &wire, GUESTS, |n| {
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

/// Starts a program that sends to every guest in turn.
fn sender(machine: &Machine) -> Running {
    many_guests::sender(machine, GUESTS, "while True:\n    send(frames)\n")
}

fn direct(machine: &Machine, n: usize) -> u64 {
    count(&queue(machine, &format!("g{n}"))["direct_packets"])
}

fn wait_for_frames(machine: &Machine, n: usize, more: u64) {
    let from = direct(machine, n);
    wait_until("no more frames arrive", || {
        direct(machine, n) >= from + more
    });
}

#[test]
fn a_guests_pages_hold_only_its_own_frames() {
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
    // The test runs until the scanner has found frames of every guest.
    let enough = |seen| seen == [true; GUESTS] && direct(&machine, 0) >= 50_000;
    while rounds < 100 || !enough(seen) {
        rounds += 1;
        for (n, pages) in pages.iter().enumerate() {
            pages.read(&mut room);
            for digits in receivers(&room) {
                let own = format!("{n:02}");
                assert_eq!(
                    digits,
                    own.as_bytes(),
                    "guest {n} has another guest's frame"
                );
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

/// Returns the socket of each ring that a process has mapped.
fn rings(pid: u64) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let names = maps.lines().filter_map(|line| line.rsplit(' ').next());
    let sockets = names.filter(|name| name.starts_with("socket:["));
    sockets.map(str::to_owned).collect()
}

#[test]
fn only_the_queue_of_a_dead_guest_ends() {
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
        wait_until("its queue is still open", || {
            queue(&machine, &name)["state"] == "over"
        });
        wait_for_frames(&machine, 2, 1000);
    }
    // The driver has closed the queues' descriptors, and the monitor has released them and the dead
    // process.
    wait_until("descriptors are still open", || {
        descriptors(driver_pid) <= before[1] - 2 && descriptors(monitor) < before[0] - 4
    });
    // Four rings of the shared socket and two of the last guest's socket remain.
    let left = wait_for("rings are still mapped", || {
        let left = rings(driver_pid);
        (left.len() == 4 + 2).then_some(left)
    });
    let ended = there.into_iter().filter(|ring| !left.contains(ring));
    let ended: Vec<String> = ended.collect();
    assert_eq!(ended.len(), 2 * 2, "{ended:?}");
    // A socket is not closed as long as a descriptor refers to it.
    wait_until("the monitor still holds closed sockets", || {
        !has_socket(monitor, &ended)
    });
    assert_eq!(machine.ask(&["grants"])["leaked"], 0);
    assert_eq!(
        pid(&machine, "driver"),
        driver_pid,
        "the driver was not restarted"
    );
    drop(sender);
    machine.end();
}

#[test]
fn a_killed_driver_leaves_no_queue_behind() {
    let Some(machine) = start_crowd(NO_RESTART) else {
        return;
    };
    let sender = sender(&machine);
    (0..3).for_each(|n| wait_for_frames(&machine, n, 1000));
    let guest = Pages::of_guest(&machine, "g0");
    assert!(kill(pid(&machine, "driver")));
    let grants = || machine.ask(&["grants"]);
    wait_until("the driver's mappings remain", || {
        grants()["domains"][0]["mapped"] == 0
    });
    assert_eq!(grants()["leaked"], 0);
    // From now on only the guest writes to its pages.
    let (mut one, mut two) = (Vec::new(), Vec::new());
    guest.read(&mut one);
    std::thread::sleep(Duration::from_millis(200));
    guest.read(&mut two);
    let writes = one.chunks(4096).zip(two.chunks(4096));
    let frames = writes
        .filter(|(a, b)| a != b)
        .filter(|(_, b)| b.windows(MARK.len()).any(|window| window == MARK));
    assert_eq!(frames.count(), 0, "a frame arrived after the death");
    drop(sender);
    machine.end();
}

/// The next driver gets new sockets over the same pools, while frames are in flight.
#[test]
fn a_restarted_driver_gets_the_queues_back() {
    let Some(machine) = start_crowd(NEW) else {
        return;
    };
    let sender = sender(&machine);
    for _ in 0..3 {
        (0..3).for_each(|n| wait_for_frames(&machine, n, 1000));
        let before = pid(&machine, "driver");
        assert!(kill(before));
        wait_until("no new driver runs", || {
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
    // The next driver works even if a guest has died in the meantime.
    assert!(kill(pid(&machine, "g0")));
    wait_until("its queue is still open", || {
        queue(&machine, "g0")["state"] == "over"
    });
    assert!(kill(pid(&machine, "driver")));
    wait_until("no frames arrive", || {
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

/// Returns whether a process has a descriptor that refers to one of these sockets.
fn has_socket(pid: u64, sockets: &[String]) -> bool {
    let mut all = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    all.any(|fd| {
        let name = fs::read_link(fd.path()).unwrap_or_default();
        sockets.iter().any(|socket| name == Path::new(socket))
    })
}

/// Kills a guest, its driver domain and netd in every order, without pauses and with frames in
/// flight. Then no process may hold a socket over the dead guest's pages, so that the kernel holds
/// none of them, and the other guests must have their queues again.
#[test]
fn a_queue_ends_in_any_order_of_kills() {
    for orders in [
        ["g netd driver", "netd driver g", "driver g netd"],
        ["netd g driver", "g driver netd", "driver netd g"],
    ] {
        let Some(machine) = start_crowd(NEW) else {
            return;
        };
        let sender = sender(&machine);
        let core = count(&machine.ask(&["status"])["pid"]);
        for (n, order) in orders.iter().enumerate() {
            let guest = format!("g{n}");
            wait_for_frames(&machine, n, 1000);
            let before = rings(pid(&machine, "driver"));
            let victims = order.split(' ').map(|who| match who {
                "g" => pid(&machine, &guest),
                "netd" => wait_for("no netd", || child_of(core, "grantway-netd")),
                name => pid(&machine, name),
            });
            let victims: Vec<u64> = victims.collect();
            for victim in victims {
                assert!(kill(victim), "{order}");
            }
            wait_until("a queue is not in the expected state", || {
                let run = machine.grantway(&["stat", "driver", "--json"]);
                let stat: Value = serde_json::from_slice(&run.stdout).unwrap_or_default();
                let queue = |n| &stat["driver"]["ports"][format!("vif.g{n}-0")]["queue"];
                let ended = |n| queue(n).is_null() || queue(n)["state"] == "over";
                (0..GUESTS - 1).all(|other| match other > n {
                    true => queue(other)["direct_packets"].as_u64() > Some(1000),
                    false => ended(other),
                }) && stat["driver"].is_object()
            });
            let left = wait_for("the driver has mapped rings of a dead guest", || {
                let left = rings(pid(&machine, "driver"));
                (left.len() == 4 + 2 * (GUESTS - 2 - n)).then_some(left)
            });
            let ended = before.into_iter().filter(|ring| !left.contains(ring));
            let ended: Vec<String> = ended.collect();
            assert!(ended.len() >= 2, "{ended:?}");
            wait_until("a socket outlives its guest", || {
                let netd = wait_for("no netd", || child_of(core, "grantway-netd"));
                let all = [core, netd, pid(&machine, "driver")];
                !all.into_iter().any(|pid| has_socket(pid, &ended))
            });
            assert_eq!(machine.ask(&["grants"])["leaked"], 0, "{order}");
        }
        drop(sender);
        machine.end();
    }
}
