//! A file in a guest's pages is sent in place over a real path. The guest grants the pages when
//! frames refer to them, and the driver domain reads them in place.

use crate::machine::Machine;
use crate::processes::{kill, pid};
use serde_json::Value;
use std::io::Read;
use std::net::TcpListener;
use testing::{accept, wait_until};

/// Size of the file, KB. It has four times as many pages as may be granted at the same time.
const FILE_KB: usize = 8192;
/// The number of passes over the whole file.
const ROUNDS: usize = 2;
/// The factor that determines the file's contents: word n is n times this number.
const WORD: u64 = 0x9e37_79b9_7f4a_7c15;

fn start(grants: &str) -> Option<Machine> {
    Machine::start(&[], &["wire"], |namespaces| {
        let netns = &namespaces[0];
        format!(
            "[driver]\ngrants = \"{grants}\"\nrestart_pause_ms = 10\n\
             [[nic]]\nname = \"wire\"\nkind = \"tap\"\nnetns = \"{netns}\"\n\
             addresses = [\"10.0.0.1/24\"]\n\
             [[guest]]\nname = \"g\"\n[[guest.vif]]\nendpoint = \"stack\"\n\
             addresses = [\"10.0.0.2/24\"]\n[[guest.vif.app]]\nkind = \"tcp-source\"\n\
             to = \"10.0.0.1:5001\"\nseconds = 100000\nfile_kb = {FILE_KB}\n"
        )
    })
}

/// Listens on the wire.
fn listener(machine: &Machine) -> TcpListener {
    let (wire, _) = &machine.places[0];
    let listen = || TcpListener::bind("10.0.0.1:5001").unwrap();
    wire.enter(listen).unwrap()
}

/// Accepts a connection and checks every byte of this many passes over the file.
fn check_passes(listener: &TcpListener, rounds: usize) {
    let mut stream = accept(listener);
    let mut room = vec![0; 64 << 10];
    for _ in 0..rounds {
        let mut at = 0;
        while at < FILE_KB << 10 {
            stream.read_exact(&mut room).unwrap();
            for word in room.chunks(8) {
                let wanted = (at as u64 / 8).wrapping_mul(WORD);
                assert_eq!(word, wanted.to_le_bytes(), "byte {at}");
                at += 8;
            }
        }
    }
}

/// Returns the guest's counters of its file's pages, and the number of its pages that the monitor
/// counts as granted, when both are stable.
fn pages(machine: &Machine) -> (Value, u64) {
    let file = || machine.ask(&["stat", "g"])["g"]["vifs"]["0"]["file"].clone();
    let mut seen = (Value::Null, 0);
    wait_until("the counters are not stable", || {
        let before = file();
        let audit = machine.ask(&["grants"]);
        assert_eq!(audit["leaked"], 0, "{audit}");
        let mut domains = audit["domains"].as_array().unwrap().iter();
        let guest = domains.find(|domain| domain["name"] == "g").unwrap();
        seen = (before, guest["granted"].as_u64().unwrap());
        file() == seen.0
    });
    seen
}

fn arrives_under(grants: &str) {
    let Some(machine) = start(grants) else {
        return;
    };
    let connected = || machine.ask(&["stat", "g"])["g"]["vifs"]["0"]["state"] == "connected";
    wait_until("the guest does not connect", connected);
    let (none, of_pool) = pages(&machine);
    assert_eq!(
        (&none["granted"], &none["entries"]),
        (&0.into(), &512.into())
    );
    check_passes(&listener(&machine), ROUNDS);
    let (file, granted) = pages(&machine);
    let count = |name: &str| file[name].as_u64().unwrap();
    assert_eq!(granted - of_pool, count("granted"), "{file}");
    assert!(count("granted") <= 512, "{file}");
    // At most a quarter of the 2048 pages may be granted, so the others were revoked.
    assert!(count("granted_anew") >= 2048, "{file}");
    assert_eq!(count("revoked"), count("granted_anew") - count("granted"));
    assert_eq!((count("copied"), count("refused")), (0, 0), "{file}");
    // The next driver domain has no grants of these pages, and receives them on demand.
    let driver = pid(&machine, "driver");
    assert!(kill(driver));
    wait_until("no new driver runs", || {
        let status = machine.ask(&["status"]);
        let mut domains = status["domains"].as_array().unwrap().iter();
        domains.any(|d| d["name"] == "driver" && d["alive"] == true && d["pid"] != driver)
    });
    wait_until("the guest does not reconnect", || {
        connected() && pages(&machine).0["granted"] == 0
    });
    let (file, granted) = pages(&machine);
    assert_eq!((&file["granted"], granted), (&0.into(), of_pool));
    check_passes(&listener(&machine), 1);
    machine.end();
}

#[test]
fn a_file_is_sent_in_place_by_persistent_grants() {
    arrives_under("counted");
}

#[test]
fn a_file_is_sent_in_place_by_mapped_grants() {
    arrives_under("map");
}
