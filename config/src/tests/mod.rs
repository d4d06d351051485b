//! Tests of the whole crate: examples, documentation, messages, properties.

mod files;
mod json;
mod limits;
mod machine;
mod mistakes;
mod nic_mistakes;
mod pci;
mod pdev;
mod port_security;
mod properties;
mod routes;
mod sendfile;
mod several_mistakes;
mod stateful;

use crate::domain::GrantMode;
use crate::parse::{read, single_file};
use crate::*;
use std::fmt::Write as _;

const EXAMPLE: &str = include_str!("../../../examples/every-key.toml");
const DOCS: &str = include_str!("../../../docs/config.md");

/// A small valid file, in which tests introduce mistakes.
const SMALL: &str = r#"
[[nic]]
name = "wire"
kind = "tap"
netns = "w"
addresses = ["10.0.0.1/24"]

[[guest]]
name = "a"

[[guest.vif]]
endpoint = "tap"
netns = "a"
addresses = ["10.0.0.2/24"]

[[guest]]
name = "b"

[[guest.vif]]
endpoint = "stack"
addresses = ["10.0.0.3/24"]

[[guest.vif.app]]
kind = "tcp-echo"
port = 7
"#;

fn errors(text: &str) -> String {
    match parse("f.toml", text) {
        Ok(config) => panic!("no error in {config:?}"),
        Err(problems) => problems.to_string(),
    }
}

/// Returns the only mistake in `SMALL` with `from` replaced by `to`.
#[track_caller]
fn mistake(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    let text = errors(&SMALL.replacen(from, to, 1));
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn examples_are_valid() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    let mut count = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "toml") {
            let text = std::fs::read_to_string(&path).unwrap();
            let config = parse(&path.to_string_lossy(), &text).unwrap_or_else(|e| panic!("{e}"));
            config.machine().unwrap_or_else(|e| panic!("{e}"));
            count += 1;
        }
    }
    assert!(count > 0);
}

/// Returns the example with every commented-out key enabled.
fn uncommented() -> String {
    let is_config = |rest: &str| {
        let word = rest.trim_start();
        word.starts_with('[')
            || word
                .split_once(" = ")
                .is_some_and(|(key, _)| !key.contains(' '))
    };
    let text = EXAMPLE.lines().fold(String::new(), |mut text, line| {
        let rest = line.strip_prefix("# ").filter(|rest| is_config(rest));
        let _ = writeln!(text, "{}", rest.unwrap_or(line));
        text
    });
    // A release threshold requires `spare`.
    text.replacen("spare = 0", "spare = 64", 1)
}

#[test]
fn the_example_is_valid_with_all_keys_enabled() {
    let text = uncommented().replacen("moderation = \"event\"", "moderation = \"tick\"", 1);
    // A queue of an AF_XDP NIC excludes rules and a release threshold.
    let text = text.replacen("\npdev = \"uplink:1\"", "\n", 1);
    // The gateway of the wire's route is a neighbour. Files are checked only when they are opened.
    let config = parse("uncommented", &text).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((config.nics.len(), config.guests.len()), (7, 5));
}

#[test]
fn every_key_is_in_the_example_and_the_docs() {
    let text = uncommented();
    let (_, reading) = read(&single_file(
        "example",
        &text.replacen("\"event\"", "\"tick\"", 1),
    ));
    assert!(reading.known.len() > 50, "{:?}", reading.known);
    for (section, key) in &reading.known {
        let header = |key: &str| match section {
            &"" => format!("[{key}]"),
            section => format!("[[{section}.{key}]]"),
        };
        let list = format!("[{}]", header(key));
        let in_text = |line: &str| {
            let table = format!("[{section}.{key}]");
            let headers = [header(key), list.clone(), table];
            line.starts_with(&format!("{key} =")) || headers.iter().any(|header| line == header)
        };
        let in_example = text
            .lines()
            .any(|line| in_text(line.split('#').next().unwrap_or("").trim_end()));
        assert!(in_example, "[{section}] {key} is not in the example");
        let in_docs = DOCS.contains(&format!("`{key}`"))
            || DOCS.contains(&format!("`{}`", header(key)))
            || DOCS.contains(&format!("`{list}`"));
        assert!(in_docs, "[{section}] {key} is not in the documentation");
    }
}

#[test]
fn defaults_are_as_documented() {
    let config = parse("f", SMALL).unwrap();
    let driver = &config.driver;
    assert_eq!((driver.broadcast_pps, driver.mac_ageing_s), (10_000, 300));
    assert_eq!((driver.grants, driver.ledger), (GrantMode::Counted, true));
    assert_eq!((driver.restart, driver.restart_pause_ms), (true, 5_000));
    assert_eq!(
        (
            config.buffers.to_guest,
            config.buffers.from_guest,
            config.buffers.prefetch
        ),
        (512, 256, 64)
    );
    let buffers = config.buffers;
    assert_eq!((buffers.spare, buffers.release_threshold), (0, None));
    assert_eq!((config.ring.slots, config.ring_order()), (1024, 2));
    assert_eq!(config.ring.format, crate::domain::RingFormat::Native);
    let lro = config.lro;
    assert_eq!(
        (lro.at, lro.rules, lro.psh),
        (
            lro::Placement::Physical,
            lro::RulesKey::Gro,
            lro::PshConfig::Flush
        )
    );
    assert_eq!(
        (lro.buffers, lro.backend, lro.flush),
        (
            lro::FormKey::Skb,
            lro::AggregateDelivery::Scatter,
            lro::FlushConfig::Adaptive
        )
    );
    assert_eq!(
        (lro.hold_max_us(), lro.flows, lro.segments),
        (200, 1024, 64)
    );
    assert_eq!(lro.meta, lro::Meta::Response);
    assert_eq!(config.nic_ifname(0).as_deref(), Some("wire"));
    assert_eq!(config.vif_ifname(0, 0).as_deref(), Some("eth0"));
    assert_eq!(config.vif_ifname(1, 0), None);
}
