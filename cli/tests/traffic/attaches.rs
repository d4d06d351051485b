//! Attaches and detaches guests repeatedly and concurrently. They leave nothing.

use crate::attach::{NAMES, ResourceUsage, attach, domains, reaches};
use crate::machine::{Machine, text};
use crate::soak::records;
use netdev::netns::Namespace;
use std::process::Command;
use testing::{require, wait_until};

/// A short run of `cargo xtask soak --attaches`, which normally runs for hours.
#[test]
fn attaching_under_load_and_kills_leaks_nothing() {
    require!(machine, program("grantway-lab"));
    let spec = r#"{"attaches": 50, "every": 25, "kill_every": 5, "seconds": null, "seed": 1}"#;
    let records = records("attaches", spec);
    assert_eq!(records.len(), 2, "{records:?}");
    for record in &records {
        let count = |key: &str| record[key].as_u64().unwrap();
        assert_eq!(count("attaches"), 25, "{record}");
        assert_eq!(count("driver_kills") + count("manager_kills"), 5);
        assert_eq!(count("whole") + count("not_at_all"), 5, "{record}");
        assert!(count("streamed") > 0, "{record}");
        assert_eq!(record["grown"], serde_json::json!({}), "{record}");
    }
}

/// Returns the links and firewall rules of the system to which guests are connected.
fn host(namespace: &Namespace) -> String {
    let says = |words: &[&str]| {
        let command = || Command::new(words[0]).args(&words[1..]).output().unwrap();
        let said = namespace.enter(command).unwrap();
        assert!(said.status.success(), "{words:?}: {said:?}");
        text(&said.stdout)
    };
    // IPv6 addresses are excluded, because the kernel adds them some time after the interface.
    let [links, rules] = [
        ["ip", "-4", "-brief", "address"].as_slice(),
        ["nft", "list", "ruleset"].as_slice(),
    ]
    .map(says);
    format!("{links}{rules}")
}

#[test]
fn detaching_all_guests_restores_the_host() {
    let config = |paths: &[String]| {
        format!(
            "[[nic]]\nname = \"up\"\nkind = \"tap\"\nifname = \"up\"\nnetns = \"{}\"\n\
             addresses = [\"10.0.0.254/24\"]\nuplink = {{ nat = true }}\n",
            paths[NAMES.len()]
        )
    };
    let names = [&NAMES[..], &["up"]].concat();
    let as_made = {
        require!(root);
        require!(tool("ip"));
        require!(tool("nft"));
        host(&Namespace::new().unwrap())
    };
    let Some(machine) = Machine::start(&["ping", "ip", "nft"], &names, config) else {
        return;
    };
    let up = NAMES.len();
    // The first guest creates everything that remains after its detach.
    attach(&machine, 0);
    machine.ask(&["detach", NAMES[0]]);
    let (before, host_before) = (
        ResourceUsage::when_stable(&machine),
        host(&machine.places[up].0),
    );
    for place in 0..NAMES.len() {
        attach(&machine, place);
    }
    for place in 0..NAMES.len() {
        reaches(&machine, place, (place + 1) % NAMES.len());
        let ping = ["-c", "1", "-w", "30", "10.0.0.254"];
        assert!(machine.run(place, "ping", &ping).status.success());
    }
    let all = [&["detach"], &NAMES[..]].concat();
    let run = machine.grantway(&all);
    assert!(run.status.success(), "{run:?}");
    assert_eq!(domains(&machine), ["driver"]);
    wait_until("some resources are still in use", || {
        let interfaces = machine.places[..up].iter().any(|(namespace, name)| {
            let read = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            namespace.enter(read).unwrap().contains(name)
        });
        !interfaces && before.covers_now(&machine) && host(&machine.places[up].0) == host_before
    });
    let places = machine.end();
    assert_eq!(host(&places[up].0), as_made);
}
