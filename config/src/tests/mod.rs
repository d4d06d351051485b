//! Tests of the whole crate: examples, documentation, messages, properties.

mod files;
mod json;
mod keys;
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
use crate::parse::single_file;
use crate::*;
use std::fmt::Write as _;

const EXAMPLE: &str = include_str!("../../../examples/every-key.toml");

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
    assert_eq!((config.nics.len(), config.guests.len()), (8, 6));
}

#[test]
fn kernel_interfaces_have_default_names() {
    let config = parse("f", SMALL).unwrap();
    assert_eq!(config.nic_ifname(0).as_deref(), Some("wire"));
    assert_eq!(config.vif_ifname(0, 0).as_deref(), Some("eth0"));
    assert_eq!(config.vif_ifname(1, 0), None);
}
