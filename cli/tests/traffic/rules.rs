//! Rules of attached guests that change while streams run.

use crate::attach::{NAMES, address, attach, empty, reaches, replace};
use crate::machine::{Machine, text};
use crate::reload::{ask, socket};
use serde_json::{Value, json};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use testing::{accept, wait_for, wait_until, with_timeout};

const PORT: u16 = 7000;

/// A server in the namespace of the second guest.
struct Server(TcpListener);

impl Server {
    fn new(machine: &Machine) -> Self {
        let bind = || TcpListener::bind((address(1), PORT)).unwrap();
        Self(machine.places[1].0.enter(bind).unwrap())
    }

    /// Connects from the first guest. Returns both ends.
    fn connected(&self, machine: &Machine) -> [TcpStream; 2] {
        wait_for("no connection", || self.connect(machine))
    }

    /// Connects from the first guest. Returns both ends, or `None` without an answer within a
    /// second.
    fn connect(&self, machine: &Machine) -> Option<[TcpStream; 2]> {
        let to: SocketAddr = format!("{}:{PORT}", address(1)).parse().unwrap();
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(1));
        match machine.places[0].0.enter(connect).unwrap() {
            Ok(stream) => {
                // An earlier connection was complete only after its client had given up.
                let own = stream.local_addr().unwrap();
                let is_other_end = |it: &TcpStream| it.peer_addr().is_ok_and(|peer| peer == own);
                let accepted = wait_for("no other end", || {
                    Some(accept(&self.0)).filter(is_other_end)
                });
                Some([with_timeout(stream), accepted])
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
                None
            }
        }
    }
}

/// Sends a byte in each direction.
fn talks([a, b]: &mut [TcpStream; 2]) {
    a.write_all(b"x").unwrap();
    b.read_exact(&mut [0; 1]).unwrap();
    b.write_all(b"y").unwrap();
    a.read_exact(&mut [0; 1]).unwrap();
}

/// Replaces the rules of the second guest.
fn set(machine: &Machine, file: &str, rules: &str) -> Value {
    let path = machine.folder.path().join(file);
    fs::write(&path, rules).unwrap();
    machine.ask(&["rules", NAMES[1], "--file", &path.display().to_string()])
}

const OPEN: &str = "[[vif]]\nfirewall = \"stateful\"\ninbound = \"allow\"\n";
const CLOSED: &str = r#"{"vif": [{"firewall": "stateful", "rule": [
    {"name": "ping", "action": "allow", "direction": "to-guest", "protocol": "icmp"}]}]}"#;

/// Known streams continue, and new ones are denied after the request is answered. The death of the
/// driver domain or the manager does not restore the previous rules.
#[test]
fn rules_change_under_streams_and_survive_restarts() {
    let Some(machine) = empty(&["ping"]) else {
        return;
    };
    attach(&machine, 0);
    attach(&machine, 1);
    reaches(&machine, 0, 1);
    let server = Server::new(&machine);
    let changed = set(&machine, "open.toml", OPEN);
    assert_eq!(changed["domain"], NAMES[1], "{changed}");
    assert_eq!(changed["warning"], Value::Null, "{changed}");
    let mut known = server.connected(&machine);
    talks(&mut known);
    set(&machine, "closed.json", CLOSED);
    talks(&mut known);
    assert!(server.connect(&machine).is_none());
    for victim in ["driver", "manager", "driver"] {
        replace(&machine, victim);
        reaches(&machine, 0, 1);
        talks(&mut known);
        assert!(server.connect(&machine).is_none(), "after {victim}");
    }
    let stat = machine.ask(&["stat", "driver"]);
    let rules = &stat["driver"]["ports"]["vif.c1-0"]["rules"];
    assert!(rules["ping"]["frames"].as_u64() > Some(0), "{rules}");

    // A section without keys removes all rules. An invalid request changes nothing.
    let refused = ask(
        &socket(&machine),
        &json!({ "op": "rules", "guest": { "name": NAMES[1], "vif": [{ "mtu": 1400 }] } }),
    );
    let why = refused["error"].as_str().unwrap();
    assert!(why.contains("`mtu` cannot change"), "{why}");
    assert!(server.connect(&machine).is_none());
    set(&machine, "none.toml", "[[vif]]\n");
    talks(&mut server.connected(&machine));
    talks(&mut known);
    machine.end();
}

/// Rules that the machine cannot apply leave the previous rules in force, also after restarts.
#[test]
fn rejected_rules_leave_the_previous_ones() {
    let machine = Machine::start(&["ping"], &NAMES, |_| {
        "[driver]\nrestart_pause_ms = 20\nflow_tables = 0\n".to_owned()
    });
    let Some(machine) = machine else { return };
    attach(&machine, 0);
    attach(&machine, 1);
    reaches(&machine, 0, 1);
    let server = Server::new(&machine);
    set(
        &machine,
        "deny.toml",
        "[[vif]]\n[[vif.rule]]\naction = \"deny\"\nprotocol = \"tcp\"\n",
    );
    let file = machine.folder.path().join("open.toml");
    fs::write(&file, OPEN).unwrap();
    let file = file.display().to_string();
    let refused = machine.grantway(&["rules", NAMES[1], "--file", &file]);
    let why = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{why}");
    assert!(why.contains("flow_tables"), "{why}");
    for victim in ["manager", "driver"] {
        replace(&machine, victim);
        reaches(&machine, 0, 1);
        assert!(server.connect(&machine).is_none(), "after {victim}");
    }
    machine.end();
}

/// A guest of the file keeps the rules of the file, until a reload changes them.
#[test]
fn guests_of_the_file_are_refused() {
    let Some(machine) = crate::reload::start(2) else {
        return;
    };
    let file = machine.folder.path().join("open.toml");
    fs::write(&file, OPEN).unwrap();
    let file = file.display().to_string();
    for (guest, expected) in [
        (NAMES[1], "`grantway reload`"),
        ("x", "no guest is named x"),
    ] {
        let refused = machine.grantway(&["rules", guest, "--file", &file]);
        let why = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{why}");
        assert!(why.contains(expected), "{why}");
    }
    wait_until("no answer to a ping", || {
        crate::attach::answers_ping(&machine, 0, 1)
    });
    machine.end();
}
