//! Metrics of a machine.

use crate::test_dir::{SIM, TAPS, TestDir, UNPRIVILEGED_UID, wait, wait_for_end};
use netdev::netns::in_netns;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use testing::{KillOnDrop, child_of, promtool, require, with_timeout};

pub(crate) fn contrib(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../contrib")).join(name)
}

/// Returns the names in a text that have the form of metric names.
fn names(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c))
        .filter(|word| word.starts_with("grantway_"))
        .collect()
}

#[test]
fn alerts_name_existing_metrics() {
    let place = TestDir::with_machine();
    // Large receive offload makes all metrics exist.
    let file = place.file("m.toml", &format!("lro.at = \"both\"\n{SIM}"));
    let up = place.run(&["up", &file, "--detach"]);
    assert!(up.ok(), "{up:?}\n{}", place.read("run/grantway.log"));
    let alerts = fs::read_to_string(contrib("prometheus/alerts.yml")).unwrap();
    let mut missing = names(&alerts);
    // This metric exists only after an outage.
    missing.remove("grantway_domain_last_outage_seconds");
    // The guest pings continuously. A domain's counters may be missing while the domain answers
    // slowly.
    let text = wait(|| {
        let metrics = place.run(&["metrics"]);
        assert!(metrics.ok(), "{metrics:?}");
        let lines = metrics.out.lines().filter(|line| !line.starts_with('#'));
        for line in lines {
            missing.remove(line.split(['{', ' ']).next().unwrap());
        }
        let port = "port=\"vif.web-0\",direction=\"in\"} ";
        let frames = format!("grantway_port_frames_total{{domain=\"driver\",{port}");
        let value = metrics.out.lines().find_map(|l| l.strip_prefix(&frames));
        let value: u64 = value?.parse().ok()?;
        println!("missing metrics: {missing:?}");
        (value > 0 && missing.is_empty()).then_some(metrics.out)
    });
    let open = place.run(&["metrics", "--openmetrics"]);
    assert!(open.ok() && open.out.ends_with("# EOF\n"), "{open:?}");
    assert_eq!(place.run(&["metrics", "--json"]).code, 2);
    assert!(place.run(&["down"]).ok());
    assert!(!place.has("run/grantway.metrics"));
    require!(tool("promtool"));
    promtool(&["check", "metrics"], &text);
}

#[test]
fn prometheus_parses_the_alerts() {
    require!(tool("promtool"));
    let alerts = contrib("prometheus/alerts.yml");
    promtool(&["check", "rules", alerts.to_str().unwrap()], "");
}

/// A port that no other test gets while this value exists. Like std's and Go's listeners, it
/// permits reuse of the address.
struct FreePort {
    number: u16,
    _kept: OwnedFd,
}

impl FreePort {
    fn new() -> Self {
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let kept = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        sockopt::set_socket_reuseaddr(&kept, true).unwrap();
        let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        bind(&kept, &any).unwrap();
        let bound: SocketAddrV4 = getsockname(&kept).unwrap().try_into().unwrap();
        Self {
            number: bound.port(),
            _kept: kept,
        }
    }
}

/// Returns an HTTP server's answer, if it sends one.
fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = with_timeout(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?);
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn the_metrics_port_is_local_and_optional() {
    let place = TestDir::with_machine();
    let free = FreePort::new();
    let port = free.number;
    let file = place.file("m.toml", &format!("machine.metrics_port = {port}\n{SIM}"));
    let up = place.run(&["up", &file, "--detach"]);
    assert!(up.ok(), "{up:?}\n{}", place.read("run/grantway.log"));
    let answer = get(port, "/metrics").unwrap();
    assert!(answer.contains("grantway_build_info{"), "{answer}");
    // The manager's death does not affect clients.
    let manager = manager_of(&place);
    rustix::process::kill_process(manager, rustix::process::Signal::KILL).unwrap();
    // A connection that the dying manager has accepted is closed with it.
    wait_for_end(&manager.as_raw_nonzero().to_string());
    wait(|| {
        let again = get(port, "/metrics").unwrap();
        println!("{again}");
        let is_up = again.contains("grantway_domain_up{domain=\"web\"");
        is_up.then_some(())
    });
    // A port that is in use is reported in one sentence.
    let other = place.file("o.toml", &format!("machine.name = \"o\"\n{SIM}"));
    let taken = place.run(&[
        "up",
        &other,
        "--detach",
        "--metrics-port",
        &port.to_string(),
    ]);
    assert_eq!(taken.code, 1);
    let why = format!("the metrics port {port}: Address already in use");
    assert!(taken.err.contains(&why), "{taken:?}");
    assert!(place.run(&["down"]).ok());
}

/// For a user without privileges, a machine with TAPs has a separate network namespace.
#[test]
fn without_privileges_the_port_is_in_the_namespace() {
    require!(root, userns, tap);
    let place = TestDir::with_machine();
    place.open_to_all();
    let file = place.file("m.toml", &TAPS.replace("netns = \"here\"\n", ""));
    // All ports are free in a new namespace.
    let port = 9000;
    let args = ["up", &file, "--detach", "--json", "--metrics-port", "9000"];
    let up = place.run_as(UNPRIVILEGED_UID, &args);
    assert!(up.ok(), "{up:?}\n{}", place.read("run/grantway.log"));
    let up: Value = serde_json::from_str(&up.out).unwrap();
    let namespace = format!("/proc/{}/ns/net", up["pid"]);
    let answer = in_netns(namespace, || get(port, "/metrics")).unwrap();
    let answer = answer.expect("an answer");
    assert!(answer.contains("grantway_build_info{"), "{answer}");
    let down = place.run_as(UNPRIVILEGED_UID, &["down"]);
    assert!(down.ok(), "{down:?}");
}

/// Returns the process of the manager.
fn manager_of(place: &TestDir) -> rustix::process::Pid {
    let status: Value = serde_json::from_str(&place.run(&["status", "--json"]).out).unwrap();
    let core = status["pid"].as_u64().unwrap();
    let manager = wait(|| child_of(core, "grantway-manager"));
    rustix::process::Pid::from_raw(manager.try_into().unwrap()).unwrap()
}

/// Validates OpenMetrics by a Prometheus that scrapes it.
#[test]
fn prometheus_reads_the_port() {
    require!(tool("prometheus"), tool("promtool"));
    let place = TestDir::with_machine();
    let (free, own) = (FreePort::new(), FreePort::new());
    let (port, own) = (free.number, own.number);
    let file = place.file("m.toml", SIM);
    let up = place.run(&["up", &file, "--detach", "--metrics-port", &port.to_string()]);
    assert!(up.ok(), "{up:?}\n{}", place.read("run/grantway.log"));
    let alerts = contrib("prometheus/alerts.yml").canonicalize().unwrap();
    let config = place.file(
        "p.yml",
        &format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: [{}]\n\
             scrape_configs:\n- job_name: grantway\n  static_configs: [{{targets: \
             [\"127.0.0.1:{port}\"]}}]\n",
            alerts.display()
        ),
    );
    let folder = PathBuf::from(&config).with_file_name("data");
    let prometheus = Command::new("prometheus")
        .arg(format!("--config.file={config}"))
        .arg(format!("--storage.tsdb.path={}", folder.display()))
        .arg(format!("--web.listen-address=127.0.0.1:{own}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _ends = KillOnDrop(prometheus);
    // A scrape has a timeout of one second, which may be too short, so Prometheus repeats it.
    wait(|| {
        let answer = get(own, "/api/v1/targets")?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let answer: Value = serde_json::from_str(body).ok()?;
        let target = &answer["data"]["activeTargets"][0];
        println!("{}: {}", target["health"], target["lastError"]);
        (target["health"] == "up" && target["lastError"] == "").then_some(())
    });
    wait(|| {
        let answer = get(own, "/api/v1/query?query=grantway_domain_up")?;
        answer.contains("\"domain\":\"web\"").then_some(())
    });
    assert!(place.run(&["down"]).ok());
}
