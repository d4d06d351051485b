//! Calls of netavark, as documented (API 1.0.0, netavark 1.17).

use super::bench::{Bench, Fake};
use crate::netavark;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const ID: &str = "752947ff91f961eb3cb47ffe9315016979f3ffbec09e4d96a4fae3fb03391697";

/// Returns a network in podman's form.
fn network(bench: &Bench) -> Value {
    json!({
        "dns_enabled": true,
        "driver": "grantway",
        "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
        "internal": false,
        "ipv6_enabled": false,
        "name": "gwnet",
        "network_interface": null,
        "options": { "socket": bench.socket() },
        "ipam_options": { "driver": "host-local" },
        "subnets": [
            { "gateway": "fd96::1", "lease_range": null, "subnet": "fd96::/64" },
            { "gateway": "10.96.0.1", "lease_range": null, "subnet": "10.96.0.0/16" },
        ],
        "network_dns_servers": null,
    })
}

/// Returns a container in that network.
fn container(bench: &Bench) -> Value {
    json!({
        "container_id": ID,
        "container_name": "web",
        "port_mappings": null,
        "network": network(bench),
        "network_options": {
            "aliases": ["752947ff91f9"],
            "interface_name": "eth0",
            "static_ips": ["10.96.0.77"],
            "static_mac": "02:00:00:00:00:77",
        },
    })
}

fn call(bench: &Bench, args: &[&str], input: &Value) -> Result<Value, String> {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/ports");
    let folder = bench.file("").display().to_string();
    let env = [("CNI_PATH", path), ("FOLDER", &folder)];
    let env = env.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let env = BTreeMap::from(env);
    let (output, is_done) = netavark::run(&args, &env, input.to_string().as_bytes());
    let output = match output.as_str() {
        "" => Value::Null,
        output => serde_json::from_str(output).unwrap(),
    };
    match is_done {
        true => Ok(output),
        false => Err(output["error"].as_str().unwrap().to_owned()),
    }
}

const SETUP: [&str; 2] = ["setup", "/run/netns/no-such-namespace"];
const TEARDOWN: [&str; 2] = ["teardown", "/run/netns/no-such-namespace"];

#[test]
fn a_container_is_attached_and_detached() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    let mut input = container(&bench);
    input["network"]["options"]["mtu"] = json!("1400");
    input["network"]["options"]["rate_mbps"] = json!("100");
    let route = json!({ "destination": "192.0.2.0/24", "gateway": "10.96.0.9", "metric": null });
    input["network"]["routes"] = json!([route]);
    let status = call(&bench, &SETUP, &input).unwrap();
    assert_eq!(
        status,
        json!({
            "dns_search_domains": [],
            "dns_server_ips": [],
            "interfaces": { "eth0": {
                "mac_address": "02:00:00:00:00:77",
                "subnets": [{ "gateway": "10.96.0.1", "ipnet": "10.96.0.77/16" }],
            } },
        })
    );
    let vif = &machine.last()["vif"][0];
    assert_eq!(vif["netns"], SETUP[1]);
    assert_eq!(vif["addresses"], json!(["10.96.0.77/16"]));
    let routes = ["0.0.0.0/0 via 10.96.0.1", "192.0.2.0/24 via 10.96.0.9"];
    assert_eq!(vif["routes"], json!(routes));
    assert_eq!(
        (&vif["mtu"], &vif["rate_mbps"]),
        (&json!(1400), &json!(100))
    );
    assert_eq!(machine.guests().len(), 1);
    let again = call(&bench, &SETUP, &input).unwrap_err();
    assert!(again.contains("already attached"), "{again}");
    for _ in 0..2 {
        assert_eq!(call(&bench, &TEARDOWN, &input), Ok(Value::Null));
        assert!(machine.guests().is_empty());
    }
}

#[test]
fn an_internal_network_has_no_default_route() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    let mut input = container(&bench);
    input["network"]["internal"] = json!(true);
    input["network_options"]["static_ips"] = json!(["10.96.0.7", "fd96::7"]);
    let status = call(&bench, &SETUP, &input).unwrap();
    let subnets = &status["interfaces"]["eth0"]["subnets"];
    assert_eq!(
        *subnets,
        json!([{ "ipnet": "10.96.0.7/16" }, { "ipnet": "fd96::7/64" }])
    );
    assert_eq!(machine.last()["vif"][0]["routes"], json!([]));
}

#[test]
fn ports_are_passed_to_portmap() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    let mut input = container(&bench);
    let port = |host: u16, range: u16| {
        json!([{ "container_port": 80, "host_ip": "", "host_port": host, "protocol": "tcp,udp",
            "range": range }])
    };
    input["port_mappings"] = port(8080, 2);
    let recorded = |command: &str| -> Value {
        let text = std::fs::read_to_string(bench.file(command)).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    input["network"]["name"] = json!("ports");
    call(&bench, &SETUP, &input).unwrap();
    let add = recorded("ADD");
    let mappings = add["runtimeConfig"]["portMappings"].as_array().unwrap();
    assert_eq!(mappings.len(), 4);
    let last = json!({ "hostPort": 8081, "containerPort": 81, "protocol": "udp", "hostIP": "" });
    assert_eq!(mappings[3], last);
    assert_eq!(add["prevResult"]["ips"][0]["address"], "10.96.0.77/16");
    call(&bench, &TEARDOWN, &input).unwrap();
    assert_eq!(recorded("DEL")["name"], "ports");

    // A failed setup must leave nothing, because netavark then calls no teardown.
    std::fs::write(bench.file("fails"), "").unwrap();
    let output = call(&bench, &SETUP, &input).unwrap_err();
    assert!(output.contains("portmap: no such chain"), "{output}");
    assert!(machine.guests().is_empty());
    input["port_mappings"] = port(65535, 2);
    let output = call(&bench, &SETUP, &input).unwrap_err();
    assert!(
        output.contains("fewer than 2 ports exist from 65535 on"),
        "{output}"
    );
    assert!(machine.guests().is_empty());
}

#[test]
fn a_network_is_validated_when_it_is_created() {
    let bench = Bench::new();
    let made = call(&bench, &["create"], &network(&bench)).unwrap();
    let mut expected = network(&bench);
    expected["dns_enabled"] = json!(false);
    assert_eq!(made, expected);
    let refused = |key: &str, value: Value, why: &str| {
        let mut network = network(&bench);
        network[key] = value;
        let output = call(&bench, &["create"], &network).unwrap_err();
        assert!(output.contains(why), "{output}");
    };
    refused("subnets", Value::Null, "`--subnet`");
    refused(
        "ipam_options",
        json!({ "driver": "dhcp" }),
        "addresses by `dhcp`",
    );
    refused(
        "options",
        json!({ "rate": "7" }),
        "unknown option `rate`: known options: machine,",
    );
    refused(
        "options",
        json!({ "mtu": "big" }),
        "`mtu` is \"big\": write a number",
    );
    refused("name", json!(7), "invalid type");
}

#[test]
fn errors_are_reported() {
    let bench = Bench::new();
    let info = call(&bench, &["info"], &Value::Null).unwrap();
    assert_eq!(info["api_version"], "1.0.0");
    let refused = |args: &[&str], input: &Value, why: &str| {
        let output = call(&bench, args, input).unwrap_err();
        assert!(output.contains(why), "{output}");
    };
    let input = container(&bench);
    refused(&SETUP, &input, "no machine answers at");
    refused(&["--help"], &input, "`setup NETNS`");
    refused(&["setup"], &input, "`setup NETNS`");
    refused(&SETUP, &json!({}), "missing field");
    let mut elsewhere = input.clone();
    elsewhere["network_options"]["static_ips"] = json!(["10.97.0.1"]);
    refused(
        &SETUP,
        &elsewhere,
        "10.97.0.1 is in no subnet of the network gwnet",
    );
    let machine = Fake::up(&bench.socket());
    elsewhere["network_options"]["static_ips"] = Value::Null;
    refused(&SETUP, &elsewhere, "podman has assigned no address");
    let mut metric = input.clone();
    let route = json!({ "destination": "192.0.2.0/24", "gateway": "10.96.0.9", "metric": 7 });
    metric["network"]["routes"] = json!([route]);
    refused(&SETUP, &metric, "`metric` is 7");
    assert!(machine.guests().is_empty());
}
