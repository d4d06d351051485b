//! Applies edited files to a running machine.

use crate::attach::{
    NAMES, ResourceUsage, address, answers_ping, attach, detach, domains, reaches, replace, stream,
};
use crate::machine::{Machine, text};
use crate::processes::pid;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use testing::{StopOnDrop, TIMEOUT, wait_until};

const HEAD: &str = "[driver]\nrestart_pause_ms = 20\n";

/// Returns the section of the guest in a namespace, with that namespace's usual address.
fn guest(place: usize, netns: &str, more: &str) -> String {
    let (name, address) = (NAMES[place], address(place));
    format!(
        "[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"tap\"\nnetns = \"{netns}\"\n\
         ifname = \"{name}\"\naddresses = [\"{address}/24\"]\n{more}\n"
    )
}

/// Returns a machine with guests in the first of three namespaces.
pub(crate) fn start(guests: usize) -> Option<Machine> {
    Machine::start(&["ping", "ip"], &NAMES, |paths| {
        let guests = paths.iter().take(guests).enumerate();
        let guests = guests.map(|(place, path)| guest(place, path, ""));
        HEAD.to_owned() + &guests.collect::<String>()
    })
}

/// Returns a file with these guests.
pub(crate) fn file_of(machine: &Machine, guests: &[(usize, &str)]) -> String {
    let places = machine.places.iter();
    let paths: Vec<String> = places
        .map(|(of, _)| of.path().display().to_string())
        .collect();
    file_of_paths(&paths, guests)
}

/// Returns the file with the paths of all namespaces.
pub(crate) fn file_of_paths(paths: &[String], guests: &[(usize, &str)]) -> String {
    let section = |(place, more): &(usize, &str)| guest(*place, &paths[*place], more);
    HEAD.to_owned() + &guests.iter().map(section).collect::<String>()
}

/// Writes the machine's file with this text. Returns the path.
pub(crate) fn write(machine: &Machine, text: &str) -> String {
    let file = machine.folder.path().join("machine.toml");
    fs::write(&file, text).unwrap();
    file.display().to_string()
}

/// Reloads a file. Returns the steps as `+NAME`, `-NAME` and `=NAME`, all of which were executed,
/// or none in a dry run.
fn reload(machine: &Machine, file: &str, dry: &[&str]) -> String {
    let outcome = machine.ask(&[&["reload", file][..], dry].concat());
    let steps = outcome["steps"].as_array().unwrap();
    let done = if dry.is_empty() { steps.len() } else { 0 };
    assert_eq!(outcome["done"], done, "{outcome}");
    assert_eq!(outcome["failed"], Value::Null);
    short(steps)
}

fn short(steps: &[Value]) -> String {
    let sign = |step: &Value| match step["step"].as_str() {
        Some("detach") => "-",
        Some("attach") => "+",
        _ => "=",
    };
    let steps = steps
        .iter()
        .map(|step| format!("{}{}", sign(step), step["domain"]));
    steps.collect::<Vec<_>>().join(" ").replace('"', "")
}

/// Sends a documented request to the control socket.
pub(crate) fn ask(socket: &Path, request: &Value) -> Value {
    answer(send(socket, format!("{request}\n").as_bytes()))
}

pub(crate) fn send(socket: &Path, bytes: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// Returns the next line from a connection.
pub(crate) fn answer(stream: UnixStream) -> Value {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

pub(crate) fn socket(machine: &Machine) -> PathBuf {
    machine.folder.path().join("run").join("grantway.sock")
}

pub(crate) fn request(text: &str) -> Value {
    json!({ "op": "reload", "files": [{ "name": "f", "text": text }] })
}

/// Guests from the start stay, with their stream. A third guest is added by a fragment, changed,
/// and removed.
#[test]
fn only_changes_of_the_file_are_applied() {
    let Some(machine) = start(2) else {
        return;
    };
    let both = [(0, ""), (1, "")];
    let file = write(&machine, &file_of(&machine, &both));
    reaches(&machine, 0, 1);
    let before = ResourceUsage::when_stable(&machine);
    let (stop, carried) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let stops = StopOnDrop(&stop);
        let streaming = scope.spawn(|| stream(&machine, (0, 1), &stop, &carried));
        let said = machine.grantway(&["reload", &file]);
        assert_eq!(text(&said.stdout), "nothing to change\n", "{said:?}");
        fs::create_dir(format!("{file}.d")).unwrap();
        let fragment = |more: &str| {
            let text = file_of(&machine, &[(2, more)]);
            fs::write(format!("{file}.d/10-third.toml"), text).unwrap();
        };
        fragment("");
        assert_eq!(reload(&machine, &file, &["--dry-run"]), "+c2");
        assert_eq!(domains(&machine), ["driver", "c0", "c1"]);
        for steps in ["+c2", "", ""] {
            assert_eq!(reload(&machine, &file, &[]), steps);
            assert_eq!(domains(&machine), ["driver", "c0", "c1", "c2"]);
        }
        reaches(&machine, 2, 0);

        fragment("mtu = 1400");
        let said = machine.grantway(&["reload", &file, "--dry-run"]);
        assert_eq!(
            text(&said.stdout),
            "detach c2: changed: vif 1: `mtu`: unset → 1400\n\
             attach c2 again\n"
        );
        let link = || text(&machine.run(2, "ip", &["link", "show", "c2"]).stdout);
        let (mac, had) = (link().lines().nth(1).unwrap().to_owned(), link());
        assert!(had.contains("mtu 1500"), "{had}");
        assert_eq!(reload(&machine, &file, &[]), "-c2 +c2");
        // The guest keeps its MAC, because its neighbours know it.
        assert!(
            link().contains("mtu 1400") && link().contains(&mac),
            "{}",
            link()
        );
        reaches(&machine, 2, 1);

        // The next manager still knows whether the guest belongs to the file.
        replace(&machine, "manager");
        assert_eq!(reload(&machine, &file, &[]), "");
        fs::remove_dir_all(format!("{file}.d")).unwrap();
        assert_eq!(reload(&machine, &file, &[]), "-c2");
        let so_far = carried.load(Ordering::Relaxed);
        wait_until("the stream is stalled", || {
            carried.load(Ordering::Relaxed) > so_far
        });
        drop(stops);
        streaming.join().unwrap();
    });
    wait_until("some resources are still in use", || {
        ResourceUsage::now(&machine).mapped <= before.mapped
    });
    machine.end();
}

#[test]
fn attached_guests_stay_and_addresses_move() {
    let Some(machine) = start(1) else {
        return;
    };
    let own = file_of(&machine, &[(0, "")]);
    let file = write(&machine, &own);
    attach(&machine, 1);
    let outcome = machine.ask(&["reload", &file]);
    assert_eq!(outcome["stays"], json!(["c1"]));
    assert_eq!(domains(&machine), ["driver", "c0", "c1"]);
    // The file names the attached guest unchanged, so it belongs to the file from then on.
    let both = file_of(&machine, &[(0, ""), (1, "")]);
    assert_eq!(reload(&machine, &write(&machine, &both), &[]), "");
    reaches(&machine, 0, 1);
    assert_eq!(reload(&machine, &write(&machine, &own), &[]), "-c1");
    // A reload attaches the detached guest again.
    detach(&machine, 0);
    assert_eq!(reload(&machine, &write(&machine, &both), &[]), "+c0 +c1");
    reaches(&machine, 0, 1);
    let [first, second] = [0, 1].map(|place| format!("{}/24", address(place)));
    let swapped = both
        .replace(&first, "FIRST")
        .replace(&second, &first)
        .replace("FIRST", &second);
    assert_eq!(
        reload(&machine, &write(&machine, &swapped), &[]),
        "-c0 -c1 +c1 +c0"
    );
    // The first place now has the address of the second one, and the third place reaches it.
    wait_until("no answer to a ping", || {
        answers_ping(&machine, 1, 1) && answers_ping(&machine, 0, 0)
    });
    let shown = text(&machine.run(0, "ip", &["addr", "show", "c0"]).stdout);
    assert!(shown.contains(&second), "{shown}");
    machine.end();
}

#[test]
fn a_file_that_cannot_be_applied_changes_nothing() {
    let Some(machine) = start(2) else {
        return;
    };
    let own = file_of(&machine, &[(0, ""), (1, "")]);
    let more = file_of(&machine, &[(0, ""), (2, "")]);
    reaches(&machine, 0, 1);
    let before = ResourceUsage::when_stable(&machine);
    let wire =
        "[[nic]]\nname = \"w\"\nkind = \"xdp\"\nqueues = \"vmq\"\naddresses = [\"10.9.0.1/24\"]\n";
    let ghost = "netns = \"/no/such/namespace\"";
    let netns = more
        .lines()
        .rfind(|line| line.starts_with("netns"))
        .unwrap();
    for (changed, says) in [
        (more.replace("[driver]", "[driver"), "machine.toml:1:"),
        (
            more.replace("addresses", "adresses"),
            "did you mean `addresses`?",
        ),
        (
            more.replace("[driver]", "[driver]\nworkers = 2\nspin_us = 3"),
            "machine.toml:2: [driver]: `workers`: unset → 2; this cannot change while \
             the machine runs: restart the machine",
        ),
        (format!("{more}{wire}"), "NIC w is new"),
        (
            more.replace(netns, ghost),
            "the network namespace /no/such/namespace does not exist",
        ),
        (format!("{more}cpus = []\n"), "unknown key `cpus`"),
    ] {
        let file = write(&machine, &changed);
        for dry in [&["--dry-run"][..], &[]] {
            let run = machine.grantway(&[&["reload", &file][..], dry].concat());
            assert_eq!(run.status.code(), Some(2), "{changed}: {run:?}");
            assert!(text(&run.stderr).contains(says), "{says}: {run:?}");
        }
        assert_eq!(domains(&machine), ["driver", "c0", "c1"]);
    }
    let missing = machine.grantway(&["reload", "/no/such/file"]);
    assert!(
        text(&missing.stderr).contains("cannot be read"),
        "{missing:?}"
    );
    let other = machine.grantway(&["reload", &write(&machine, &own), "--name", "other"]);
    assert!(text(&other.stderr).contains("no instance named `other`"));
    for (request, says) in [
        (json!({ "op": "reload" }), "no such request"),
        (json!({ "op": "reload", "files": ["x"] }), "no such request"),
        (request("[driver"), "f:1:"),
        (request("x = 1"), "unknown key `x`"),
    ] {
        let refused = ask(&socket(&machine), &request);
        let why = refused["error"].as_str().unwrap();
        assert!(why.contains(says), "{says}: {why}");
    }
    before.wait_until_released(&machine);
    reaches(&machine, 0, 1);
    machine.end();
}

/// Firewall rules change while the guest runs. Its process stays the same.
#[test]
fn rules_of_a_running_guest_change() {
    let Some(machine) = start(2) else {
        return;
    };
    reaches(&machine, 0, 1);
    let own = |more: &str| file_of(&machine, &[(0, ""), (1, more)]);
    let before = pid(&machine, "c1");
    let deny = "rate_mbps = 900.0\n[[guest.vif.rule]]\naction = \"deny\"\nprotocol = \"icmp\"";
    let denied = own(deny);
    for turn in 0..2 {
        let said = machine.grantway(&["reload", &write(&machine, &denied)]);
        let said = text(&said.stdout);
        let way = "change c1 in place: vif 1: `rate_mbps`: unset → 900.0, vif 1: `rule`";
        assert!(said.starts_with(way), "{said}");
        assert_eq!(reload(&machine, &write(&machine, &denied), &[]), "");
        assert!(!answers_ping(&machine, 0, 1));
        if turn == 1 {
            // Restarted managers and drivers also have the new rules.
            replace(&machine, "manager");
            assert_eq!(reload(&machine, &write(&machine, &denied), &[]), "");
            replace(&machine, "driver");
            assert!(!answers_ping(&machine, 0, 1));
        }
        assert_eq!(reload(&machine, &write(&machine, &own("")), &[]), "=c1");
        reaches(&machine, 0, 1);
        assert_eq!(pid(&machine, "c1"), before);
    }
    machine.end();
}

/// The manager does not check namespaces. netd detects a missing one during the reload.
#[test]
fn a_failed_reload_restores_the_machine() {
    let Some(machine) = start(2) else {
        return;
    };
    let old = file_of(&machine, &[(0, ""), (1, "")]);
    let whole = file_of(&machine, &[(2, ""), (1, "mtu = 1400")]);
    let netns = machine.places[1].0.path().display().to_string();
    let broken = whole.replace(&netns, "/no/such/namespace");
    // The failure leaves nothing, so a second attempt fails in the same way.
    for _ in 0..2 {
        let outcome = ask(&socket(&machine), &request(&broken));
        let steps = outcome["steps"].as_array().unwrap();
        assert_eq!(short(steps), "-c0 +c2 -c1 +c1");
        let failed = outcome["failed"].as_str().unwrap();
        assert!(
            failed.starts_with("attach c1: ") && failed.contains("/no/such/namespace"),
            "{failed}"
        );
        assert_eq!(
            (&outcome["done"], &outcome["warning"]),
            (&json!(0), &Value::Null)
        );
        let mut domains = domains(&machine);
        domains.sort();
        assert_eq!(domains, ["c0", "c1", "driver"]);
        reaches(&machine, 0, 1);
        let old = write(&machine, &old);
        assert_eq!(reload(&machine, &old, &["--dry-run"]), "");
    }
    let steps = reload(&machine, &write(&machine, &whole), &[]);
    assert_eq!(steps, "-c0 +c2 -c1 +c1");
    reaches(&machine, 1, 2);
    assert_eq!(reload(&machine, &write(&machine, &whole), &[]), "");
    machine.end();
}

#[test]
fn one_of_two_concurrent_reloads_is_rejected() {
    let Some(machine) = start(0) else {
        return;
    };
    let all = file_of(&machine, &[(0, ""), (1, ""), (2, "")]);
    let socket = socket(&machine);
    let mut refused = 0;
    for turn in 0..200 {
        // The test repeats this until two reloads were concurrent.
        if turn >= 8 && refused > 0 {
            break;
        }
        let target = if turn % 2 == 0 { &all[..] } else { HEAD };
        let answers = thread::scope(|scope| {
            let asked = [(); 4].map(|()| scope.spawn(|| ask(&socket, &request(target))));
            asked.map(|asked| asked.join().unwrap())
        });
        let mut done = 0;
        for answer in &answers {
            match answer["error"].as_str() {
                Some(why) => {
                    assert!(why.contains("another reload is in progress"), "{why}");
                    refused += 1;
                }
                None => {
                    assert_eq!(answer["failed"], Value::Null, "{answer}");
                    assert_eq!(answer["done"], answer["steps"].as_array().unwrap().len());
                    done += 1;
                }
            }
        }
        assert!(done > 0, "{answers:?}");
        let guests = domains(&machine).len() - 1;
        assert_eq!(guests, if turn % 2 == 0 { 3 } else { 0 });
    }
    assert!(refused > 0, "no reload was rejected");
    machine.end();
}
