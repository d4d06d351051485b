//! Real monitors with well-behaved domains.

mod common;

use abi::machine::Program;
use common::{Daemon, domain, machine, with_file};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::process::Command;

#[test]
fn a_machine_starts_and_shuts_down() {
    let mut plan = machine(2);
    plan.domains[1].cpus = vec![0];
    let (daemon, line) = Daemon::start(&plan);
    assert_eq!(line["ready"], true, "{line}");
    assert!(line["up_ms"].as_f64().unwrap() > 0.0);
    let status = daemon.status();
    assert_eq!(status["name"], "test");
    assert!(status["up_took_ns"].as_u64().unwrap() > 0);
    for domain in status["domains"].as_array().unwrap() {
        assert_eq!(
            (&domain["state"], &domain["alive"]),
            (&json!("running"), &json!(true))
        );
        assert!(domain["cpu_ns"].as_u64().unwrap() > 0, "{domain}");
        assert!(domain["worker_cpu_ns"].as_u64().unwrap() > 0, "{domain}");
        assert!(domain["hypercalls"].as_u64().unwrap() >= 2, "{domain}");
        assert!(domain["system_calls"].as_u64().unwrap() > 5, "{domain}");
    }
    for connection in status["connections"].as_array().unwrap() {
        assert_eq!(connection["backend_state"], "connected");
        assert_eq!(connection["frontend_state"], "connected");
    }
    let audit = daemon.audit();
    assert_eq!(audit["domains"][0]["owned"], 16);
    daemon.down();
}

#[test]
fn a_machine_without_domains_is_ready() {
    let mut plan = machine(0);
    plan.domains.clear();
    Daemon::up(&plan).down();
}

/// The thread that serves metrics is a client of the manager, but does not count towards the limit.
#[test]
fn the_documented_number_of_clients_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(common::core());
    command.arg("--metrics").arg(folder.path().join("metrics"));
    let (daemon, line) = Daemon::start_as(&machine(1), command);
    assert_eq!(line["ready"], true, "{line}");
    let mut clients = Vec::new();
    for n in 1..=32 {
        let mut client = daemon.connect();
        client.write_all(b"{\"op\":\"status\"}\n").unwrap();
        let mut answer = String::new();
        let read = BufReader::new(&client).read_line(&mut answer);
        assert!(read.is_ok(), "client {n}: {read:?}");
        assert!(answer.contains("\"domains\""), "client {n}: {answer}");
        clients.push(client);
    }
    drop(clients);
    daemon.down();
}

#[test]
fn a_domain_attaches_only_its_devices_and_once() {
    let mut plan = machine(1);
    let file = tempfile::NamedTempFile::new().unwrap();
    with_file(&mut plan, 0, file.path());
    let daemon = Daemon::up(&plan);
    let attach = |domain: &str, kind: u32, index: u32| {
        daemon.order(
            domain,
            json!({ "do": "attach", "kind": kind, "index": index }),
        )
    };
    assert_eq!(attach("driver", 1, 0), "attached");
    assert_eq!(attach("driver", 1, 0), 17, "EEXIST");
    assert_eq!(attach("driver", 1, 1), 2, "ENOENT");
    assert_eq!(attach("g0", 1, 0), 2);
    assert_eq!(attach("driver", 2, 0), "attached");
    assert_eq!(attach("driver", 2, 1), 2);
    assert_eq!(attach("g0", 2, 0), "attached");
    daemon.down();
}

/// S-3: a domain's configuration and its later requests may be long.
#[test]
fn descriptions_may_be_long() {
    let mut plan = machine(1);
    let filler = "x".repeat(2 << 20);
    let config = json!({ "filler": filler, "word": "everything" });
    plan.domains[1].config = config.to_string();
    let daemon = Daemon::up(&plan);
    daemon.logs("g0: configured with everything\n");
    let order = json!({ "do": "id", "filler": &filler[..100_000] });
    assert_eq!(daemon.order("g0", order), 1);
    daemon.down();
    plan.domains[1].config = " ".repeat((16 << 20) + 1);
    let (_daemon, line) = Daemon::start(&plan);
    let error = line["error"].as_str().unwrap();
    assert!(
        error.contains("domain g0: bytes of configuration: 0 to 16777216, not 16777217"),
        "{error}"
    );
}

#[test]
fn the_console_is_in_the_log() {
    let daemon = Daemon::up(&machine(1));
    daemon.order("g0", json!({ "do": "print", "text": "hello\u{1b}[31m" }));
    for line in [
        "driver: up as Some(\"driver\")\n",
        "g0: hello\u{fffd}[31m\n",
    ] {
        daemon.logs(line);
    }
    daemon.down();
}

#[test]
fn the_start_waits_for_late_connections() {
    let mut plan = machine(1);
    plan.domains[1].config = json!({ "late": true }).to_string();
    let (daemon, line) = Daemon::start(&plan);
    assert_eq!(line["ready"], true, "{line}");
    println!("up after {} ms", line["up_ms"]);
    daemon.down();
}

#[test]
fn a_machine_with_32_guests_starts() {
    let plan = machine(32);
    let (daemon, line) = Daemon::start(&plan);
    assert_eq!(line["ready"], true, "{line}");
    daemon.down();
}

#[test]
fn errors_of_the_description_are_reported() {
    let error = |plan: &abi::machine::Machine| {
        let (mut daemon, line) = Daemon::start(plan);
        assert_eq!(daemon.child.wait().unwrap().code(), Some(1));
        assert!(!daemon.socket().exists());
        line["error"].as_str().unwrap_or_default().to_owned()
    };
    let mut twice = machine(1);
    twice.domains.push(domain("g0", Program::Guest));
    assert!(error(&twice).contains("two domains named g0"));
    let mut unknown = machine(1);
    unknown.connections[0].backend = "absent".into();
    assert!(error(&unknown).contains("absent"));
    let mut itself = machine(1);
    itself.connections[0].backend = "g0".into();
    assert!(error(&itself).contains("two different domains"));
    let mut missing = machine(1);
    with_file(&mut missing, 0, "/no/such/file".as_ref());
    assert!(error(&missing).contains("/no/such/file cannot be read"));
    let mut large = machine(1);
    large.domains[1].frames = u32::MAX;
    assert!(error(&large).contains("page frames: 1 to"));
    let mut none = machine(1);
    none.domains[1].frames = 0;
    assert!(error(&none).contains("page frames: 1 to"));
}
