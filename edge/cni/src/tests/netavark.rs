//! Calls of netavark's, as its documentation has them (API 1.0.0, netavark 1.17).

use super::bench::{Bench, Fake};
use crate::netavark;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const ID: &str = "752947ff91f961eb3cb47ffe9315016979f3ffbec09e4d96a4fae3fb03391697";

/// A network as podman tells it.
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

/// A container in it.
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

fn call(bench: &Bench, args: &[&str], told: &Value) -> Result<Value, String> {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/ports");
    let folder = bench.file("").display().to_string();
    let env = [("CNI_PATH", path), ("FOLDER", &folder)];
    let env = env.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let env = BTreeMap::from(env);
    let (said, is_done) = netavark::run(&args, &env, told.to_string().as_bytes());
    let said = match said.as_str() {
        "" => Value::Null,
        said => serde_json::from_str(said).unwrap(),
    };
    match is_done {
        true => Ok(said),
        false => Err(said["error"].as_str().unwrap().to_owned()),
    }
}

const SETUP: [&str; 2] = ["setup", "/run/netns/no-such-namespace"];
const TEARDOWN: [&str; 2] = ["teardown", "/run/netns/no-such-namespace"];

#[test]
fn a_container_comes_and_goes() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    let mut told = container(&bench);
    told["network"]["options"]["mtu"] = json!("1400");
    told["network"]["options"]["rate_mbps"] = json!("100");
    let route = json!({ "destination": "192.0.2.0/24", "gateway": "10.96.0.9", "metric": null });
    told["network"]["routes"] = json!([route]);
    let status = call(&bench, &SETUP, &told).unwrap();
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
    let again = call(&bench, &SETUP, &told).unwrap_err();
    assert!(again.contains("attached already"), "{again}");
    for _ in 0..2 {
        assert_eq!(call(&bench, &TEARDOWN, &told), Ok(Value::Null));
        assert!(machine.guests().is_empty());
    }
}

#[test]
fn an_internal_network_has_no_way_out() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    let mut told = container(&bench);
    told["network"]["internal"] = json!(true);
    told["network_options"]["static_ips"] = json!(["10.96.0.7", "fd96::7"]);
    let status = call(&bench, &SETUP, &told).unwrap();
    let subnets = &status["interfaces"]["eth0"]["subnets"];
    assert_eq!(
        *subnets,
        json!([{ "ipnet": "10.96.0.7/16" }, { "ipnet": "fd96::7/64" }])
    );
    assert_eq!(machine.last()["vif"][0]["routes"], json!([]));
}

#[test]
fn ports_are_for_portmap() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    let mut told = container(&bench);
    let port = |host: u16, range: u16| {
        json!([{ "container_port": 80, "host_ip": "", "host_port": host, "protocol": "tcp,udp",
            "range": range }])
    };
    told["port_mappings"] = port(8080, 2);
    let heard = |command: &str| -> Value {
        let text = std::fs::read_to_string(bench.file(command)).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    told["network"]["name"] = json!("ports");
    call(&bench, &SETUP, &told).unwrap();
    let add = heard("ADD");
    let mappings = add["runtimeConfig"]["portMappings"].as_array().unwrap();
    assert_eq!(mappings.len(), 4);
    let last = json!({ "hostPort": 8081, "containerPort": 81, "protocol": "udp", "hostIP": "" });
    assert_eq!(mappings[3], last);
    assert_eq!(add["prevResult"]["ips"][0]["address"], "10.96.0.77/16");
    call(&bench, &TEARDOWN, &told).unwrap();
    assert_eq!(heard("DEL")["name"], "ports");

    // One that fails leaves nothing behind: nobody else takes it away.
    std::fs::write(bench.file("fails"), "").unwrap();
    let said = call(&bench, &SETUP, &told).unwrap_err();
    assert!(said.contains("portmap: no such chain"), "{said}");
    assert!(machine.guests().is_empty());
    told["port_mappings"] = port(65535, 2);
    let said = call(&bench, &SETUP, &told).unwrap_err();
    assert!(
        said.contains("there are not 2 ports from 65535 on"),
        "{said}"
    );
    assert!(machine.guests().is_empty());
}

#[test]
fn a_network_is_looked_at_when_it_is_made() {
    let bench = Bench::new();
    let made = call(&bench, &["create"], &network(&bench)).unwrap();
    let mut expected = network(&bench);
    expected["dns_enabled"] = json!(false);
    assert_eq!(made, expected);
    let refused = |key: &str, value: Value, why: &str| {
        let mut network = network(&bench);
        network[key] = value;
        let said = call(&bench, &["create"], &network).unwrap_err();
        assert!(said.contains(why), "{said}");
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
        "unknown option `rate`: there are machine,",
    );
    refused(
        "options",
        json!({ "mtu": "big" }),
        "`mtu` is \"big\": write a number",
    );
    refused("name", json!(7), "invalid type");
}

#[test]
fn what_cannot_be_done_is_said() {
    let bench = Bench::new();
    let info = call(&bench, &["info"], &Value::Null).unwrap();
    assert_eq!(info["api_version"], "1.0.0");
    let refused = |args: &[&str], told: &Value, why: &str| {
        let said = call(&bench, args, told).unwrap_err();
        assert!(said.contains(why), "{said}");
    };
    let told = container(&bench);
    refused(&SETUP, &told, "no machine answers at");
    refused(&["--help"], &told, "`setup NETNS`");
    refused(&["setup"], &told, "`setup NETNS`");
    refused(&SETUP, &json!({}), "missing field");
    let mut elsewhere = told.clone();
    elsewhere["network_options"]["static_ips"] = json!(["10.97.0.1"]);
    refused(
        &SETUP,
        &elsewhere,
        "10.97.0.1 is in no subnet of the network gwnet",
    );
    let machine = Fake::up(&bench.socket());
    elsewhere["network_options"]["static_ips"] = Value::Null;
    refused(&SETUP, &elsewhere, "podman has given no address");
    let mut metric = told.clone();
    let route = json!({ "destination": "192.0.2.0/24", "gateway": "10.96.0.9", "metric": 7 });
    metric["network"]["routes"] = json!([route]);
    refused(&SETUP, &metric, "`metric` is 7");
    assert!(machine.guests().is_empty());
}
