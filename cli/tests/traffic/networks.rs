//! Conflicts of a new interface with networks and names that its namespace already has, and the
//! settings of the interface.

use crate::machine::{Machine, grantway, in_folder, text};
use netdev::netns::{Namespace, in_netns};
use serde_json::Value;
use std::fs;
use std::process::Command;
use tempfile::TempDir;
use testing::require;

fn run(line: &str) {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let ran = command.args(words).output().unwrap();
    assert!(ran.status.success(), "{line}: {ran:?}");
}

fn nic(netns: &str, keys: &str) -> String {
    format!(
        "[[nic]]\nname = \"wire\"\nkind = \"tap\"\nnetns = \"{netns}\"\nifname = \"nic0\"\n{keys}\n"
    )
}

#[test]
fn check_reports_the_findings_of_up() {
    require!(machine, tool("ip"));
    let host = Namespace::new().unwrap();
    host.enter(|| {
        run("ip link add nic0 type veth peer name other0");
        run("ip link set other0 up");
        run("ip address add 10.91.0.1/24 dev other0");
        run("ip route add 10.93.0.0/16 via 10.91.0.9");
    })
    .unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("machine.toml");
    let said = |words: &[&str], ifname: &str, keys: &str| {
        let written = nic(&host.path().display().to_string(), keys);
        fs::write(&file, written.replace("nic0", ifname)).unwrap();
        let mut command = Command::new(grantway());
        let command = in_folder(command.args(words).arg(&file), folder.path());
        let ran = command.output().unwrap();
        assert!(!ran.status.success(), "{keys}: {ran:?}");
        text(&ran.stderr)
    };
    let cases = [
        ("nic0", "", "the interface nic0 already exists"),
        (
            "nic1",
            "uplink = \"br77\"",
            "the bridge br77 does not exist",
        ),
        ("nic1", "uplink = \"other0\"", "the interface other0 in"),
        (
            "nic1",
            "addresses = [\"10.91.0.1/24\"]",
            "of interface other0",
        ),
        (
            "nic1",
            "addresses = [\"10.91.0.129/25\"]",
            "10.91.0.128/25 overlaps",
        ),
        (
            "nic1",
            "addresses = [\"10.0.0.1/8\"]",
            "10.0.0.0/8 overlaps",
        ),
        (
            "nic1",
            "addresses = [\"10.93.4.1/24\"]",
            "the route to 10.93.0.0/16",
        ),
    ];
    for (ifname, keys, why) in cases {
        let check = said(&["up", "--check"], ifname, keys);
        assert!(check.contains(why), "{keys}: {check}");
        assert!(!check.contains("link del"), "{check}");
        assert_eq!(check, said(&["up", "--detach"], ifname, keys));
    }
}

#[test]
fn overlapping_guests_are_rejected_unless_allowed() {
    let config = |paths: &[String]| {
        in_netns(&paths[1], || {
            run("ip link add other0 type veth peer name other1");
            run("ip link set other0 up");
            run("ip address add 10.91.0.129/25 dev other0");
        })
        .unwrap();
        nic(&paths[0], "addresses = [\"10.91.0.1/24\"]")
    };
    let Some(machine) = Machine::start(&["ip"], &["nic0", "web0"], config) else {
        return;
    };
    let netns = machine.places[1].0.path().display().to_string();
    let place = ["attach", "web", "--netns", &netns, "--ifname", "web0"];
    let attach = |more: &[&str]| machine.grantway(&[&place[..], more].concat());
    let refused = attach(&["--ip", "10.91.0.2/24"]);
    let said = text(&refused.stderr);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(
        said.contains("10.91.0.129/25 of interface other0"),
        "{said}"
    );
    let allowed = attach(&["--ip", "10.91.0.2/24", "--allow-overlap"]);
    assert!(allowed.status.success(), "{allowed:?}");
    let detached = machine.grantway(&["detach", "web"]);
    assert!(detached.status.success(), "{detached:?}");

    // A reload rejects the same overlap before its first step.
    let file = machine.folder.path().join("machine.toml");
    let before = fs::read_to_string(&file).unwrap();
    let guest = format!(
        "{before}[[guest]]\nname = \"web\"\n[[guest.vif]]\nendpoint = \"tap\"\n\
         netns = \"{netns}\"\nifname = \"web0\"\naddresses = [\"10.91.0.2/24\"]\n"
    );
    fs::write(&file, &guest).unwrap();
    let refused = machine.grantway(&["reload", "machine.toml"]);
    let said = text(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("of interface other0"),
        "{said}"
    );
    fs::write(&file, format!("{guest}allow_overlap = true\n")).unwrap();
    let allowed = machine.grantway(&["reload", "machine.toml"]);
    assert!(allowed.status.success(), "{allowed:?}");
    machine.end();
}

#[test]
fn guests_without_addresses_keep_ipv6_defaults() {
    const KEYS: [&str; 3] = ["accept_ra", "accept_dad", "router_solicitations"];
    let names = ["own0", "given0", "keys0"];
    let config = |paths: &[String]| {
        let keys = [
            "",
            "addresses = [\"10.0.0.2/24\"]",
            "addresses = [\"10.0.0.3/24\"]\naccept_ra = 2\naccept_dad = 1\n\
             router_solicitations = 3",
        ];
        let guests = paths.iter().zip(names).zip(keys);
        let guest = |((netns, name), keys): ((&String, &str), &str)| {
            format!(
                "[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"tap\"\n\
                 ifname = \"{name}\"\nnetns = \"{netns}\"\n{keys}\n"
            )
        };
        guests.map(guest).collect()
    };
    let Some(machine) = Machine::start(&[], &names, config) else {
        return;
    };
    let settings = |place: usize, ifname: &str| {
        let read = |key: &str| {
            let file = format!("/proc/sys/net/ipv6/conf/{ifname}/{key}");
            fs::read_to_string(file).unwrap().trim().to_owned()
        };
        let read = || KEYS.map(read);
        machine.places[place].0.enter(read).unwrap()
    };
    assert_eq!(settings(0, "own0"), settings(0, "default"));
    assert_ne!(settings(0, "own0"), ["0", "0", "0"]);
    assert_eq!(settings(1, "given0"), ["0", "0", "0"]);
    assert_eq!(settings(2, "keys0"), ["2", "1", "3"]);
    let status: Value = machine.ask(&["status"]);
    assert_eq!(
        status["domains"].as_array().map(Vec::len),
        Some(4),
        "{status}"
    );
    machine.end();
}
