//! Sequences of calls.

use super::bench::{Bench, Fake};
use crate::error::ErrorCode;
use serde_json::{Value, json};

const ASSIGNED: &str = "10.99.0.9/24 10.99.0.1";

#[test]
fn a_second_add_fails_and_changes_nothing() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    bench.set_ipam_addresses(&[ASSIGNED], json!([]));
    let conf = bench.conf(json!({}));
    bench.of("ADD", "c1", &conf).done();
    let (code, why) = bench.of("ADD", "c1", &conf).failed();
    assert_eq!(code, ErrorCode::Exists as u64, "{why}");
    assert_eq!(bench.ipam_calls(), ["ADD 1.0.0"]);
    assert_eq!(machine.guests().len(), 1);
    // Another interface of the same container has another key.
    let second = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth1"),
    ];
    bench.call(&second, &conf).done();
    assert_eq!(machine.guests().len(), 2);
}

#[test]
fn addresses_are_released_if_the_machine_rejects() {
    let bench = Bench::new();
    let _machine = Fake::up(&bench.socket());
    bench.set_ipam_addresses(&[ASSIGNED], json!([]));
    let (code, why) = bench
        .of("ADD", "c1", &bench.conf(json!({ "mtu": 1 })))
        .failed();
    assert_eq!(code, ErrorCode::Refused as u64);
    assert!(why.contains("`mtu` is 1"), "{why}");
    assert_eq!(bench.ipam_calls(), ["ADD 1.0.0", "DEL 1.0.0"]);
}

#[test]
fn a_requested_address_that_is_not_given_fails() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    bench.set_ipam_addresses(&[ASSIGNED], json!([]));
    for ips in [json!(["10.99.0.8/24"]), json!(["10.99.0.9/24", "nonsense"])] {
        let conf = bench.conf(json!({ "runtimeConfig": { "ips": ips } }));
        let (code, why) = bench.of("ADD", "c1", &conf).failed();
        assert_eq!(code, ErrorCode::Unsupported as u64, "{why}");
        assert_eq!(bench.ipam_calls(), ["ADD 1.0.0", "DEL 1.0.0"]);
    }
    let conf = bench.conf(json!({ "runtimeConfig": { "ips": ["10.99.0.9"] } }));
    bench.of("ADD", "c1", &conf).done();
    assert_eq!(machine.guests().len(), 1);
}

#[test]
fn without_ipam_the_requested_addresses_are_used() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    let ips = json!(["10.99.0.8/24", "fd99::8/64"]);
    let conf = bench.conf(json!({ "ipam": {}, "runtimeConfig": { "ips": ips } }));
    let said = bench.of("ADD", "c1", &conf).done();
    assert_eq!(
        said["ips"][1],
        json!({ "address": "fd99::8/64", "interface": 0 })
    );
    assert_eq!(machine.last()["vif"][0]["addresses"], ips);
    bench.of("DEL", "c1", &conf).done();
    let conf = bench.conf(json!({ "ipam": {}, "runtimeConfig": { "ips": ["10.99.0.8"] } }));
    let (code, why) = bench.of("ADD", "c1", &conf).failed();
    assert_eq!(code, ErrorCode::Config as u64);
    assert!(why.contains("10.99.0.8 has no prefix length"), "{why}");
    // An interface without an address is also valid.
    let said = bench
        .of("ADD", "c1", &bench.conf(json!({ "ipam": Value::Null })))
        .done();
    assert_eq!(said["ips"], json!([]));
    assert!(bench.ipam_calls().is_empty());
}

#[test]
fn a_result_has_the_requested_version() {
    let bench = Bench::new();
    let _machine = Fake::up(&bench.socket());
    bench.set_ipam_addresses(&[ASSIGNED], json!([{ "dst": "0.0.0.0/0" }]));
    for (version, ipam, spoken) in [
        ("0.4.0", "answers", "0.4.0"),
        ("1.1.0", "answers", "1.1.0"),
        ("1.1.0", "old", "1.0.0"),
    ] {
        let conf = bench.conf(json!({ "cniVersion": version, "ipam": { "type": ipam } }));
        let said = bench.of("ADD", version, &conf).done();
        assert_eq!(said["cniVersion"], version);
        let family = &said["ips"][0]["version"];
        assert_eq!(family == "4", version == "0.4.0", "{said}");
        bench.of("DEL", version, &conf).done();
        let calls = ["ADD", "DEL"].map(|command| format!("{command} {spoken}"));
        assert_eq!(bench.ipam_calls(), calls);
    }
}

#[test]
fn results_of_earlier_plugins_are_passed_on() {
    let bench = Bench::new();
    let _machine = Fake::up(&bench.socket());
    bench.set_ipam_addresses(&[ASSIGNED], json!([]));
    let before = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{ "name": "cbr0" }, { "name": "eth0", "sandbox": "/run/netns/x" }],
        "ips": [{ "address": "10.1.0.2/16", "interface": 1 }],
        "routes": [{ "dst": "0.0.0.0/0", "gw": "10.1.0.1" }],
        "dns": { "nameservers": ["10.1.0.1"] },
    });
    let conf = bench.conf(json!({ "prevResult": before }));
    let said = bench.of("ADD", "c1", &conf).done();
    assert_eq!(said["interfaces"].as_array().unwrap().len(), 3);
    assert_eq!(said["ips"][1]["interface"], 2);
    assert_eq!(said["dns"], before["dns"]);
    assert_eq!(said["routes"], before["routes"]);
}

#[test]
fn other_keys_of_the_network_apply_to_interfaces() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    bench.set_ipam_addresses(&[ASSIGNED], json!([]));
    let vif = json!({
        "rate_mbps": 100,
        "rule": [{ "action": "allow", "state": "new", "destination_ports": 80 }],
        "firewall": "stateful",
        "inbound": "deny",
    });
    let more = json!({ "vif": vif, "mtu": 1400, "dns": { "domain": "x" } });
    let said = bench.of("ADD", "c1", &bench.conf(more)).done();
    assert_eq!(said["dns"]["domain"], "x");
    let sent = &machine.last()["vif"][0];
    assert_eq!(
        (&sent["rate_mbps"], &sent["mtu"]),
        (&json!(100), &json!(1400))
    );
    for key in ["rule", "firewall", "inbound"] {
        assert_eq!(sent[key], vif[key]);
    }
    let more = json!({ "vif": { "mac": "02:00:00:00:00:01" } });
    let (code, why) = bench.of("ADD", "c2", &bench.conf(more)).failed();
    assert_eq!(code, ErrorCode::Config as u64);
    assert!(why.contains("`vif` sets `mac`"), "{why}");
}

const POD: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db-0;K8S_POD_UID=u-1";

/// A pod denies new flows from the start, and an agent finds its record.
#[test]
fn pods_with_network_policies_begin_closed() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    bench.set_ipam_addresses(&[ASSIGNED], json!([]));
    let conf = bench.conf(json!({ "networkPolicy": true }));
    let env = |command, args| {
        [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/no-such-namespace"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", args),
        ]
    };
    let records = || client::pods::all(&bench.file("state/pods"), |_| None).unwrap_or_default();
    bench.call(&env("ADD", POD), &conf).done();
    let sent = &machine.last()["vif"][0]["rule"];
    let expected = json!([{ "name": "unknown-policy", "action": "deny", "state": "new" }]);
    assert_eq!(sent, &expected);
    let (guest, record) = records().into_iter().next().unwrap();
    assert_eq!(machine.guests(), [guest]);
    let named = (
        record.namespace.as_str(),
        record.pod.as_str(),
        record.uid.as_str(),
    );
    assert_eq!(named, ("shop", "db-0", "u-1"));
    bench.call(&env("DEL", ""), &conf).done();
    assert_eq!(records().len(), 0);

    let without_pod = bench.call(&env("ADD", "IgnoreUnknown=1"), &conf).failed();
    assert!(without_pod.1.contains("names no pod"), "{}", without_pod.1);
    let rejected = bench.conf(json!({ "networkPolicy": true, "mtu": 1 }));
    bench.call(&env("ADD", POD), &rejected).failed();
    let vif = json!({ "firewall": "stateful" });
    let both = bench.conf(json!({ "networkPolicy": true, "vif": vif }));
    let (code, why) = bench.call(&env("ADD", POD), &both).failed();
    assert_eq!(code, ErrorCode::Config as u64);
    assert!(why.contains("`vif` sets `firewall`"), "{why}");
    assert_eq!(records().len(), 0);
    assert_eq!(machine.guests(), Vec::<String>::new());
    let calls = bench.ipam_calls();
    let count = |command: &str| {
        calls
            .iter()
            .filter(|call| call.starts_with(command))
            .count()
    };
    assert_eq!(count("ADD"), count("DEL"));
}
