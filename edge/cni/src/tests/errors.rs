//! Errors of calls have a code and a message.

use super::bench::{Bench, Fake};
use crate::error::ErrorCode;
use serde_json::json;
use std::fs;

#[test]
fn wrong_variables_are_named() {
    let bench = Bench::new();
    let conf = bench.conf(json!({}));
    let right = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
    ];
    for (key, value) in [
        ("CNI_COMMAND", ""),
        ("CNI_COMMAND", "add"),
        ("CNI_CONTAINERID", ""),
        ("CNI_CONTAINERID", "../c1"),
        ("CNI_CONTAINERID", "-c1"),
        ("CNI_NETNS", ""),
        ("CNI_NETNS", "x"),
        ("CNI_IFNAME", ""),
        ("CNI_IFNAME", ".."),
        ("CNI_IFNAME", "a/b"),
        ("CNI_IFNAME", "sixteen-letters-"),
    ] {
        let mut env = right;
        for pair in env.iter_mut().filter(|pair| pair.0 == key) {
            pair.1 = value;
        }
        let (code, why) = bench.call(&env, &conf).failed();
        assert_eq!(code, ErrorCode::Environment as u64, "{key}={value}");
        assert!(why.contains(key), "{why}");
    }
}

#[test]
fn wrong_configurations_are_named() {
    let bench = Bench::new();
    let _machine = Fake::up(&bench.socket());
    for (more, wanted, what) in [
        (
            json!({ "cniVersion": "0.3.1" }),
            ErrorCode::CniVersion,
            "0.4.0, 1.0.0, 1.1.0",
        ),
        (json!({ "cniVersion": 7 }), ErrorCode::Decode, "integer `7`"),
        (
            json!({ "name": "a b" }),
            ErrorCode::Config,
            "`name` is \"a b\"",
        ),
        (json!({ "name": "" }), ErrorCode::Config, "`name` is \"\""),
        (
            json!({ "machine": "m" }),
            ErrorCode::Config,
            "`machine` and `socket`",
        ),
        (
            json!({ "mtu": "1500" }),
            ErrorCode::Decode,
            "string \"1500\"",
        ),
        (
            json!({ "ipam": { "type": "../x" } }),
            ErrorCode::Config,
            "../x",
        ),
        (
            json!({ "ipam": { "type": "x" } }),
            ErrorCode::Io,
            "no plugin x",
        ),
    ] {
        let (code, why) = bench.of("ADD", "c1", &bench.conf(more)).failed();
        assert_eq!(code, wanted as u64, "{why}");
        assert!(why.contains(what), "{why}");
    }
    let mut conf = bench.conf(json!({}));
    conf["stateDir"] = json!("state");
    let (code, why) = bench.of("DEL", "c1", &conf).failed();
    assert_eq!(code, ErrorCode::Config as u64);
    assert!(why.contains("`stateDir` is \"state\""), "{why}");
}

#[test]
fn mistakes_that_only_add_reads_do_not_block_del() {
    let bench = Bench::new();
    let _machine = Fake::up(&bench.socket());
    let more = json!({ "mtu": "x", "vif": 7, "runtimeConfig": [], "prevResult": "y" });
    let conf = bench.conf(more);
    assert_eq!(
        bench.of("ADD", "c1", &conf).failed().0,
        ErrorCode::Decode as u64
    );
    bench.of("DEL", "c1", &conf).done();
}

#[test]
fn failures_of_the_ipam_are_passed_on() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    let conf = bench.conf(json!({}));
    let failure = json!({ "cniVersion": "1.0.0", "code": 11, "msg": "no address is free" });
    bench.answers(failure);
    fs::write(bench.file("ADD.fails"), "").unwrap();
    let (code, why) = bench.of("ADD", "c1", &conf).failed();
    assert_eq!((code, why.as_str()), (11, "answers: no address is free ()"));
    for junk in ["", "[]", "{"] {
        fs::write(bench.file("ADD.answer"), junk).unwrap();
        let (code, why) = bench.of("ADD", "c1", &conf).failed();
        assert_eq!(code, ErrorCode::Io as u64, "{why}");
    }
    fs::remove_file(bench.file("ADD.fails")).unwrap();
    let (code, why) = bench.of("ADD", "c1", &conf).failed();
    assert_eq!(code, ErrorCode::Decode as u64, "{why}");
    assert!(machine.guests().is_empty());
}

#[test]
fn unsupported_routes_are_rejected_without_leftovers() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    bench.set_ipam_addresses(
        &["10.99.0.9/24"],
        json!([{ "dst": "0.0.0.0/0", "priority": 7 }]),
    );
    let (code, why) = bench.of("ADD", "c1", &bench.conf(json!({}))).failed();
    assert_eq!(code, ErrorCode::Unsupported as u64, "{why}");
    assert_eq!(bench.ipam_calls(), ["ADD 1.0.0", "DEL 1.0.0"]);
    assert!(machine.guests().is_empty());
}
