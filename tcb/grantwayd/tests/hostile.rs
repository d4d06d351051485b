//! Real monitors with hostile domains and clients, and with dying domains: the monitor survives,
//! serves the other domains and clients, and leaks nothing.

mod common;

use abi::hypercall::{HypercallKind, OPS_MAX, TapControl};
use abi::machine::{ControlRequest, Device, Tap};
use common::{Daemon, eventually, is_process, kill, machine};
use netdev::netns::Namespace;
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};
use testing::{Tracer, require, skip};

const SECOND: Duration = Duration::from_secs(1);
/// Burst and rate per second of a TAP's steering changes (VMQ-17).
const STEERS_BURST: u64 = 4 * abi::layout::fd::CONNECTIONS_MAX as u64;
const STEERS_PER_SECOND: f64 = 4096.0;

#[test]
fn a_driver_killed_with_pages_mapped_leaves_nothing() {
    let daemon = Daemon::up(&machine(2));
    let table = daemon.share();
    let driver = daemon.domain_status("driver");
    kill(driver["pid"].as_i64().unwrap());
    assert_eq!(daemon.await_exit("driver"), "killed by signal 9");
    assert_eq!(daemon.domain_audit("g0")["granted"], 0);
    assert!(!is_process(driver["agent_pid"].as_i64().unwrap()));
    // The guests continue, their connections report the death, and the table can be ended.
    eventually("the connection's other end is unknown", || {
        daemon.other_end("g0").1 == 0
    });
    assert_eq!(daemon.end_table("g0", table), 0);
    let refused = daemon.order("driver", json!({ "do": "id" }));
    assert_eq!(refused["error"], "the domain is not running");
    daemon.down();
}

/// G-17: pins end with the process, not after a timeout.
#[test]
fn an_unkillable_driver_keeps_its_mappings() {
    require!(root, tool("python3"));
    let daemon = Daemon::up(&machine(1));
    daemon.share();
    let pid = daemon.domain_status("driver")["pid"].as_i64().unwrap();
    let tracer = Tracer::of(pid);
    kill(pid);
    eventually("the audit reports the lingering process", || {
        daemon.domain_audit("driver")["lingers"] == true
    });
    let state = daemon.domain_status("driver")["state"].clone();
    assert_eq!(state, "killed by signal 9; its process has not ended yet");
    assert_eq!(daemon.domain_audit("driver")["mapped"], 1);
    assert_eq!(daemon.domain_audit("g0")["granted"], 1);
    assert_eq!(
        daemon.order("g0", json!({ "do": "id" })),
        1,
        "other domains are served"
    );
    tracer.release();
    daemon.await_exit("driver");
    assert_eq!(daemon.domain_audit("g0")["granted"], 0);
    assert_eq!(daemon.domain_audit("driver")["lingers"], false);
    daemon.down();
}

/// VMQ-17: a driver domain that exceeds the steering rate is rejected until it has budget again.
/// Its successor has the full budget.
#[test]
fn steering_above_the_rate_is_rejected() {
    require!(tap);
    let namespace = Namespace::new().unwrap();
    let mac = [2, 0, 0, 0, 0, 1];
    let mut plan = machine(1);
    plan.domains[0].restart_pause_ms = Some(20);
    plan.domains[0].devices = vec![
        Device::Tap(Tap {
            ifname: "wire".into(),
            netns: Some(namespace.path().display().to_string()),
            mtu: 1500,
            tx_queue: 100,
            queues: 1,
            ..Tap::default()
        }),
        Device::TapQueue,
    ];
    let (daemon, line) = Daemon::start(&plan);
    let lacks = daemon.log().contains("cannot steer frames");
    if lacks || line["ready"] != true {
        return skip(format!("steering: {line} {}", daemon.log()));
    }
    let [word, other] = TapControl::Steer {
        mac,
        queue: Some(0),
    }
    .encode();
    // Each call has the maximum number of operations.
    let steer = |calls: u64| {
        let words = [0, word, other];
        let each = [
            json!({ "kind": HypercallKind::DeviceControl as u32, "ops": OPS_MAX, "words": words }),
        ];
        daemon.order(
            "driver",
            json!({ "do": "time", "calls": calls, "each": each }),
        )
    };
    // Uses a part of the burst. Repeats a request that fails because netd gets no CPU time.
    let use_burst = || eventually("the burst is accepted", || steer(10).is_u64());
    // Steers until a call is rejected. A machine that is too slow to exceed the limit is never
    // rejected.
    let flood = || {
        let (start, mut made) = (Instant::now(), 0);
        while steer(10) != "refused" && made < 20 * STEERS_BURST {
            made += 10 * OPS_MAX as u64;
            let most = STEERS_BURST + (STEERS_PER_SECOND * start.elapsed().as_secs_f64()) as u64;
            assert!(made <= most, "{made} of {most}");
        }
    };
    use_burst();
    flood();
    let answer_of = |word: u64| {
        let ops = [[0, word, other]];
        let call = json!({ "do": "call", "kind": HypercallKind::DeviceControl as u32, "ops": ops });
        daemon.order("driver", call)["ops"][0][5].clone()
    };
    eventually("steering works again", || answer_of(word) == 0);
    flood();
    let before = daemon.domain_status("driver");
    kill(before["pid"].as_i64().unwrap());
    eventually("the driver domain is replaced", || {
        let now = daemon.domain_status("driver");
        now["state"] == "running" && now["id"] != before["id"]
    });
    use_burst();
    daemon.down();
}

#[test]
fn a_domain_dies_with_its_agent() {
    let daemon = Daemon::up(&machine(1));
    daemon.share();
    kill(
        daemon.domain_status("driver")["agent_pid"]
            .as_i64()
            .unwrap(),
    );
    daemon.await_exit("driver");
    daemon.down();
}

#[test]
fn a_silent_agent_costs_only_its_domain() {
    let daemon = Daemon::up(&machine(2));
    let table = daemon.share();
    daemon.stop_agent("driver");
    let end = json!({ "do": "call", "kind": HypercallKind::TableEnd as u32, "ops": [[table.0]] });
    let _answer = daemon.begin("driver", &end);
    // The monitor serves other domains in the meantime.
    assert_eq!(daemon.order("g1", json!({ "do": "id" })), 2);
    daemon.status();
    assert_eq!(
        daemon.await_exit("driver"),
        "killed: the agent did not answer in time"
    );
    assert_eq!(daemon.domain_audit("g0")["granted"], 0);
    daemon.down();
}

#[test]
fn all_processes_die_with_the_monitor() {
    let mut daemon = Daemon::up(&machine(4));
    daemon.share();
    let pids = daemon.processes();
    assert_eq!(pids.len(), 10);
    daemon.child.kill().unwrap();
    let start = Instant::now();
    // Prints the delay. The sandbox's tests, which can retry, assert it.
    eventually("all processes have ended", || {
        !pids.iter().any(|pid| is_process(*pid))
    });
    println!("all processes ended after {:?}", start.elapsed());
}

#[test]
fn invalid_calls_affect_no_other_domain() {
    let daemon = Daemon::up(&machine(2));
    daemon.share();
    daemon.order("g1", json!({ "do": "storm", "calls": 10_000 }));
    let bad = [[u64::MAX; 6], [1 << 63; 6], [0; 6]];
    for kind in 0..15 {
        for count in [0, 1, 3, 4096, u32::MAX] {
            let call = json!({ "do": "call", "kind": kind, "ops": bad, "count": count });
            daemon.order("g1", call);
        }
    }
    assert_eq!(
        daemon.order("driver", json!({ "do": "read-slot", "slot": 0 })),
        7
    );
    assert_eq!(daemon.audit()["leaked"], 0);
    daemon.down();
}

/// H-6: a domain that calls without waiting for results is served at the rate of its budget, and
/// the main thread remains idle.
#[test]
fn a_flood_of_calls_delays_no_other_domain() {
    const UNITS: f64 = (16 << 20) as f64;
    const CALL: f64 = 512.0;
    let daemon = Daemon::up(&machine(2));
    let calls = || daemon.domain_status("g0")["hypercalls"].as_f64().unwrap();
    for kind in [HypercallKind::Ready as u32, 999] {
        let (start, before) = (Instant::now(), calls());
        std::thread::scope(|scope| {
            let flood = json!({ "do": "hammer", "kind": kind, "ms": 1500 });
            scope.spawn(|| daemon.order("g0", flood));
            while start.elapsed() < SECOND {
                assert_eq!(daemon.order("g1", json!({ "do": "id" })), 2);
            }
        });
        // The burst adds the units of a quarter of a second.
        let most = (start.elapsed().as_secs_f64() + 0.25) * UNITS / CALL;
        let made = calls() - before;
        assert!(made <= most, "{made} of {most}");
    }
    let worker_ns = daemon.domain_status("g0")["worker_cpu_ns"].as_u64();
    assert!(worker_ns > Some(0), "the worker's CPU time is reported");
    daemon.down();
}

#[test]
fn overwriting_info_affects_only_its_domain() {
    for byte in [0, 0xff, 0x41] {
        let daemon = Daemon::up(&machine(2));
        let scribble = json!({ "do": "scribble", "byte": byte });
        let request = ControlRequest::Relay {
            domain: "g1".into(),
            request: scribble.to_string(),
        };
        let answer = daemon.ask(&request);
        // The domain's reply, if it sends one, may also be overwritten.
        assert!(
            answer["reply"].is_string() || answer["error"].is_string(),
            "{answer}"
        );
        assert_eq!(daemon.order("g0", json!({ "do": "id" })), 1);
        daemon.audit();
        kill(daemon.domain_status("g1")["pid"].as_i64().unwrap());
        daemon.await_exit("g1");
        daemon.down();
    }
}

#[test]
fn a_reply_of_false_length_is_rejected() {
    let daemon = Daemon::up(&machine(1));
    for claim in [u32::MAX, 95 * 4096 + 1] {
        let answer = daemon.order("g0", json!({ "do": "id", "claim": claim }));
        assert_eq!(answer["error"], "the domain's reply is invalid");
    }
    let whole = json!({ "do": "id", "claim": 95 * 4096 }).to_string();
    let answer = daemon.ask(&ControlRequest::Relay {
        domain: "g0".into(),
        request: whole,
    });
    assert_eq!(answer["reply"].as_str().unwrap().len(), 95 * 4096);
    daemon.down();
}

#[test]
fn a_console_flood_is_dropped() {
    let daemon = Daemon::up(&machine(2));
    let flood = json!({ "do": "flood", "lines": 20_000 }).to_string();
    let request = ControlRequest::Relay {
        domain: "g0".into(),
        request: flood,
    };
    // The flood has 2 MB: excess output is lost, and no domain waits, not even the writer.
    let answer = daemon.ask(&request);
    assert_eq!(answer["reply"], "\"done\"", "{answer}");
    assert_eq!(daemon.order("g1", json!({ "do": "id" })), 2);
    assert!(daemon.log().len() < 1 << 20);
    daemon.down();
}

#[test]
fn a_domain_that_is_never_ready_fails_the_start() {
    let mut plan = machine(1);
    plan.domains[1].config = json!({ "silent": true }).to_string();
    let (mut daemon, line) = Daemon::start(&plan);
    let error = line["error"].as_str().unwrap();
    assert!(
        error.contains("g0 did not start: killed: it was not ready within 5 s"),
        "{error}"
    );
    assert!(error.contains("last output: up as"), "{error}");
    assert_eq!(daemon.child.wait().unwrap().code(), Some(1));
}

#[test]
fn a_domain_that_hangs_is_killed() {
    let daemon = Daemon::up(&machine(1));
    daemon.share();
    daemon.order("driver", json!({ "do": "hang" }));
    eventually("the domain is killed", || {
        daemon.domain_status("driver")["alive"] == false
    });
    assert_eq!(daemon.await_exit("driver"), "killed: no heartbeat for 5 s");
    daemon.logs("grantwayd: driver: killed: no heartbeat");
    daemon.down();
}

#[test]
fn the_reason_of_an_end_is_reported() {
    let daemon = Daemon::up(&machine(2));
    daemon.order("g0", json!({ "do": "exit", "code": 5 }));
    assert_eq!(daemon.await_exit("g0"), "exited with code 5");
    daemon.down();
}

#[test]
fn clients_cannot_block_the_monitor() {
    let daemon = Daemon::up(&machine(1));
    // The clients send an incomplete line, an endless line, invalid requests, and pipelined
    // requests.
    let mut half = daemon.connect();
    half.write_all(b"{\"op\":").unwrap();
    let mut endless = daemon.connect();
    while endless.write_all(&[b'x'; 4096]).is_ok() {}
    for line in ["\n", "{}\n", "[]\n", "{\"op\":\"relay\"}\n", "\u{0}\n"] {
        let answer = daemon.ask_line(line.as_bytes());
        assert!(answer["error"].is_string(), "{line:?}: {answer}");
    }
    let mut many = daemon.connect();
    many.write_all(b"{\"op\":\"grants\"}\n{\"op\":\"nonsense\"}\n{\"op\":\"status\"}\n")
        .unwrap();
    let lines: Vec<String> = BufReader::new(many)
        .lines()
        .take(3)
        .map(Result::unwrap)
        .collect();
    assert!(lines[0].contains("leaked") && lines[1].contains("error"));
    assert!(lines[2].contains("domains"));
    // Other clients never read their answers.
    let mut silent_readers = Vec::new();
    for _ in 0..20 {
        let mut stream = daemon.connect();
        stream
            .write_all("{\"op\":\"grants\"}\n".repeat(1000).as_bytes())
            .unwrap();
        silent_readers.push(stream);
    }
    assert_eq!(daemon.order("g0", json!({ "do": "id" })), 1);
    drop(silent_readers);
    let unknown = daemon.order("absent", json!({}));
    assert_eq!(unknown["error"], "domain absent does not exist");
    let long = json!({ "text": "x".repeat(120_000) });
    assert_eq!(
        daemon.order("g0", long)["error"],
        "the request is longer than 118784 bytes"
    );
    daemon.down();
}

#[test]
fn concurrent_requests_to_a_domain_are_answered() {
    let daemon = Daemon::up(&machine(1));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(daemon.order("g0", json!({ "do": "id" })), 1);
                }
            });
        }
    });
    daemon.down();
}

#[test]
fn signals_shut_the_machine_down() {
    use rustix::process::{Pid, Signal, kill_process};
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut daemon = Daemon::up(&machine(2));
        let pids = daemon.processes();
        kill_process(Pid::from_child(&daemon.child), signal).unwrap();
        assert!(daemon.child.wait().unwrap().success());
        assert!(!daemon.socket().exists());
        assert!(!pids.iter().any(|pid| is_process(*pid)));
    }
}

#[test]
fn it_runs_unprivileged_in_a_user_namespace() {
    require!(userns, tool("setpriv"));
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "unshare",
        "-Ur",
    ]);
    command.arg(common::core());
    let (daemon, line) = Daemon::start_as(&machine(2), command);
    assert_eq!(line["ready"], true, "{line}");
    // The client must run as the same user. Credentials belong to a thread, so the client has a
    // separate thread.
    let as_nobody = move || {
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        daemon.share();
        println!("missing: {}", daemon.status()["missing"]);
        kill(daemon.domain_status("driver")["pid"].as_i64().unwrap());
        daemon.await_exit("driver");
        daemon.down();
    };
    std::thread::spawn(as_nobody).join().unwrap();
}

#[test]
fn another_users_client_is_rejected() {
    let daemon = Daemon::up(&machine(1));
    let all_users = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    let mode = std::fs::metadata(daemon.socket()).unwrap().permissions();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777,
        0o600
    );
    std::fs::set_permissions(daemon.socket(), all_users).unwrap();
    require!(root);
    let socket = daemon.socket();
    let as_nobody = move || {
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        let _ = stream.write_all(b"{\"op\":\"status\"}\n");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    };
    std::thread::spawn(as_nobody).join().unwrap();
    daemon.down();
}

/// Returns a process's open descriptors: file names, and the types of other objects without their
/// numbers.
fn descriptors(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let kind = |link: std::path::PathBuf| {
        let name = link.file_name().unwrap().to_str().unwrap();
        let is_number = |c: char| c.is_ascii_digit() || "[]".contains(c);
        name.trim_end_matches(is_number).to_owned()
    };
    let mut kinds: Vec<String> = links.map(kind).collect();
    kinds.sort();
    kinds
}

/// The monitor has the same descriptors open for any number of dead domains. So the dead domains'
/// namespaces no longer exist, because no process and no descriptor refers to them.
#[test]
fn dead_domains_leave_no_descriptors_or_namespaces() {
    let machines = [1, 3].map(|guests| Daemon::up(&machine(guests)));
    for daemon in &machines {
        daemon.share();
        let alive = descriptors(daemon.child.id()).len();
        let status = daemon.status();
        let domains = status["domains"].as_array().unwrap();
        for domain in domains {
            kill(domain["pid"].as_i64().unwrap());
        }
        for domain in domains {
            daemon.await_exit(domain["name"].as_str().unwrap());
            for pid in ["pid", "agent_pid"] {
                assert!(!is_process(domain[pid].as_i64().unwrap()));
            }
        }
        let left = descriptors(daemon.child.id());
        assert!(left.len() < alive, "{left:?}");
    }
    let [few, many] = &machines;
    // The monitor closes a client's socket shortly after the answer.
    eventually("both monitors have the same descriptors open", || {
        descriptors(few.child.id()) == descriptors(many.child.id())
    });
    machines.into_iter().for_each(Daemon::down);
}

#[test]
fn deaths_in_any_state_leak_nothing() {
    // Each machine dies in another state: with mapped pages, during a hypercall, or while it
    // prints.
    for round in 0..20 {
        let mut daemon = Daemon::up(&machine(2));
        daemon.share();
        let orders = [
            json!({ "do": "storm", "calls": 100_000 }),
            json!({ "do": "id" }),
        ];
        let answer = daemon.begin("driver", &orders[round % 2]);
        let name = ["driver", "g0"][round / 2 % 2];
        kill(daemon.domain_status(name)["pid"].as_i64().unwrap());
        if name == "driver" {
            daemon.await_exit(name);
            assert_eq!(daemon.domain_audit("g0")["granted"], 0);
        }
        daemon.audit();
        let pids = daemon.processes();
        if round % 4 == 3 {
            daemon.child.kill().unwrap();
            eventually("all processes have ended", || {
                !pids.iter().any(|pid| is_process(*pid))
            });
        } else {
            drop(answer);
            daemon.down();
        }
    }
}
