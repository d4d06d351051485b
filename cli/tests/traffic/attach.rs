//! Attaches guests to a running machine, and detaches them.

use crate::machine::{Machine, text};
use crate::processes::{descriptors, kill};
use crate::reattach::NetnsProcess;
use crate::reload::{answer, ask, send, socket};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testing::{
    StopOnDrop, TIMEOUT, accept, child_of, require, wait_for, wait_for_exit, wait_until,
    with_timeout,
};

pub(crate) const NAMES: [&str; 3] = ["c0", "c1", "c2"];

/// Returns a machine without a guest or a NIC, and three namespaces.
pub(crate) fn empty(needed: &[&str]) -> Option<Machine> {
    Machine::start(needed, &NAMES, |_| {
        "[driver]\nrestart_pause_ms = 20\n".to_owned()
    })
}

pub(crate) fn address(place: usize) -> String {
    format!("10.0.0.{}", place + 1)
}

/// Returns the arguments that attach a namespace under the name of its interface.
fn typed(machine: &Machine, place: usize) -> Vec<String> {
    let (namespace, name) = &machine.places[place];
    let netns = namespace.path().display().to_string();
    let cidr = format!("{}/24", address(place));
    let words = [
        "attach", name, "--netns", &netns, "--ip", &cidr, "--ifname", name,
    ];
    words.map(str::to_owned).to_vec()
}

pub(crate) fn attach(machine: &Machine, place: usize) -> Value {
    let typed = typed(machine, place);
    let words: Vec<&str> = typed.iter().map(String::as_str).collect();
    machine.ask(&words)
}

pub(crate) fn detach(machine: &Machine, place: usize) -> Value {
    machine.ask(&["detach", NAMES[place]])
}

/// Returns whether a ping from one namespace to another is answered within a second.
pub(crate) fn answers_ping(machine: &Machine, from: usize, to: usize) -> bool {
    let ping = machine.run(from, "ping", &["-c", "1", "-W", "1", &address(to)]);
    ping.status.success()
}

pub(crate) fn reaches(machine: &Machine, from: usize, to: usize) {
    wait_until("no answer to a ping", || answers_ping(machine, from, to));
}

/// Returns whether a namespace has an interface of this name.
pub(crate) fn has_interface(machine: &Machine, place: usize) -> bool {
    let (namespace, name) = &machine.places[place];
    let read = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    namespace.enter(read).unwrap().contains(name)
}

/// Waits until an interface is removed, which must take at most a second.
pub(crate) fn loses_interface(machine: &Machine, place: usize) {
    wait_until("the interface still exists", || {
        !has_interface(machine, place)
    });
}

/// Starts a machine with eight guests. Returns it while it still starts, with a connection to its
/// socket.
fn early() -> Option<(Machine, UnixStream)> {
    let guest = |n| format!("[[guest]]\nname = \"g{n}\"\n[[guest.vif]]\nendpoint = \"sink\"\n");
    let guests: String = (0..8).map(guest).collect();
    let machine = Machine::begin(&[], &NAMES, |_| format!("[driver]\n{guests}"))?;
    let connect = || UnixStream::connect(socket(&machine)).ok();
    let stream = wait_for("nobody listens", connect);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    Some((machine, stream))
}

fn attach_late() -> Value {
    let guest = json!({ "name": "late", "vif": [{ "endpoint": "sink" }] });
    json!({ "op": "attach", "guest": guest })
}

/// Requests the status and the attachment of a guest as soon as the socket listens.
#[test]
fn early_requests_are_answered_when_it_is_ready() {
    // The test makes several attempts, because a machine may be ready before this process runs
    // again.
    let was_early = (0..20).any(|_| {
        let Some((machine, mut stream)) = early() else {
            return true;
        };
        let both = format!("{}\n{}\n", json!({ "op": "status" }), attach_late());
        stream.write_all(both.as_bytes()).unwrap();
        let mut answers = BufReader::new(stream).lines();
        let mut answer = || serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap();
        let (status, attached): (Value, Value) = (answer(), answer());
        assert_eq!(attached["domain"], "late", "{attached}");
        assert!(domains(&machine).contains(&"late".to_owned()));
        machine.end();
        status["up_took_ns"].is_null()
    });
    assert!(was_early, "the machine was always complete");
}

#[test]
fn early_clients_receive_the_failure_of_a_start() {
    let refused = (0..20).any(|_| {
        let Some((machine, mut stream)) = early() else {
            return true;
        };
        let attach = format!("{}\n", attach_late());
        stream.write_all(attach.as_bytes()).unwrap();
        let _other = send(&socket(&machine), b"{\"op\":\"down\"}\n");
        answer(stream)["error"] == "the machine was ended before it was ready"
    });
    assert!(refused, "the machine was always complete");
}

/// Returns the names of the machine's domains.
pub(crate) fn domains(machine: &Machine) -> Vec<String> {
    let status = machine.ask(&["status"]);
    let domains = status["domains"].as_array().unwrap().iter();
    domains
        .map(|d| d["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns the process ids of the core and its two helpers.
fn trusted(machine: &Machine) -> [u64; 3] {
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    let [netd, manager] = ["grantway-netd", "grantway-manager"]
        .map(|name| wait_for("no helper", || child_of(core, name)));
    [core, netd, manager]
}

/// Resources whose use must not grow if the number of guests is the same: descriptors of the
/// trusted processes, and foreign pages that the driver maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceUsage {
    descriptors: [usize; 3],
    pub(crate) mapped: u64,
}

impl ResourceUsage {
    pub(crate) fn now(machine: &Machine) -> Self {
        let audit = machine.ask(&["grants"]);
        assert_eq!(audit["leaked"], 0, "{audit}");
        let mut domains = audit["domains"].as_array().unwrap().iter();
        let driver = domains.find(|domain| domain["name"] == "driver").unwrap();
        Self {
            descriptors: trusted(machine).map(descriptors),
            mapped: driver["mapped"].as_u64().unwrap(),
        }
    }

    /// Returns the resources when they are stable. Connections are closed and pages returned only
    /// shortly after an answer.
    pub(crate) fn when_stable(machine: &Machine) -> Self {
        wait_for("the resources are never stable", || {
            let now = Self::now(machine);
            println!("in use: {now:?}");
            let stays = (0..3).all(|_| Self::now(machine) == now);
            stays.then_some(now)
        })
    }

    /// Returns whether the machine now uses no more resources than these.
    pub(crate) fn covers_now(&self, machine: &Machine) -> bool {
        let now = Self::now(machine);
        println!("in use: {now:?}");
        let mut open = now.descriptors.iter().zip(&self.descriptors);
        open.all(|(now, before)| now <= before) && now.mapped <= self.mapped
    }

    /// Waits until the machine uses no more resources than these.
    #[track_caller]
    pub(crate) fn wait_until_released(&self, machine: &Machine) {
        wait_until("some resources are still in use", || {
            self.covers_now(machine)
        });
    }
}

/// Sends a stream from one place to another until it is stopped. Counts and checks the received
/// bytes.
pub(crate) fn stream(
    machine: &Machine,
    places: (usize, usize),
    stop: &AtomicBool,
    carried: &AtomicU64,
) {
    stream_to(machine, places, 7000, stop, carried);
}

/// Like [`stream`], to this port.
pub(crate) fn stream_to(
    machine: &Machine,
    (from, to): (usize, usize),
    port: u16,
    stop: &AtomicBool,
    carried: &AtomicU64,
) {
    let bind = || TcpListener::bind((address(to), port)).unwrap();
    let listener = machine.places[to].0.enter(bind).unwrap();
    let connect = || TcpStream::connect((address(to), port)).unwrap();
    let mut sender = with_timeout(machine.places[from].0.enter(connect).unwrap());
    let mut receiver = accept(&listener);
    let block: Vec<u8> = (0..65_521u32).map(|n| (n % 251) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                sender.write_all(&block).unwrap();
            }
            drop(sender);
        });
        let mut got = vec![0; block.len()];
        while receiver.read_exact(&mut got).is_ok() {
            assert!(got == block, "the stream is damaged");
            carried.fetch_add(got.len() as u64, Ordering::Relaxed);
        }
    });
}

/// Kills the driver or the manager, and waits for the next one.
pub(crate) fn replace(machine: &Machine, victim: &str) {
    let before = machine.ask(&["status"])["domains"][0]["pid"].clone();
    match victim {
        "driver" => {
            kill(before.as_u64().unwrap());
            wait_until("no new driver runs", || {
                let now = machine.ask(&["status"])["domains"][0].clone();
                now["pid"] != before && !now["restarts"]["connected_ns"].is_null()
            });
        }
        helper => {
            let ([core, ..], name) = (trusted(machine), format!("grantway-{helper}"));
            let before = wait_for("no helper", || child_of(core, &name));
            kill(before);
            wait_until("no new helper runs", || {
                child_of(core, &name).is_some_and(|now| now != before)
            });
        }
    }
}

#[test]
fn namespaces_attached_to_an_empty_machine_connect() {
    let Some(machine) = empty(&["ping"]) else {
        return;
    };
    assert_eq!(domains(&machine), ["driver"]);
    for place in [0, 1] {
        let attached = attach(&machine, place);
        assert_eq!(attached["domain"], NAMES[place], "{attached}");
        assert_eq!(attached["macs"].as_array().unwrap().len(), 1);
    }
    reaches(&machine, 0, 1);
    let bind = |place: usize| {
        let bind = || UdpSocket::bind((address(place), 9000)).unwrap();
        machine.places[place].0.enter(bind).unwrap()
    };
    let (a, b) = (bind(0), bind(1));
    b.set_read_timeout(Some(TIMEOUT)).unwrap();
    a.send_to(b"one datagram", (address(1), 9000)).unwrap();
    let mut got = [0; 64];
    let (length, from) = b.recv_from(&mut got).unwrap();
    assert_eq!(&got[..length], b"one datagram");
    assert_eq!(from, a.local_addr().unwrap());

    // A third guest is attached and detached during their stream. It leaves nothing, and the stream
    // loses no byte.
    let (stop, carried) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let stops = StopOnDrop(&stop);
        let streaming = scope.spawn(|| stream(&machine, (0, 1), &stop, &carried));
        attach(&machine, 2);
        detach(&machine, 2);
        loses_interface(&machine, 2);
        wait_until("the stream has not started", || {
            carried.load(Ordering::Relaxed) > 0
        });
        let before = ResourceUsage::when_stable(&machine);
        for turn in 0..50 {
            let so_far = carried.load(Ordering::Relaxed);
            attach(&machine, 2);
            if turn % 10 == 0 {
                reaches(&machine, 2, 0);
            }
            detach(&machine, 2);
            loses_interface(&machine, 2);
            assert_eq!(domains(&machine), ["driver", "c0", "c1"]);
            wait_until("the stream is stalled", || {
                carried.load(Ordering::Relaxed) > so_far
            });
        }
        before.wait_until_released(&machine);
        drop(stops);
        streaming.join().unwrap();
    });

    // Restarted drivers and managers still know the guests.
    attach(&machine, 2);
    for victim in ["driver", "manager", "driver"] {
        replace(&machine, victim);
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            reaches(&machine, from, to);
        }
    }
    detach(&machine, 0);
    assert_eq!(domains(&machine), ["driver", "c1", "c2"]);
    reaches(&machine, 1, 2);
    machine.end();
}

#[test]
fn rejected_attaches_leave_nothing() {
    let Some(machine) = empty(&["ping"]) else {
        return;
    };
    attach(&machine, 0);
    let before = ResourceUsage::when_stable(&machine);
    let run = |args: &[&str]| {
        let run = machine.grantway(args);
        assert_eq!(run.status.code(), Some(2), "{args:?}: {run:?}");
        text(&run.stderr)
    };
    let here = machine.places[1].0.path().display().to_string();
    let long = "x".repeat(300);
    for (args, says) in [
        (
            vec!["attach", "g", "--netns", "no-such-namespace"],
            "no-such-namespace",
        ),
        (vec!["attach", "g", "--netns", "/etc/passwd"], "/etc/passwd"),
        (
            vec!["attach", "g", "--netns", "999999999"],
            "/proc/999999999/ns/net",
        ),
        (
            vec!["attach", "../g", "--netns", &here],
            "`name` is \"../g\"",
        ),
        (
            vec!["attach", "g\n", "--netns", &here],
            "`name` is \"g\\n\"",
        ),
        (vec!["attach", &long, "--netns", &here], "`name` is"),
        (
            vec!["attach", "c0", "--netns", &here],
            "guest c0 is attached already: detach it first",
        ),
        (
            vec!["attach", "driver", "--netns", &here],
            "reserved for the driver domain",
        ),
        (
            vec!["attach", "g", "--netns", &here, "--ip", "10.0.0.1/24"],
            "10.0.0.1",
        ),
        (
            vec![
                "attach",
                "g",
                "--netns",
                &here,
                "--mac",
                "02:67:01:00:00:00",
            ],
            "the MAC 02:67:01:00:00:00",
        ),
        (
            vec!["attach", "g", "--netns", &here, "--mtu", "3"],
            "`mtu` is 3",
        ),
        (
            vec!["attach", "g", "--netns", &here, "--ifname", "a/b"],
            "`ifname`",
        ),
        // netd detects that the loopback already exists.
        (
            vec!["attach", "g", "--netns", &here, "--ifname", "lo"],
            "lo",
        ),
        (vec!["detach", "g"], "no guest is named g"),
        (vec!["detach", "driver"], "no guest is named driver"),
    ] {
        let why = run(&args);
        assert!(why.contains(says), "{args:?}: {why}");
    }
    let guest = machine.folder.path().join("guest.toml");
    fs::write(
        &guest,
        "[[vif]]\nendpoint = \"pcap\"\nread = \"/etc/passwd\"\n",
    )
    .unwrap();
    let why = run(&["attach", "g", "--file", &guest.display().to_string()]);
    let says = "the file /etc/passwd cannot be read: the machine's description does not name it";
    assert!(why.contains(says), "{why}");
    assert_eq!(domains(&machine), ["driver", "c0"]);
    before.wait_until_released(&machine);
    attach(&machine, 1);
    reaches(&machine, 1, 0);
    machine.end();
}

/// Sends the documented requests directly to the socket, also for an endpoint without a TAP.
#[test]
fn guests_are_attached_and_detached_by_json() {
    let Some(machine) = empty(&[]) else {
        return;
    };
    let socket = machine.folder.path().join("run").join("grantway.sock");
    let ask = |line: Value| ask(&socket, &line);
    let stack = |name: &str, own: u8, apps: Value| {
        let vif = json!({
            "endpoint": "stack", "addresses": [format!("10.0.0.{own}/24")], "app": apps,
        });
        json!({ "op": "attach", "guest": { "name": name, "vif": [vif] } })
    };
    let pings = json!([{ "kind": "ping", "to": "10.0.0.1", "count": 1_000_000 }]);
    let attached = ask(stack("still", 1, json!([])));
    assert_eq!(attached["domain"], "still", "{attached}");
    let attached = ask(stack("pings", 2, pings));
    assert_eq!(attached["domain"], "pings", "{attached}");
    wait_until("no answer", || {
        let stat = machine.ask(&["stat", "still"]).to_string();
        let packets = machine.ask(&["stat", "driver"]);
        let traffic = &packets["driver"]["ports"]["vif.still-0"]["traffic"];
        !stat.is_empty() && traffic["in_packets"].as_u64().unwrap() > 2
    });
    let refused = ask(json!({ "op": "attach", "guest": { "name": "x", "vif": [{}] } }));
    assert!(
        refused["error"]
            .as_str()
            .unwrap()
            .contains("`endpoint` is missing"),
        "{refused}"
    );
    let refused = ask(json!({ "op": "attach" }));
    assert!(
        refused["error"]
            .as_str()
            .unwrap()
            .contains("no such request"),
        "{refused}"
    );
    for name in ["still", "pings"] {
        let detached = ask(json!({ "op": "detach", "domain": name }));
        assert_eq!(detached["domain"], name, "{detached}");
    }
    assert_eq!(domains(&machine), ["driver"]);
    machine.end();
}

/// Whenever the manager is killed, the guest must then be attached completely or not at all.
#[test]
fn a_dying_manager_leaves_no_partial_guest() {
    let Some(machine) = empty(&["ping"]) else {
        return;
    };
    attach(&machine, 0);
    attach(&machine, 1);
    detach(&machine, 1);
    let mut outcomes = [0, 0];
    for turn in 0..24 {
        let [core, _, manager] = trusted(&machine);
        let typed = typed(&machine, 1);
        let grantway = crate::machine::grantway();
        let mut command = std::process::Command::new(grantway);
        crate::machine::in_folder(command.args(&typed), machine.folder.path());
        let began = Instant::now();
        let mut coming = command.spawn().unwrap();
        // The delays make kills hit every step of an attach at normal speed, and of a slow attach.
        let slow = if turn % 4 == 0 { 10 } else { 1 };
        let delay = Duration::from_micros(400 * turn * slow);
        thread::sleep(delay.saturating_sub(began.elapsed()));
        kill(manager);
        wait_for_exit(&mut coming);
        wait_until("no new manager runs", || {
            child_of(core, "grantway-manager").is_some_and(|now| now != manager)
        });
        // Either the guest works, or it does not exist and its partial state is removed.
        let mut whole = false;
        wait_until("the guest is partially attached", || {
            let run = machine.grantway(&["status", "--json"]);
            let status: Value = serde_json::from_slice(&run.stdout).unwrap_or_default();
            let Some(domains) = status["domains"].as_array() else {
                return false;
            };
            let guest = domains.iter().find(|domain| domain["name"] == "c1");
            whole = guest.is_some_and(|guest| guest["state"] == "running");
            let is_detached = guest.is_none() && !has_interface(&machine, 1);
            is_detached || whole && answers_ping(&machine, 1, 0)
        });
        outcomes[usize::from(whole)] += 1;
        if whole {
            detach(&machine, 1);
        }
        loses_interface(&machine, 1);
    }
    println!("{outcomes:?}: not attached, completely attached");
    attach(&machine, 1);
    reaches(&machine, 1, 0);
    machine.end();
}

#[test]
fn a_guest_is_detached_with_its_namespace() {
    let Some(mut machine) = empty(&["ping"]) else {
        return;
    };
    attach(&machine, 0);
    attach(&machine, 1);
    let before = ResourceUsage::when_stable(&machine);
    attach(&machine, 2);
    reaches(&machine, 2, 0);
    let (namespace, _) = machine.places.pop().unwrap();
    drop(namespace);
    wait_until("the guest still exists", || {
        domains(&machine) == ["driver", "c0", "c1"]
    });
    before.wait_until_released(&machine);
    reaches(&machine, 0, 1);
    machine.end();
}

/// Attaches a second guest to a namespace that already has one.
#[test]
fn an_attached_namespace_gets_another_interface() {
    let Some(machine) = empty(&["ping"]) else {
        return;
    };
    let further = |place: usize| {
        let netns = machine.places[place].0.path().display().to_string();
        let (name, cidr) = (
            format!("{}-2", NAMES[place]),
            format!("10.1.0.{}/24", place + 1),
        );
        let words = [
            "attach", &name, "--netns", &netns, "--ifname", "more", "--ip", &cidr,
        ];
        machine.ask(&words);
    };
    for place in [0, 1] {
        attach(&machine, place);
        further(place);
    }
    let answers_ping = || {
        let ping = ["-c", "1", "-W", "1", "-I", "more", "10.1.0.2"];
        machine.run(0, "ping", &ping).status.success()
    };
    wait_until("no answer through the second interface", answers_ping);
    machine.ask(&["detach", "c0-2"]);
    reaches(&machine, 0, 1);
    assert_eq!(domains(&machine).len(), 4);
    further(0);
    wait_until("no answer through the third interface", answers_ping);
    machine.end();
}

/// The sandbox's network belongs to a separate user namespace.
#[test]
fn a_sandbox_is_attached_by_process_or_path() {
    require!(userns);
    let Some(machine) = empty(&["ping", "unshare"]) else {
        return;
    };
    attach(&machine, 0);
    let sandbox = NetnsProcess::new("-rn");
    let pid = sandbox.0.id();
    let network = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).unwrap();
    wait_until("the sandbox has no separate network", || {
        network(&pid.to_string()) != network("self")
    });
    for netns in [pid.to_string(), format!("/proc/{pid}/ns/net")] {
        machine.ask(&["attach", "box", "--netns", &netns, "--ip", "10.0.0.9/24"]);
        wait_until("no answer to a ping", || {
            let ping = ["-c", "1", "-W", "1", "10.0.0.9"];
            machine.run(0, "ping", &ping).status.success()
        });
        machine.ask(&["detach", "box"]);
        assert_eq!(domains(&machine), ["driver", "c0"]);
    }
    machine.end();
}
