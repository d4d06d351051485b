//! Captured calls of runtimes: podman 4.3.1 (with CNI), containerd 1.6.20 (CRI and `ctr`), cnitool
//! 1.3.1. Only the machine, the state and the addresses are those of the bench.

use super::bench::{Bench, Fake};
use crate::error::ErrorCode;
use serde_json::{Value, json};

/// Variables and configuration of a call.
struct Captured {
    env: Vec<(String, String)>,
    conf: Value,
}

impl Captured {
    fn var(&self, key: &str) -> &str {
        let found = self.env.iter().find(|(name, _)| name == key);
        found.map_or("", |(_, value)| value)
    }

    fn env(&self) -> Vec<(&str, &str)> {
        let pairs = self.env.iter();
        pairs.map(|(key, value)| (&**key, &**value)).collect()
    }
}

fn calls(text: &str) -> Vec<Captured> {
    let read = |line: &str| {
        let call: Value = serde_json::from_str(line).unwrap();
        let env = call["env"].as_object().unwrap().iter();
        Captured {
            env: env
                .map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()))
                .collect(),
            conf: call["stdin"].clone(),
        }
    };
    text.lines().map(read).collect()
}

/// Makes all calls of a file, with these changes to each configuration.
fn replay(text: &str, change: impl Fn(&mut Value)) {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    let calls = calls(text);
    let mut seen = 0;
    for (n, call) in calls.iter().enumerate() {
        let mut conf = bench.with_folders(call.conf.clone());
        change(&mut conf);
        if conf["ipam"].is_object() {
            conf["ipam"]["type"] = json!("answers");
        }
        let answer = |conf: &Value| bench.call(&call.env(), conf);
        match call.var("CNI_COMMAND") {
            "ADD" => {
                returns_current_frames(&bench, call, &calls[n..]);
                added(call, &answer(&conf).done(), &machine.last());
                assert_eq!(machine.guests().len(), 1);
            }
            "DEL" => {
                for _ in 0..2 {
                    assert_eq!(answer(&conf).done(), Value::Null);
                    assert!(machine.guests().is_empty());
                    let deleted = format!("DEL {}", conf["cniVersion"].as_str().unwrap());
                    assert_eq!(bench.ipam_calls().last(), Some(&deleted));
                }
            }
            "CHECK" => {
                let (code, why) = answer(&conf).failed();
                assert_eq!(code, ErrorCode::NoContainer as u64, "{why}");
            }
            "VERSION" => {
                let said = answer(&conf).done();
                assert_eq!(
                    said["supportedVersions"],
                    json!(["0.4.0", "1.0.0", "1.1.0"])
                );
                assert_eq!(said["cniVersion"], "1.0.0");
            }
            _ => assert_eq!(answer(&conf).done(), Value::Null),
        }
        seen += 1;
    }
    assert!(seen > 1);
}

/// Sets the addresses that the container had when the calls were captured.
fn returns_current_frames(bench: &Bench, call: &Captured, later: &[Captured]) {
    let same = |other: &&Captured| {
        other.var("CNI_CONTAINERID") == call.var("CNI_CONTAINERID")
            && other.conf["prevResult"].is_object()
    };
    let mut result = later.iter().find(same).unwrap().conf["prevResult"].clone();
    result.as_object_mut().unwrap().remove("interfaces");
    for ip in result["ips"].as_array_mut().unwrap() {
        ip.as_object_mut().unwrap().remove("interface");
    }
    bench.answers(result);
}

/// Checks the answer to ADD, and the request to the machine.
fn added(call: &Captured, said: &Value, guest: &Value) {
    let interface = &said["interfaces"][0];
    assert_eq!(said["cniVersion"], call.conf["cniVersion"]);
    assert_eq!(interface["name"], call.var("CNI_IFNAME"));
    assert_eq!(interface["sandbox"], call.var("CNI_NETNS"));
    let args = call.var("CNI_ARGS").split(';');
    let arg = |name: &str| {
        let mut args = args.clone().filter_map(|pair| pair.split_once('='));
        args.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let asked = call.conf["runtimeConfig"]["mac"].as_str().or(arg("MAC"));
    let mac = interface["mac"].as_str().unwrap();
    assert!(asked.is_none_or(|asked| asked == mac), "{mac}");
    assert!(mac.starts_with("02:"), "{mac}");
    let ips = said["ips"].as_array().unwrap();
    assert!(
        !ips.is_empty() && ips.iter().all(|ip| ip["interface"] == 0),
        "{said}"
    );
    if let Some(asked) = arg("IP") {
        assert_eq!(ips[0]["address"], format!("{asked}/24"));
    }
    let is_new = said["cniVersion"] == "1.1.0";
    assert_eq!(
        interface["mtu"],
        if is_new { json!(1500) } else { Value::Null }
    );

    let vif = &guest["vif"][0];
    assert_eq!(vif["endpoint"], "tap");
    assert_eq!(vif["netns"], call.var("CNI_NETNS"));
    assert_eq!(vif["ifname"], call.var("CNI_IFNAME"));
    assert_eq!(vif["mac"], interface["mac"]);
    assert_eq!(vif["addresses"][0], ips[0]["address"]);
    let routes = said["routes"].as_array();
    for (n, route) in routes.into_iter().flatten().enumerate() {
        let dst = route["dst"].as_str().unwrap();
        let family = usize::from(dst.contains(':'));
        let gateway = ips[family]["gateway"].as_str().unwrap();
        assert_eq!(vif["routes"][n], format!("{dst} via {gateway}"));
    }
    let name = guest["name"].as_str().unwrap();
    assert!(
        name.starts_with("cni-") && client::check_name(name).is_ok(),
        "{name}"
    );
}

#[test]
fn calls_of_podman() {
    replay(
        include_str!("../../testdata/captured/podman-4.3.1.jsonl"),
        |_| (),
    );
}

#[test]
fn calls_of_ctr() {
    replay(
        include_str!("../../testdata/captured/ctr-1.6.20.jsonl"),
        |_| (),
    );
}

#[test]
fn calls_of_cnitool() {
    replay(
        include_str!("../../testdata/captured/cnitool-1.3.1.jsonl"),
        |_| (),
    );
}

const CONTAINERD: &str = include_str!("../../testdata/captured/containerd-cri-1.6.20.jsonl");

#[test]
fn calls_of_containerd() {
    replay(CONTAINERD, |_| ());
}

/// A pod with bandwidth annotations, 10M in and 20M out. containerd writes keys in another case,
/// and a burst that was not set.
#[test]
fn annotations_of_a_pod_limit_it() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    let add = &calls(CONTAINERD)[0];
    let bandwidth = &add.conf["runtimeConfig"]["bandwidth"];
    assert_eq!(bandwidth["IngressBurst"], u32::MAX);
    let mut conf = bench.with_folders(add.conf.clone());
    conf["ipam"]["type"] = json!("answers");
    bench.set_ipam_addresses(&["10.99.0.10/24 10.99.0.1"], json!([]));
    bench.call(&add.env(), &conf).done();
    let vif = &machine.last()["vif"][0];
    assert_eq!(vif["rate_to_guest_mbps"], 10.0);
    assert_eq!(vif["rate_mbps"], 20.0);
    for burst in ["burst_bytes", "burst_to_guest_bytes"] {
        assert_eq!(vif[burst], Value::Null, "{vif}");
    }
}
