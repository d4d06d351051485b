//! The program `pointers`: both domains as threads of one process.

use config::domain::{GrantMode, Source};
use config::{Config, Endpoint, GuestSection, Vif};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pointers"))
}

/// Returns a machine whose only guest sends `count` frames to itself.
fn machine(count: u64) -> String {
    let mut config = Config {
        guests: vec![GuestSection {
            name: "guest".to_owned(),
            vifs: vec![Vif::new(Endpoint::Sink { touch: true })],
            ..GuestSection::default()
        }],
        ..Config::default()
    };
    let source = Vif::new(Endpoint::Source(Source {
        to: config.vif_mac(0, 0).unwrap(),
        size: 200,
        rate_pps: None,
        window: 0,
        count: Some(count),
        touch: true,
        flows: 0,
    }));
    config.guests[0].vifs.push(source);
    config.driver.grants = GrantMode::Unchecked;
    serde_json::to_string(&config.machine().unwrap()).unwrap()
}

/// Returns whether exactly this many packets have left the driver through one port.
fn has_passed(stat: &Value, count: u64) -> bool {
    let ports = stat["driver"]["ports"].as_object().unwrap();
    ports
        .values()
        .any(|port| port["traffic"]["out_packets"] == count)
}

#[test]
fn every_frame_crosses_the_bridge_of_both_threads() {
    const COUNT: u64 = 5000;
    let mut child = program()
        .arg(machine(COUNT))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut answer = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(answer()["ready"], true);
    let end = Instant::now() + Duration::from_secs(120);
    let stat = loop {
        stdin.write_all(b"stat\n").unwrap();
        let stat = answer();
        let taken = &stat["guest"]["vifs"]["0"]["endpoint"]["tx_packets"];
        // The two threads count and answer at different times.
        if taken == COUNT && has_passed(&stat, COUNT) || Instant::now() > end {
            break stat;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let endpoints = ["0", "1"].map(|vif| &stat["guest"]["vifs"][vif]["endpoint"]);
    assert_eq!(endpoints[0]["tx_packets"], COUNT, "{stat}");
    assert_eq!(endpoints[1]["source_frames"], COUNT, "{stat}");
    assert!(has_passed(&stat, COUNT), "{stat}");
    assert!(
        stat["driver"]["ledger"]["cpu_ns"].as_u64() > Some(0),
        "{stat}"
    );
    drop(stdin);
    assert!(child.wait().unwrap().success(), "it ends with its input");
}

#[test]
fn other_machines_are_rejected() {
    let two = machine(1).replace("\"program\":\"driver\"", "\"program\":\"guest\"");
    for argument in ["nonsense", &two] {
        let output = program().arg(argument).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(words.starts_with("pointers: "), "{words}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}
