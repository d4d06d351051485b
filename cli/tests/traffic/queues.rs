//! A wire with a queue for each guest. The usual traffic passes, and a guest's pages never hold
//! another guest's frames, however often the queues are reassigned.

use crate::machine::Machine;
use crate::many_guests;
use crate::pages::Pages;
use crate::processes::{kill, pid};
use crate::programs::{FILE_BYTES, FOR_FILES, carry_files, config};
use crate::restart;
use serde_json::Value;
use std::time::{Duration, Instant};
use testing::{Running, wait_until};

/// Returns the driver's counters of the wire's queues, or `None` if this system cannot steer
/// frames.
pub(crate) fn vmq(machine: &Machine) -> Option<Value> {
    let status = machine.ask(&["status"]);
    if status["missing"].to_string().contains("NIC queues") {
        return testing::skip(&status["missing"]);
    }
    Some(driver(machine)["ports"]["nic.wire"]["vmq"].clone())
}

pub(crate) fn driver(machine: &Machine) -> Value {
    machine.ask(&["stat", "driver"])["driver"].clone()
}

pub(crate) fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn files_of_100_mb_arrive_in_dedicated_queues() {
    let with_queues = |namespaces: &[String]| {
        config("", namespaces).replacen("kind = \"tap\"", "kind = \"tap\"\nqueues = \"vmq\"", 1)
    };
    let names = crate::programs::NAMES;
    let Some(machine) = Machine::start(FOR_FILES, &names, with_queues) else {
        return;
    };
    if vmq(&machine).is_some() {
        carry_files(&machine, FILE_BYTES);
        let vmq = vmq(&machine).unwrap();
        // Half of the file's packets and all acknowledgements use the wire. A guest without posted
        // buffers receives packets from the shared queue. Their number depends on the machine's
        // speed.
        let direct = count(&vmq["direct_packets"]);
        assert!(direct > FILE_BYTES as u64 / 1448 / 10, "{vmq}");
        assert_eq!(vmq["misdirected"], 0, "{vmq}");
        assert_eq!(vmq["queues"].as_array().map(Vec::len), Some(2), "{vmq}");
    }
    machine.end();
}

/// Frames are merged in the guests' pages, within a batch or across polls, and with firewall rules,
/// which delay the writing of headers. Every byte arrives, most frames are merged, and a counter
/// shows the requests that segment sizes consume.
#[test]
fn files_arrive_merged_in_the_guests_pages() {
    const RULE: &str = "[[nic.rule]]\nname = \"no-telnet\"\naction = \"deny\"\nprotocol = \"tcp\"\n\
                        direction = \"from-wire\"\ndestination_ports = 23\n";
    for (flush, rule) in [("poll", ""), ("adaptive", ""), ("t50", ""), ("t50", RULE)] {
        let lro = format!("[lro]\nat = \"physical\"\nflush = \"{flush}\"\n");
        let with_queues = |namespaces: &[String]| {
            let vmq = "kind = \"tap\"\nqueues = \"vmq\"";
            let text = config(&lro, namespaces).replacen("kind = \"tap\"", vmq, 1);
            text.replacen("[[guest]]", &format!("{rule}[[guest]]"), 1)
        };
        let names = crate::programs::NAMES;
        let Some(machine) = Machine::start(FOR_FILES, &names, with_queues) else {
            return;
        };
        if vmq(&machine).is_some() {
            carry_files(&machine, FILE_BYTES / 10);
            let driver = driver(&machine);
            let vmq = &driver["ports"]["nic.wire"]["vmq"];
            assert_eq!(vmq["misdirected"], 0, "{vmq}");
            for queue in vmq["queues"].as_array().unwrap() {
                assert_eq!(queue["split"], !rule.is_empty(), "{queue}");
            }
            let lro = &vmq["lro"];
            assert!(count(&lro["merged"]) > 1000, "{vmq}");
            assert_eq!(lro["flush"], flush);
            // By load, frames may or may not wait.
            let waits = count(&lro["flushed"]["time"]) > 0;
            assert!(flush == "adaptive" || waits == (flush == "t50"), "{lro}");
            let web = &driver["ports"]["vif.web-0"];
            let consumed = count(&web["counters"]["meta_requests"]);
            assert_eq!(consumed > 0, flush != "poll", "{web}");
            let drops = &web["counters"]["to_guest_drops"];
            for reason in ["bad_offload", "no_request", "grant", "fault"] {
                assert_eq!(drops[reason], 0, "{reason}: {web}");
            }
        }
        machine.end();
    }
}

const GUESTS: usize = 8;
const QUEUES: usize = 4;

/// Returns a configuration with fewer queues than guests. Queues are reassigned as soon as the load
/// moves.
fn crowd(driver: &str, netns: &str) -> String {
    let switches = format!("[driver]\n{driver}\n");
    let wire = format!("kind = \"tap\"\nvmq_queues = {QUEUES}\nvmq_rebalance_ms = 2\n");
    many_guests::config(&switches, netns, &wire, GUESTS, |_| String::new())
}

/// Starts a program that sends to each half of the guests for `hold_seconds` seconds in turn.
fn sender(machine: &Machine, hold_seconds: f64) -> Running {
    let turns = format!(
        r#"
halves = [frames[0::2], frames[1::2]]
turn = 0
while True:
    until = time.monotonic() + {hold_seconds}
    while time.monotonic() < until:
        send(halves[turn % 2])
    turn += 1
"#
    );
    many_guests::sender(machine, GUESTS, &turns)
}

/// Returns for each guest whether these pages contain its frames.
fn receivers(pages: &Pages, buffer: &mut Vec<u8>) -> [bool; GUESTS] {
    pages.read(buffer);
    let mut found = [false; GUESTS];
    for digits in many_guests::receivers(buffer) {
        let number = std::str::from_utf8(digits)
            .ok()
            .and_then(|text| text.parse().ok());
        if let Some(flag) = number.and_then(|n: usize| found.get_mut(n)) {
            *flag = true;
        }
    }
    found
}

/// Asserts that no guest's pages have another guest's frames, and records the guests whose pages
/// have their own frames.
fn scan(pages: &[Pages], buffer: &mut Vec<u8>, seen: &mut [bool; GUESTS]) {
    for (n, pages) in pages.iter().enumerate() {
        for (whose, found) in receivers(pages, buffer).into_iter().enumerate() {
            assert!(
                !found || whose == n,
                "guest {n} has a frame of guest {whose}"
            );
            seen[n] |= found;
        }
    }
}

/// Returns the process id of each guest.
fn guests(machine: &Machine) -> Vec<u64> {
    let names = (0..GUESTS).map(|n| format!("g{n}"));
    names.map(|name| pid(machine, &name)).collect()
}

fn start_crowd(driver: &str) -> Option<Machine> {
    let config = |namespaces: &[String]| crowd(driver, &namespaces[0]);
    let machine = Machine::start(&["python3"], &["wire"], config)?;
    vmq(&machine).is_some().then_some(machine)
}

#[test]
fn reassignment_shows_no_guest_another_s_frame() {
    let Some(machine) = start_crowd("") else {
        return;
    };
    let pages: Vec<Pages> = guests(&machine).into_iter().map(Pages::of).collect();
    let sender = sender(&machine, 0.03);
    let end = Instant::now() + Duration::from_secs(1200);
    let mut buffer = Vec::new();
    let mut seen = [false; GUESTS];
    loop {
        for _ in 0..50 {
            scan(&pages, &mut buffer, &mut seen);
        }
        let vmq = vmq(&machine).unwrap();
        assert_eq!(vmq["misdirected"], 0, "{vmq}");
        let is_much = count(&vmq["direct_packets"]) > 100_000;
        // The test runs until the scanner has found frames of every guest.
        if is_much && count(&vmq["taken_back"]) >= 1000 && seen == [true; GUESTS] {
            break;
        }
        assert!(
            Instant::now() < end,
            "too few frames or reassignments: {seen:?}, {vmq}"
        );
    }
    drop(sender);
    machine.end();
}

/// A driver dies with frames in its queues, and the next driver assigns the queues to other guests.
#[test]
fn dying_drivers_show_no_guest_another_s_frame() {
    const KILLS: usize = 30;
    let Some(machine) = start_crowd("restart_pause_ms = 20") else {
        return;
    };
    let pages: Vec<Pages> = guests(&machine).into_iter().map(Pages::of).collect();
    let sender = sender(&machine, 0.03);
    let mut buffer = Vec::new();
    let mut seen = [false; GUESTS];
    for _ in 0..KILLS {
        let direct = || count(&vmq(&machine).unwrap()["direct_packets"]);
        wait_until("no frame arrives in a guest's queue", || {
            scan(&pages, &mut buffer, &mut seen);
            direct() >= 1000
        });
        let before = restart::driver(&machine);
        kill(count(&before["pid"]));
        scan(&pages, &mut buffer, &mut seen);
        restart::wait_for_another(&machine, &before);
        scan(&pages, &mut buffer, &mut seen);
        let vmq = vmq(&machine).unwrap();
        assert_eq!(vmq["misdirected"], 0, "{vmq}");
    }
    wait_until("the scanner finds no frames of some guests", || {
        scan(&pages, &mut buffer, &mut seen);
        seen == [true; GUESTS]
    });
    drop(sender);
    machine.end();
}

#[test]
fn a_death_with_posted_buffers_leaves_nothing() {
    let Some(machine) = start_crowd("restart = false") else {
        return;
    };
    let guests = guests(&machine);
    let sender = sender(&machine, 0.01);
    let direct = || count(&vmq(&machine).unwrap()["direct_packets"]);
    let wait_for = |more: u64| {
        let from = direct();
        wait_until("no more frames arrive", || direct() >= from + more);
    };
    wait_for(1000);
    for pid in guests.iter().take(GUESTS / 2) {
        assert!(kill(*pid));
        wait_for(1000);
        assert_eq!(machine.ask(&["grants"])["leaked"], 0);
    }
    wait_until("dead guests still have queues", || {
        let vmq = vmq(&machine).unwrap();
        let mut holders = vmq["queues"].as_array().unwrap().iter();
        let dead = |n: usize| format!("vif.g{n}-0");
        !holders.any(|queue| (0..GUESTS / 2).any(|n| queue["guest"] == dead(n)))
    });
    wait_for(1000);
    assert!(kill(pid(&machine, "driver")));
    wait_until("the driver's mappings remain", || {
        machine.ask(&["grants"])["domains"][0]["mapped"] == 0
    });
    assert_eq!(machine.ask(&["grants"])["leaked"], 0);
    drop(sender);
}
