//! Attacks by clients of the control socket on each other and on the machine.

use crate::test_dir::{SIM, TestDir, UNPRIVILEGED_UID, wait};
use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testing::{StopOnDrop, TIMEOUT, group_id, require};

/// Timeout for an answer. It is far longer than an answer takes on a busy machine, and far shorter
/// than delays that hostile clients could cause.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// Changes the user and group of this thread only.
fn become_user(user: u32, group: u32) {
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    set_thread_groups(&[]).unwrap();
    set_thread_res_gid(group, group, group).unwrap();
    set_thread_res_uid(user, user, user).unwrap();
}

/// A client whose connection stays open.
struct OpenClient(BufReader<UnixStream>);

impl OpenClient {
    fn new(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, request: &Value) {
        let line = format!("{request}\n");
        self.0.get_mut().write_all(line.as_bytes()).unwrap();
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn request(&mut self, request: &Value) -> Value {
        self.send(request);
        self.answer()
    }
}

/// Starts a machine that two groups may use, in the background.
fn up(place: &TestDir) {
    place.open_to_all();
    let groups = "[machine]\nlook_group = \"games\"\nchange_group = \"adm\"\n";
    let file = place.file("m.toml", &format!("{groups}{SIM}"));
    let up = place.run(&["up", &file, "--detach"]);
    assert!(up.ok(), "{up:?}");
}

fn restarts(status: &Value, name: &str) -> Option<u64> {
    let mut domains = status["domains"].as_array()?.iter();
    let domain = domains.find(|domain| domain["name"] == name)?;
    (domain["state"] == "running").then(|| domain["restarts"]["count"].as_u64())?
}

fn pid(status: &Value, name: &str) -> i32 {
    let mut domains = status["domains"].as_array().unwrap().iter();
    let domain = domains.find(|domain| domain["name"] == name).unwrap();
    domain["pid"].as_i64().unwrap() as i32
}

#[test]
fn outsiders_cannot_connect() {
    require!(root);
    let place = TestDir::with_machine();
    up(&place);
    let socket = place.folder().join("run/grantway.sock");
    let connects = |user, group| {
        let socket = socket.clone();
        let connecting = thread::spawn(move || {
            become_user(user, group);
            UnixStream::connect(socket).map(drop)
        });
        connecting.join().unwrap()
    };
    let refused = connects(UNPRIVILEGED_UID, UNPRIVILEGED_UID).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    connects(UNPRIVILEGED_UID, group_id("games")).unwrap();
    connects(UNPRIVILEGED_UID, group_id("adm")).unwrap();
    let down = place.run(&["down"]);
    assert!(down.ok(), "{down:?}");
}

#[test]
fn connections_of_outsiders_do_not_delay_a_restart() {
    require!(root);
    let place = TestDir::with_machine();
    up(&place);
    let socket = place.folder().join("run/grantway.sock");
    // These modes simulate a file system without access control lists.
    for (path, mode) in [("run", 0o711), ("run/grantway.sock", 0o666)] {
        fs::set_permissions(place.path(path), Permissions::from_mode(mode)).unwrap();
    }
    let mut owner = OpenClient::new(&socket);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stops = StopOnDrop(&stop);
        for _ in 0..4 {
            scope.spawn(|| {
                become_user(UNPRIVILEGED_UID, UNPRIVILEGED_UID);
                while !stop.load(Ordering::Relaxed) {
                    drop(UnixStream::connect(&socket));
                }
            });
        }
        let status = json!({ "op": "status" });
        for kill in 1..=3 {
            let before = owner.request(&status);
            let driver = rustix::process::Pid::from_raw(pid(&before, "driver")).unwrap();
            rustix::process::kill_process(driver, rustix::process::Signal::KILL).unwrap();
            let killed = Instant::now();
            wait(|| {
                let asked = Instant::now();
                let now = owner.request(&status);
                assert!(asked.elapsed() < ANSWER_DEADLINE, "{:?}", asked.elapsed());
                (restarts(&now, "driver") == Some(kill)).then_some(())
            });
            assert!(
                killed.elapsed() < 2 * ANSWER_DEADLINE,
                "{:?}",
                killed.elapsed()
            );
        }
        drop(stops);
    });
    let down = place.run(&["down"]);
    assert!(down.ok(), "{down:?}");
}

#[test]
fn partial_requests_do_not_delay_other_users() {
    require!(root);
    let place = TestDir::with_machine();
    up(&place);
    let socket = place.folder().join("run/grantway.sock");
    let connect = {
        let (socket, group) = (socket.clone(), group_id("games"));
        thread::spawn(move || {
            become_user(UNPRIVILEGED_UID, group);
            let half = |_| {
                let mut stream = UnixStream::connect(&socket).unwrap();
                stream.write_all(b"{\"op\":").unwrap();
                stream
            };
            (0..200).map(half).collect::<Vec<_>>()
        })
    };
    let half = connect.join().unwrap();
    for _ in 0..5 {
        let began = Instant::now();
        let status = OpenClient::new(&socket).request(&json!({ "op": "status" }));
        assert!(status["domains"].is_array(), "{status}");
        assert!(began.elapsed() < ANSWER_DEADLINE, "{:?}", began.elapsed());
    }
    drop(half);
    let down = place.run(&["down"]);
    assert!(down.ok(), "{down:?}");
}

#[test]
fn pending_requests_do_not_block_root() {
    require!(root);
    let place = TestDir::with_machine();
    up(&place);
    let socket = place.folder().join("run/grantway.sock");
    let changing = {
        let (socket, group) = (socket.clone(), group_id("adm"));
        thread::spawn(move || {
            become_user(UNPRIVILEGED_UID, group);
            // The domain cannot restart, so a request to restart it is pending until its deadline
            // of 20 s.
            let mut all: Vec<OpenClient> = (0..40).map(|_| OpenClient::new(&socket)).collect();
            for asks in &mut all {
                // The manager has disconnected rejected clients.
                let line = b"{\"op\":\"restart\",\"domain\":\"web\"}\n";
                let _ = asks.0.get_mut().write_all(line);
            }
            all
        })
    };
    fs::remove_file(place.path("guest")).unwrap();
    let all = changing.join().unwrap();
    let began = Instant::now();
    let status = OpenClient::new(&socket).request(&json!({ "op": "status" }));
    assert!(status["domains"].is_array(), "{status}");
    assert!(began.elapsed() < ANSWER_DEADLINE, "{:?}", began.elapsed());
    drop(all);
    let down = place.run(&["down"]);
    assert!(down.ok(), "{down:?}");
}

fn guest(name: &str) -> Value {
    json!({ "name": name, "vif": [{ "endpoint": "stack", "network": true }] })
}

/// Sends requests from different clients at the same time. Returns the answers.
fn send_concurrently(place: &TestDir, requests: &[Value]) -> Vec<Value> {
    let socket = place.folder().join("run/grantway.sock");
    let mut clients: Vec<OpenClient> = requests.iter().map(|_| OpenClient::new(&socket)).collect();
    for (client, request) in clients.iter_mut().zip(requests) {
        client.send(request);
    }
    clients.iter_mut().map(OpenClient::answer).collect()
}

fn with_a_guest() -> (TestDir, testing::Running) {
    let place = TestDir::with_machine();
    let file = place.file("m.toml", SIM);
    let running = place.start(&["up", &file]);
    place.wait_for_output(&running, "is up");
    let attach = json!({ "op": "attach", "guest": guest("a") });
    let attached = send_concurrently(&place, &[attach]).remove(0);
    assert_eq!(attached["domain"], "a", "{attached}");
    (place, running)
}

#[test]
fn one_of_three_requests_detaches_a_guest() {
    let (place, running) = with_a_guest();
    let detach = json!({ "op": "detach", "domain": "a" });
    let answers = send_concurrently(&place, &[detach.clone(), detach.clone(), detach]);
    let (done, refused): (Vec<&Value>, Vec<&Value>) =
        answers.iter().partition(|answer| answer["domain"] == "a");
    assert_eq!((done.len(), refused.len()), (1, 2), "{answers:?}");
    for answer in refused {
        let why = answer["error"].as_str().unwrap();
        let known = [
            "no guest is named a",
            "guest a is being detached by another request",
        ];
        assert!(known.contains(&why), "{why}");
    }
    assert_eq!(running.terminate().code, 0);
}

#[test]
fn a_guest_replaces_one_that_is_being_detached() {
    let (place, running) = with_a_guest();
    let attach = json!({ "op": "attach", "guest": guest("a") });
    let again = send_concurrently(&place, std::slice::from_ref(&attach)).remove(0);
    let message = "guest a is attached already: detach it first (`grantway detach a`)";
    assert_eq!(again["error"], message);
    let detach = json!({ "op": "detach", "domain": "a" });
    for answer in send_concurrently(&place, &[detach, attach]) {
        assert_eq!(answer["domain"], "a", "{answer}");
    }
    // Errors describe the address by its guest, not by a section of a file.
    let mut other = guest("b");
    other["vif"] = json!([{ "endpoint": "stack", "addresses": ["10.0.0.2/24"] }]);
    let refused = send_concurrently(&place, &[json!({ "op": "attach", "guest": other })]).remove(0);
    let why = refused["error"].as_str().unwrap();
    assert!(why.contains("guest web") && !why.contains("[["), "{why}");
    assert_eq!(running.terminate().code, 0);
}

#[test]
fn a_changed_nic_causes_one_restart() {
    let place = TestDir::with_machine();
    let file = place.file("m.toml", SIM);
    let running = place.start(&["up", &file]);
    place.wait_for_output(&running, "is up");
    for (number, address) in [(1, "10.0.0.7/24"), (2, "10.0.0.8/24")] {
        place.file("m.toml", &SIM.replace("10.0.0.1/24", address));
        let reload = place.run(&["reload", &file]);
        assert!(reload.ok(), "{reload:?}");
        let status = place.run(&["status", "--json"]);
        let status: Value = serde_json::from_str(&status.out).unwrap();
        assert_eq!(restarts(&status, "driver"), Some(number), "{status}");
        let connections = status["connections"].as_array().unwrap();
        let is_up = |connection: &Value| {
            let ends = ["backend_state", "frontend_state"].map(|end| &connection[end]);
            ends.iter().all(|end| **end == "connected")
        };
        assert!(
            !connections.is_empty() && connections.iter().all(is_up),
            "{status}"
        );
    }
    assert_eq!(running.terminate().code, 0);
}
