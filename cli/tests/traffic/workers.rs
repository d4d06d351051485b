//! A driver domain with several workers. Real programs use every queue, frames of a flow stay in
//! order, broadcasts arrive once, and the death of a worker affects only its flows.

use crate::machine::{Machine, text};
use crate::processes::{kill, pid};
use crate::programs::{
    FILE_BYTES, FOR_FILES, IPV4, NAMES, PATHS, WEB, WIRE, carry_files, start_with,
};
use crate::queues::count;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use testing::{TIMEOUT, wait_for, wait_until};

fn worker(number: usize) -> String {
    match number {
        0 => "driver".to_owned(),
        _ => format!("driver-{number}"),
    }
}

fn with_workers(workers: usize, needed: &[&str]) -> Option<Machine> {
    start_with(&format!("[driver]\nworkers = {workers}"), needed)
}

/// Returns a worker's counters of its ports.
fn ports(machine: &Machine, number: usize) -> Value {
    let name = worker(number);
    machine.ask(&["stat", &name])[&name]["ports"].clone()
}

/// Returns the number of packets that each worker has sent to the place `to`.
fn carried_to(machine: &Machine, to: usize, workers: usize) -> Vec<u64> {
    let port = match to {
        WIRE => "nic.wire".to_owned(),
        guest => format!("vif.{}-0", NAMES[guest]),
    };
    let of = |number| count(&ports(machine, number)[&port]["traffic"]["out_packets"]);
    (0..workers).map(of).collect()
}

#[test]
fn files_arrive_through_every_queue() {
    for workers in [2, 4] {
        let Some(machine) = with_workers(workers, FOR_FILES) else {
            return;
        };
        carry_files(&machine, FILE_BYTES / 5);
        // The kernel selects the queue of a connection, so more connections are made until each
        // queue was used.
        let end = Instant::now() + Duration::from_secs(300);
        let has_carried = |to| {
            let carried = carried_to(&machine, to, workers);
            carried.iter().all(|&packets| packets > 100)
        };
        while !PATHS.iter().all(|&(_, to)| has_carried(to)) {
            assert!(Instant::now() < end, "a queue is never used");
            carry_files(&machine, FILE_BYTES / 50);
        }
        machine.end();
    }
}

#[test]
fn files_arrive_by_every_grant_mechanism() {
    for grants in ["copy", "map", "persistent", "counted"] {
        let switches = format!("[driver]\nworkers = 2\ngrants = \"{grants}\"");
        let Some(machine) = start_with(&switches, FOR_FILES) else {
            return;
        };
        carry_files(&machine, FILE_BYTES / 20);
        machine.end();
    }
}

/// A program that receives numbered datagrams. It exits when all have arrived and no more arrive
/// for half a second, or later if some were lost. For each flow it prints the number of datagrams
/// that arrived, that arrived after a higher number, and that arrived twice.
const RECEIVER: &str = r#"
import json, os, socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
SO_RCVBUFFORCE = 33
s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
s.bind(("", 9000))
open("taker-" + sys.argv[1], "w").close()
flows, late, left = {}, 0, int(sys.argv[2])
s.settimeout(120)
try:
    while True:
        flow, number = struct.unpack("!HI", s.recv(64)[:6])
        left -= 1
        s.settimeout(10 if left > 0 else 0.5)
        before = flows.get(flow, [0, -1])
        late += number <= before[1]
        flows[flow] = [before[0] + 1, max(number, before[1])]
except socket.timeout:
    pass
print(json.dumps({"flows": [count for count, _ in flows.values()], "late": late}))
"#;

/// A program that sends numbered datagrams of several flows.
const SENDER: &str = r#"
import socket, struct, sys, time
to, flows, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
# In the sender's own kernel, frames that wait for the neighbour's address may be overtaken by
# later ones that do not.
def knows():
    lines = [line.split() for line in open("/proc/self/net/arp")][1:]
    return any(line[0] == to and int(line[2], 16) & 2 for line in lines)
first = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
first.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
end = time.monotonic() + 60
while not (to.endswith(".255") or knows()) and time.monotonic() < end:
    first.sendto(b"", (to, 9))
    time.sleep(0.1)
made = []
for _ in range(flows):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    s.connect((to, 9000))
    made.append(s)
for number in range(count):
    for flow, s in enumerate(made):
        s.send(struct.pack("!HI", flow, number))
    # So slowly that queues contain what a domain without a CPU does not take for a while.
    time.sleep(0.004)
"#;

/// Sends datagrams of `flows` flows. Returns the results of the receivers in `takers`.
fn datagrams(
    machine: &Machine,
    (from, to): (usize, &str),
    takers: &[usize],
    [flows, each]: [usize; 2],
) -> Vec<Value> {
    let start = |&place: &usize| {
        let name = NAMES[place];
        let ready = machine.folder.path().join(format!("taker-{name}"));
        let _ = std::fs::remove_file(&ready);
        let all = (flows * each).to_string();
        let taker = machine.spawn(place, "python3", &["-c", RECEIVER, name, &all]);
        wait_until("the receiver has not started", || ready.exists());
        taker
    };
    let running: Vec<_> = takers.iter().map(start).collect();
    let (flows, each) = (flows.to_string(), each.to_string());
    let sent = machine.run(from, "python3", &["-c", SENDER, to, &flows, &each]);
    assert!(sent.status.success(), "{}", text(&sent.stderr));
    let result = |taker: testing::Running| {
        let run = taker.output();
        let parsed = serde_json::from_slice(&run.stdout);
        parsed.unwrap_or_else(|_| panic!("{}", text(&run.stderr)))
    };
    running.into_iter().map(result).collect()
}

#[test]
fn frames_of_one_flow_stay_in_order() {
    const FLOWS: usize = 16;
    const EACH: usize = 500;
    let Some(machine) = with_workers(4, &["python3"]) else {
        return;
    };
    for (from, to) in PATHS {
        let before = carried_to(&machine, to, 4);
        let got = datagrams(&machine, (from, IPV4[to]), &[to], [FLOWS, EACH]);
        let way = format!("{} to {}: {got:?}", NAMES[from], NAMES[to]);
        assert_eq!(got[0]["late"], 0, "{way}");
        let counts = got[0]["flows"].as_array().unwrap();
        assert_eq!(counts.len(), FLOWS, "{way}");
        assert!(counts.iter().all(|n| count(n) > EACH as u64 / 2), "{way}");
        let after = carried_to(&machine, to, 4);
        let used = before
            .iter()
            .zip(&after)
            .filter(|(before, after)| *after > *before);
        assert!(
            used.count() > 1,
            "{way} by one queue: {before:?}, {after:?}"
        );
    }
    machine.end();
}

#[test]
fn broadcasts_arrive_once_everywhere() {
    const FLOWS: usize = 16;
    const EACH: usize = 20;
    let Some(machine) = with_workers(4, &["python3"]) else {
        return;
    };
    for (from, name) in NAMES.iter().enumerate() {
        let others: Vec<usize> = (0..NAMES.len()).filter(|&place| place != from).collect();
        let all = datagrams(&machine, (from, "10.0.0.255"), &others, [FLOWS, EACH]);
        for (got, to) in all.iter().zip(others) {
            let each = json!({ "flows": vec![EACH; FLOWS], "late": 0 });
            assert_eq!(*got, each, "{name} to {}", NAMES[to]);
        }
    }
    machine.end();
}

/// A program that echoes data on every connection.
const ECHO: &str = r#"
import socket, threading
s = socket.create_server(("", 7000))
def serve(c):
    while True:
        data = c.recv(4096)
        if not data:
            return
        c.sendall(data)
while True:
    c, _ = s.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
"#;

/// A program that holds connections and sends a given text on one of them. It prints whether the
/// text returns in time.
const CONNECTIONS_SCRIPT: &str = r#"
import socket, sys
to, flows = sys.argv[1], int(sys.argv[2])
made = [socket.create_connection((to, 7000), 60) for _ in range(flows)]
ctl = socket.socket(socket.AF_UNIX)
ctl.bind("talker")
ctl.listen()
lines = ctl.accept()[0].makefile("rw")
for line in lines:
    flow, times, seconds = line.split()
    c = made[int(flow)]
    c.settimeout(float(seconds))
    try:
        for _ in range(int(times)):
            c.sendall(b"x" * 100)
            got = 0
            while got < 100:
                got += len(c.recv(100 - got))
        lines.write("is back\n")
    except socket.timeout:
        lines.write("did not\n")
    lines.flush()
"#;

#[test]
fn a_dying_worker_stalls_only_its_own_flows() {
    // The kernel distributes the flows at random. With this many, each worker gets some.
    const FLOWS: usize = 24;
    const WORKERS: usize = 2;
    let Some(machine) = with_workers(WORKERS, &["python3"]) else {
        return;
    };
    let _echo = machine.spawn(WEB, "python3", &["-c", ECHO]);
    machine.wait_for_listener(WEB, 7000);
    let flows = FLOWS.to_string();
    let _talker = machine.spawn(
        WIRE,
        "python3",
        &["-c", CONNECTIONS_SCRIPT, IPV4[WEB], &flows],
    );
    let talker = wait_for("nobody talks", || {
        UnixStream::connect(machine.folder.path().join("talker")).ok()
    });
    talker.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answers = BufReader::new(talker.try_clone().unwrap()).lines();
    let mut talk = |flow: usize, times: u32, seconds: u32| {
        writeln!(&talker, "{flow} {times} {seconds}").unwrap();
        answers.next().unwrap().unwrap() == "is back"
    };
    // For each flow, the worker that carries its packets.
    let whose: Vec<usize> = (0..FLOWS)
        .map(|flow| {
            let before = carried_to(&machine, WEB, WORKERS);
            assert!(talk(flow, 50, 60));
            let after = carried_to(&machine, WEB, WORKERS);
            let carried = before
                .iter()
                .zip(&after)
                .map(|(before, after)| after - before);
            let carried: Vec<_> = carried.collect();
            let (most, _) = carried.iter().enumerate().max_by_key(|(_, n)| **n).unwrap();
            assert!(carried[most] >= 50 && carried[1 - most] < 50, "{carried:?}");
            most
        })
        .collect();
    assert!(whose.contains(&0) && whose.contains(&1), "{whose:?}");
    let killed = pid(&machine, &worker(1));
    assert!(kill(killed));
    for (flow, _) in whose.iter().enumerate().filter(|(_, worker)| **worker == 0) {
        assert!(talk(flow, 50, 60), "flow {flow} of {whose:?}");
    }
    // Another worker replaces the killed one, and programs behind TAPs see only a pause.
    for (flow, _) in whose.iter().enumerate().filter(|(_, worker)| **worker == 1) {
        assert!(talk(flow, 50, 120), "flow {flow} of {whose:?}");
    }
    assert_ne!(pid(&machine, &worker(1)), killed);
    assert_eq!(machine.ask(&["grants"])["leaked"], 0);
    machine.end();
}

/// Domains that share one CPU lose no frame that fits in their rings.
#[test]
fn no_frame_is_lost_on_one_core() {
    const SOURCES: u8 = 6;
    // A source sends these frames in ten seconds. Within half of that time the sink is connected,
    // even on a busy system.
    const FRAMES: u64 = 20_000;
    const WORKERS: usize = 2;
    let config = |_: &[String]| {
        let mut config = format!(
            "[driver]\nworkers = {WORKERS}\ncpus = [0]\n[[guest]]\nname = \"sink\"\ncpus = [0]\n\
             [[guest.vif]]\nendpoint = \"sink\"\nmac = \"02:00:00:00:00:ff\"\n"
        );
        for n in 0..SOURCES {
            config += &format!(
                "[[guest]]\nname = \"s{n}\"\ncpus = [0]\n[[guest.vif]]\nendpoint = \"source\"\n\
                 mac = \"02:00:00:00:00:{n:02x}\"\nto = \"02:00:00:00:00:ff\"\nrate_pps = 2000\n\
                 count = {FRAMES}\n"
            );
        }
        config
    };
    let Some(machine) = Machine::start_alone::<&str>(&[], &[], config) else {
        return;
    };
    let taken = || {
        let stat = machine.ask(&["stat", "sink"]);
        let vifs = stat["sink"]["vifs"].as_object().unwrap();
        assert_eq!(vifs.keys().collect::<Vec<_>>(), ["0.0", "0.1"]);
        let of = |vif: &Value| count(&vif["endpoint"]["tx_packets"]);
        vifs.values().map(of).collect::<Vec<_>>()
    };
    // Sources start as soon as they are connected, so the sink may not be connected yet.
    let too_early = || {
        let of = |number| count(&ports(&machine, number)["vif.sink-0"]["not_connected"]);
        (0..WORKERS).map(of).sum::<u64>()
    };
    wait_until("frames are lost", || {
        let (taken, too_early) = (taken(), too_early());
        println!("{taken:?}, {too_early} too early");
        taken.iter().sum::<u64>() + too_early >= u64::from(SOURCES) * FRAMES
    });
    assert!(too_early() < u64::from(SOURCES) * FRAMES / 2);
    assert!(
        taken().iter().all(|&frames| frames > FRAMES / 2),
        "{:?}",
        taken()
    );
    machine.end();
}
