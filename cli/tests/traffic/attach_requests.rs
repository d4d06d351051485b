//! A machine survives attach requests of every kind: concurrent requests for one name, partial
//! requests, thousands of connections, and namespaces that are removed before their guest is
//! attached.

use crate::attach::{ResourceUsage, address, attach, detach, domains, reaches};
use crate::machine::Machine;
use crate::reload::{answer, send};
use netdev::netns::Namespace;
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use testing::wait_until;

/// Returns a machine with one guest and a place for another, the machine's resource usage, and its
/// control socket.
///
/// No other test runs at the same time, because requests name namespaces by descriptors of this
/// process, whose numbers another test could reuse.
fn with_one() -> Option<(Machine, ResourceUsage, PathBuf)> {
    let machine = Machine::start_alone(&["ping"], &["c0", "c1"], |_| {
        "[driver]\nrestart_pause_ms = 20\n".to_owned()
    })?;
    attach(&machine, 0);
    // After the first attach, all resources exist that are created only once.
    attach(&machine, 1);
    detach(&machine, 1);
    let before = ResourceUsage::when_stable(&machine);
    let socket = machine.folder.path().join("run").join("grantway.sock");
    Some((machine, before, socket))
}

/// Returns a line that requests a guest in the namespace of a place, with that place's address.
fn request(machine: &Machine, name: &str, place: usize) -> String {
    let (namespace, ifname) = &machine.places[place];
    let vif = json!({
        "endpoint": "tap", "netns": namespace.path(), "ifname": ifname,
        "addresses": [format!("{}/24", address(place))],
    });
    let guest = json!({ "name": name, "vif": [vif] });
    format!("{}\n", json!({ "op": "attach", "guest": guest }))
}

/// Waits until the machine has only the guest `c0` again, and uses no more resources than in
/// `before`.
fn wait_until_as_before(machine: &Machine, before: &ResourceUsage) {
    wait_until("some resources are still in use", || {
        domains(machine) == ["driver", "c0"] && before.covers_now(machine)
    });
}

#[test]
fn one_of_many_attaches_of_one_name_succeeds() {
    let Some((machine, before, socket)) = with_one() else {
        return;
    };
    for _ in 0..5 {
        let line = request(&machine, "c1", 1);
        // All requests are sent before any answer is read.
        let asked: Vec<UnixStream> = (0..8).map(|_| send(&socket, line.as_bytes())).collect();
        let answers: Vec<Value> = asked.into_iter().map(answer).collect();
        let (done, refused): (Vec<&Value>, Vec<&Value>) =
            answers.iter().partition(|answer| answer["domain"] == "c1");
        assert_eq!(done.len(), 1, "{answers:?}");
        for refused in refused {
            let why = refused["error"].as_str().unwrap();
            assert!(why.starts_with("guest c1 is "), "{why}");
        }
        assert_eq!(domains(&machine), ["driver", "c0", "c1"]);
        reaches(&machine, 1, 0);
        let line = format!("{}\n", json!({ "op": "detach", "domain": "c1" }));
        let asked: Vec<UnixStream> = (0..4).map(|_| send(&socket, line.as_bytes())).collect();
        let answers: Vec<Value> = asked.into_iter().map(answer).collect();
        let done = answers.iter().filter(|answer| answer["domain"] == "c1");
        assert_eq!(done.count(), 1, "{answers:?}");
        for answer in answers.iter().filter(|answer| answer["domain"] != "c1") {
            let why = answer["error"].as_str().unwrap();
            let is_detaching = why == "guest c1 is being detached by another request";
            assert!(is_detaching || why == "no guest is named c1", "{why}");
        }
        wait_until_as_before(&machine, &before);
    }
    machine.end();
}

#[test]
fn a_disconnected_client_leaves_no_partial_guest() {
    let Some((machine, before, socket)) = with_one() else {
        return;
    };
    let line = request(&machine, "c1", 1);
    // An incomplete line requests nothing.
    for length in (0..line.len()).step_by(17) {
        drop(send(&socket, &line.as_bytes()[..length]));
    }
    wait_until_as_before(&machine, &before);
    // A complete line requests the guest, even if the client does not wait for the answer.
    drop(send(&socket, line.as_bytes()));
    wait_until("the guest is not attached", || {
        domains(&machine) == ["driver", "c0", "c1"]
    });
    reaches(&machine, 1, 0);
    detach(&machine, 1);
    wait_until_as_before(&machine, &before);
    machine.end();
}

/// More clients than the limit occupy all connections, so that others wait.
#[test]
fn partial_requests_do_not_delay_other_clients() {
    let Some((machine, before, socket)) = with_one() else {
        return;
    };
    let line = request(&machine, "c1", 1);
    let half = &line.as_bytes()[..line.len() / 2];
    let held: Vec<UnixStream> = (0..40).map(|_| send(&socket, half)).collect();
    let began = Instant::now();
    assert_eq!(domains(&machine), ["driver", "c0"]);
    attach(&machine, 1);
    reaches(&machine, 1, 0);
    detach(&machine, 1);
    // Without a free connection these commands would wait for a minute.
    assert!(began.elapsed() < Duration::from_secs(30), "{began:?}");
    drop(held);
    wait_until_as_before(&machine, &before);
    machine.end();
}

#[test]
fn ten_thousand_connections_are_survived() {
    let Some((machine, before, socket)) = with_one() else {
        return;
    };
    let junk: [&[u8]; 5] = [
        b"",
        b"{\"op\":\"attach\",\"guest\":{\"name\":\"x\"",
        b"\xff\xfe\x00\n",
        b"{\"op\":\"attach\",\"guest\":[[[[[[\n",
        b"{\"op\":\"detach\",\"domain\":\"../../etc\"}\n",
    ];
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for number in 0..2500 {
                    let mut stream = UnixStream::connect(&socket).unwrap();
                    // The manager may already have disconnected.
                    let _ = stream.write_all(junk[number % junk.len()]);
                }
            });
        }
    });
    wait_until_as_before(&machine, &before);
    attach(&machine, 1);
    reaches(&machine, 1, 0);
    detach(&machine, 1);
    wait_until_as_before(&machine, &before);
    machine.end();
}

#[test]
fn removing_the_namespace_undoes_an_attach() {
    let Some((mut machine, before, socket)) = with_one() else {
        return;
    };
    let mut outcomes = [0, 0];
    for turn in 0..16 {
        let asked = send(&socket, request(&machine, "c1", 1).as_bytes());
        // The delays hit every step of an attach at normal speed, and the time after it.
        thread::sleep(Duration::from_millis(turn));
        machine.places[1].0 = Namespace::new().unwrap();
        let answer = answer(asked);
        let is_attached = answer["domain"] == "c1";
        assert!(is_attached || answer["error"].is_string(), "{answer}");
        outcomes[usize::from(is_attached)] += 1;
        wait_until_as_before(&machine, &before);
    }
    println!("{outcomes:?}: never attached, attached for a moment");
    attach(&machine, 1);
    reaches(&machine, 1, 0);
    machine.end();
}
