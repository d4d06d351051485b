//! Real machines whose helpers die: domains continue, and the next helper takes over. When the core
//! dies, all processes die.

mod common;

use abi::machine::{ControlRequest, Device, Machine, Tap};
use common::{Daemon, eventually, is_process, kill, machine, signal};
use netdev::netns::Namespace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;
use testing::require;

/// Returns a machine with a driver domain and guests, all of which restart.
fn plan(guests: u16) -> Machine {
    let mut plan = machine(guests);
    for domain in &mut plan.domains {
        domain.restart_pause_ms = Some(5);
    }
    plan
}

/// Returns a machine like [`plan`]'s with one guest, and with a TAP of the driver domain in a
/// namespace.
fn plan_with_tap(place: &Namespace) -> Machine {
    let mut plan = plan(1);
    plan.domains[0].devices = vec![
        Device::Tap(Tap {
            ifname: "gw".into(),
            netns: Some(place.path().display().to_string()),
            mtu: 1500,
            queues: 1,
            ..Tap::default()
        }),
        Device::TapQueue,
    ];
    plan
}

/// Returns whether the TAP exists.
fn has_tap(place: &Namespace) -> bool {
    let text = place.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"));
    text.unwrap().unwrap().contains("gw:")
}

/// Returns the core's child process with this name. Waits until the process has the name, which a
/// new process gets shortly after its start.
fn helper(daemon: &Daemon, name: &str) -> i64 {
    let find = || testing::child_of(daemon.child.id().into(), name);
    let pid = testing::wait_for("the helper does not run", find);
    i64::try_from(pid).unwrap()
}

/// Kills a helper, and waits for its successor.
fn kill_helper(daemon: &Daemon, name: &str) {
    let before = helper(daemon, name);
    kill(before);
    eventually("the helper is restarted", || helper(daemon, name) != before);
}

/// Returns the status from the current manager or its successor.
fn status(daemon: &Daemon) -> Value {
    let mut status = Value::Null;
    eventually("a manager answers", || {
        let mut stream = daemon.connect();
        let mut answer = String::new();
        let written = stream.write_all(b"{\"op\":\"status\"}\n");
        let read = std::io::BufRead::read_line(&mut std::io::BufReader::new(stream), &mut answer);
        status = serde_json::from_str(&answer).unwrap_or_default();
        written.is_ok() && read.is_ok() && status["domains"].is_array()
    });
    status
}

fn of<'a>(status: &'a Value, name: &str) -> &'a Value {
    let mut domains = status["domains"].as_array().unwrap().iter();
    domains.find(|domain| domain["name"] == name).unwrap()
}

#[test]
fn a_managers_death_disturbs_no_domain() {
    let daemon = Daemon::up(&plan(2));
    let before = status(&daemon);
    for round in 0..5 {
        daemon.order("g0", json!({ "do": "fill", "frame": 3, "byte": round }));
        kill_helper(&daemon, "grantway-manager");
        let now = status(&daemon);
        for name in ["driver", "g0", "g1"] {
            assert_eq!(of(&now, name)["pid"], of(&before, name)["pid"]);
            assert_eq!(of(&now, name)["state"], "running");
        }
        assert!(!now["up_took_ns"].is_null());
        let read = json!({ "do": "read", "frame": 3 });
        assert_eq!(daemon.order("g0", read), round);
        // The next manager reads the guest's console.
        daemon.order(
            "g1",
            json!({ "do": "print", "text": format!("round {round}") }),
        );
        eventually("the log contains the line", || {
            daemon.log().contains(&format!("g1: round {round}\n"))
        });
    }
    daemon.audit();
    daemon.down();
}

#[test]
fn a_domain_that_died_without_a_manager_restarts() {
    let daemon = Daemon::up(&plan(1));
    let before = status(&daemon);
    let pid = |name: &str| of(&before, name)["pid"].as_i64().unwrap();
    kill(helper(&daemon, "grantway-manager"));
    kill(pid("driver"));
    kill(pid("g0"));
    for name in ["driver", "g0"] {
        let mut now = Value::Null;
        eventually("the domain is restarted", || {
            now = of(&status(&daemon), name).clone();
            now["state"] == "running" && now["pid"] != pid(name)
        });
        assert_eq!(now["restarts"]["count"], 1, "{now}");
    }
    kill_helper(&daemon, "grantway-manager");
    let kept = status(&daemon);
    assert_eq!(of(&kept, "g0")["restarts"]["count"], 1, "{kept}");
    daemon.down();
}

#[test]
fn restart_requests_restart_or_explain() {
    let mut machine = plan(2);
    machine.domains[2].restart_pause_ms = None;
    let daemon = Daemon::up(&machine);
    let before = status(&daemon);
    let restart = |domain: &str| {
        daemon.ask(&ControlRequest::Restart {
            domain: domain.into(),
        })
    };
    for name in ["driver", "g0"] {
        for _ in 0..3 {
            let answer = restart(name);
            assert_eq!(answer["domain"], name, "{answer}");
            let now = status(&daemon);
            assert_eq!(of(&now, name)["id"], answer["id"]);
            assert_ne!(of(&now, name)["pid"], of(&before, name)["pid"]);
            assert_eq!(of(&now, name)["state"], "running");
        }
    }
    let refused = restart("g1")["error"].to_string();
    assert!(refused.contains("restart = false"), "{refused}");
    let unknown = restart("g7")["error"].to_string();
    assert!(unknown.contains("domain g7 does not exist"), "{unknown}");
    daemon.audit();
    daemon.down();
}

#[test]
fn the_next_netd_adopts_all_devices() {
    require!(tap);
    let place = Namespace::new().unwrap();
    let daemon = Daemon::up(&plan_with_tap(&place));
    assert!(has_tap(&place));
    let before = status(&daemon);
    for _ in 0..3 {
        kill_helper(&daemon, "grantway-netd");
        assert!(has_tap(&place));
        assert_eq!(
            of(&status(&daemon), "driver")["pid"],
            of(&before, "driver")["pid"]
        );
    }
    // The next driver domain gets the same TAP.
    let answer = daemon.ask(&ControlRequest::Restart {
        domain: "driver".into(),
    });
    assert_eq!(answer["domain"], "driver", "{answer}");
    assert!(has_tap(&place));
    daemon.down();
    eventually("the TAP is removed", || !has_tap(&place));
}

#[test]
fn a_restart_without_a_manager_restores_devices() {
    require!(tap);
    let place = Namespace::new().unwrap();
    let daemon = Daemon::up(&plan_with_tap(&place));
    let before = of(&status(&daemon), "driver")["pid"].clone();
    kill(helper(&daemon, "grantway-manager"));
    kill(before.as_i64().unwrap());
    eventually("the domain is restarted", || {
        let now = of(&status(&daemon), "driver").clone();
        now["state"] == "running" && now["pid"] != before
    });
    assert!(has_tap(&place));
    daemon.down();
}

/// netd's report survives a manager that dies before it has read the report.
#[test]
fn the_next_manager_learns_of_a_lost_namespace() {
    require!(tap);
    let place = Namespace::new().unwrap();
    let daemon = Daemon::up(&plan_with_tap(&place));
    let manager = helper(&daemon, "grantway-manager");
    // The manager receives the report, but does not read it.
    signal(manager, Signal::STOP);
    drop(place);
    // netd checks twice per second.
    std::thread::sleep(Duration::from_secs(2));
    kill(manager);
    let line = "driver: the network namespace of an interface was removed\n";
    for time in 1..3 {
        eventually("each manager logs it", || {
            daemon.log().matches(line).count() == time
        });
        kill_helper(&daemon, "grantway-manager");
    }
    daemon.down();
}

#[test]
fn a_helper_that_keeps_dying_restarts_with_pauses() {
    let daemon = Daemon::up(&plan(1));
    for name in ["grantway-manager", "grantway-netd", "grantway-manager"] {
        for _ in 0..4 {
            kill_helper(&daemon, name);
        }
    }
    assert_eq!(of(&status(&daemon), "g0")["state"], "running");
    daemon.down();
}

/// A domain that exits at the shutdown is not restarted, although it is configured to restart.
#[test]
fn domains_that_end_at_shutdown_are_not_restarted() {
    let mut daemon = Daemon::up(&plan(12));
    let core = Pid::from_child(&daemon.child);
    kill_process(core, Signal::TERM).unwrap();
    let code = daemon.child.wait().unwrap();
    let log = daemon.log();
    assert!(code.success(), "{code} {log}");
    assert!(!log.contains("started again"), "{log}");
}

#[test]
fn all_processes_die_with_the_core() {
    let mut daemon = Daemon::up(&plan(3));
    let mut pids = daemon.processes();
    for name in ["grantway-manager", "grantway-netd"] {
        pids.push(helper(&daemon, name));
    }
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    eventually("all processes have ended", || {
        !pids.iter().any(|pid| is_process(*pid))
    });
}

/// Returns a field of `/proc/PID/status`.
fn status_field(pid: i64, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut lines = text.lines().filter_map(|line| line.split_once(":\t"));
    let found = lines.find(|(of, _)| *of == name);
    found.unwrap().1.to_owned()
}

#[test]
fn helpers_have_only_the_rights_they_need() {
    require!(root);
    let daemon = Daemon::up(&plan(1));
    let manager = helper(&daemon, "grantway-manager");
    let netd = helper(&daemon, "grantway-netd");
    // The machine needs no device, so it may be ready before netd has confined itself.
    eventually("both are confined", || {
        [manager, netd]
            .iter()
            .all(|pid| status_field(*pid, "Seccomp") == "2")
    });
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
        assert_eq!(
            u64::from_str_radix(&status_field(manager, set), 16),
            Ok(0),
            "{set}"
        );
    }
    // CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN, CAP_BPF.
    let kept = [12, 13, 21, 39]
        .iter()
        .fold(0u64, |set, cap| set | 1 << cap);
    let of_netd = u64::from_str_radix(&status_field(netd, "CapPrm"), 16).unwrap();
    assert_eq!(of_netd & !kept, 0, "{of_netd:x}");
    for pid in [manager, netd] {
        assert_eq!(status_field(pid, "NoNewPrivs"), "1");
    }
    // CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_PERFMON, CAP_BPF.
    let kept = [0, 1, 12, 19, 38, 39]
        .iter()
        .fold(0u64, |set, cap| set | 1 << cap);
    let broker = testing::child_of(netd as u64, "netd-broker").unwrap() as i64;
    let of_broker = u64::from_str_radix(&status_field(broker, "CapPrm"), 16).unwrap();
    assert_eq!(of_broker & !kept, 0, "{of_broker:x}");
    let lacks = status(&daemon)["missing"].to_string();
    if !lacks.contains("a separate user for the manager") {
        let status = status(&daemon);
        let domains = ["driver", "g0"].map(|name| of(&status, name)["pid"].as_i64().unwrap());
        let all = [
            daemon.child.id().into(),
            manager,
            netd,
            domains[0],
            domains[1],
        ];
        let users: BTreeSet<String> = all.iter().map(|pid| status_field(*pid, "Uid")).collect();
        assert_eq!(users.len(), all.len(), "{users:?}");
        let own = users
            .iter()
            .map(|user| user.split('\t').next().unwrap().parse().unwrap());
        let own: Vec<u32> = own.filter(|user| *user != 0).collect();
        let range = 0x7780_0000..0x7f80_0000;
        assert!(
            own.len() == 4 && own.iter().all(|user| range.contains(user)),
            "{own:?}"
        );
    }
    daemon.down();
}
