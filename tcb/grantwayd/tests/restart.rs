//! Real monitors whose driver domain dies and is restarted (`specs/grants.md`, R-1 … R-8): the new
//! domain has the same connections, and none of its predecessor's resources remain.

mod common;

use abi::hypercall::{CreateGrantOp, HypercallKind};
use abi::machine::{Device, Machine, Netdev, Program, Tap, Xdp};
use abi::version::VERSION;
use abi::{DomId, GrantRef, Handle, Slot};
use common::{Daemon, eventually, is_process, kill, machine};
use netdev::netns::Namespace;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Returns a machine with a driver domain that restarts, and `guests` guests.
fn plan(guests: u16) -> Machine {
    let mut plan = machine(guests);
    plan.domains[0].restart_pause_ms = Some(5);
    plan
}

fn driver(daemon: &Daemon) -> Value {
    daemon.domain_status("driver")
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Kills the driver domain, and waits until its successor is connected.
fn kill_driver(daemon: &Daemon) -> Value {
    let before = driver(daemon);
    kill(before["pid"].as_i64().unwrap());
    await_restart(daemon, &before)
}

fn await_restart(daemon: &Daemon, before: &Value) -> Value {
    let mut now = Value::Null;
    eventually("the driver domain is restarted", || {
        now = driver(daemon);
        now["state"] == "running"
            && now["id"] != before["id"]
            && !now["restarts"]["connected_ns"].is_null()
    });
    now
}

#[test]
fn a_restarted_driver_inherits_only_connections() {
    let daemon = Daemon::up(&plan(2));
    let table = daemon.share();
    daemon.order("driver", json!({ "do": "fill", "frame": 5, "byte": 9 }));
    let first = driver(&daemon);
    assert_eq!(daemon.other_end("g0"), (0, 4));
    let second = kill_driver(&daemon);
    assert_eq!((&first["id"], &second["id"]), (&json!(0), &json!(3)));
    assert!(!is_process(first["pid"].as_i64().unwrap()));
    assert!(!is_process(first["agent_pid"].as_i64().unwrap()));
    let restarts = &second["restarts"];
    assert_eq!(
        (&restarts["count"], &restarts["in_a_row"]),
        (&json!(1), &json!(1))
    );
    assert!(count(&restarts["ready_ns"]) <= count(&restarts["connected_ns"]));
    assert_eq!(daemon.order("driver", json!({ "do": "id" })), 3);
    // the new domain has the dead domain's frames, but no mapping and none of its grants.
    assert_eq!(
        daemon.order("driver", json!({ "do": "read", "frame": 5 })),
        9
    );
    let slot = json!({ "do": "read-slot", "slot": 0 });
    assert_eq!(daemon.order("driver", slot), "fault");
    assert_eq!(
        daemon.bind(table),
        -4,
        "the table belongs to the dead domain"
    );
    assert_eq!(daemon.domain_audit("g0")["granted"], 0);
    assert_eq!(daemon.end_table("g0", table), 0);
    // the connection is the same, and the guest can attach the new doorbell once.
    assert_eq!(daemon.other_end("g0"), (3, 4));
    daemon.share();
    for line in [
        "grantwayd: driver: killed by signal 9\n",
        "grantwayd: driver: started again (restart 1): ready after ",
        "grantwayd: driver: connected again after ",
    ] {
        daemon.logs(line);
    }
    eventually("both processes have logged a line", || {
        daemon.log().matches("driver: up as").count() == 2
    });
    daemon.down();
}

#[test]
fn a_new_domains_doorbell_can_be_attached() {
    let daemon = Daemon::up(&plan(1));
    let attach =
        |domain: &str| daemon.order(domain, json!({ "do": "attach", "kind": 2, "index": 0 }));
    for _ in 0..3 {
        assert_eq!(attach("g0"), "attached");
        assert_eq!(attach("g0"), 17, "EEXIST");
        assert_eq!(attach("driver"), "attached");
        kill_driver(&daemon);
    }
    daemon.down();
}

#[test]
fn a_driver_restarts_after_every_kind_of_exit() {
    let daemon = Daemon::up(&plan(1));
    for (n, how) in ["exit", "agent", "hang"].into_iter().enumerate() {
        let before = driver(&daemon);
        if how == "agent" {
            kill(before["agent_pid"].as_i64().unwrap());
        } else {
            daemon.order("driver", json!({ "do": how, "code": 7 }));
        }
        let now = await_restart(&daemon, &before);
        assert_eq!(now["restarts"]["count"], n as u64 + 1, "{how}: {now}");
        assert_eq!(daemon.order("g0", json!({ "do": "id" })), 1);
    }
    daemon.logs("driver: killed: no heartbeat for 5 s\n");
    daemon.down();
}

#[test]
fn exhausted_collateral_costs_one_restart() {
    use abi::counted::Revocation;
    use abi::hypercall::{BindOp, RevokeOp};
    let daemon = Daemon::up(&plan(2));
    for round in 0..3u64 {
        let before = driver(&daemon);
        let made = daemon.calls("g0", HypercallKind::TableCreate, &[[0, 4, 0]]);
        let table = Handle(count(&made[0][1]) as u32);
        assert_eq!(made[0][5], 0, "{made:?}");
        let bind = BindOp {
            granter: DomId(1),
            table,
            first: Slot(0),
            tables: Slot(8),
            entries: 4,
        };
        let bound = daemon.calls("driver", HypercallKind::TableBind, &[bind.encode()]);
        assert_eq!(bound[0][5], 0, "{bound:?}");
        for index in 0..3u32 {
            let claim = json!({ "do": "poke", "slot": 9, "offset": index * 4, "value": 1 });
            assert_eq!(daemon.order("driver", claim), "done");
            let (frame, readonly) = (3 + index, false);
            let create = CreateGrantOp {
                table,
                index,
                frame,
                readonly,
                io: false,
            }
            .encode();
            let made = daemon.calls("g0", HypercallKind::GrantCreate, &[create]);
            let gref = GrantRef(count(&made[0][3]) as u32);
            let how = Revocation::Force;
            let revoke = RevokeOp { table, gref, how }.encode();
            let done = daemon.calls("g0", HypercallKind::GrantRevoke, &[revoke]);
            assert_eq!(done[0][5], 0, "force always succeeds");
        }
        let now = await_restart(&daemon, &before);
        assert_eq!(now["restarts"]["count"], round + 1);
        assert_eq!(daemon.domain_audit("driver")["collateral_used"], 0);
        assert_eq!(daemon.other_end("g1").1, 4);
        let ended = daemon.calls("g0", HypercallKind::TableEnd, &[[u64::from(table.0), 0, 0]]);
        assert_eq!(ended[0][5], 0, "a table for a dead user can be ended");
    }
    daemon.logs("it keeps revoked grants in use");
    daemon.down();
}

/// Returns the numbers of the monitor's descriptors, threads, mappings and children.
fn resource_counts(daemon: &Daemon) -> [usize; 4] {
    let pid = daemon.child.id();
    let entries = |what: &str| {
        std::fs::read_dir(format!("/proc/{pid}/{what}"))
            .unwrap()
            .count()
    };
    let lines = |what: &str| std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap();
    [
        entries("fd"),
        entries("task"),
        lines("maps")
            .lines()
            .filter(|line| line.contains("memfd:"))
            .count(),
        lines(&format!("task/{pid}/children"))
            .split_whitespace()
            .count(),
    ]
}

/// Returns the resource counts once they are constant: all previous clients have disconnected.
fn constant_counts(daemon: &Daemon) -> [usize; 4] {
    let mut last = [0; 4];
    eventually("the monitor's resources are constant", || {
        std::thread::sleep(Duration::from_millis(50));
        let now = resource_counts(daemon);
        std::mem::replace(&mut last, now) == now
    });
    last
}

#[test]
fn a_hundred_kills_in_a_row_leave_nothing() {
    let mut plan = plan(4);
    let file = tempfile::NamedTempFile::new().unwrap();
    common::with_file(&mut plan, 0, file.path());
    let daemon = Daemon::up(&plan);
    kill_driver(&daemon);
    let before = constant_counts(&daemon);
    let start = Instant::now();
    for round in 0..100u64 {
        let table = daemon.share();
        if round % 3 == 0 {
            // Kill the new process before it is ready.
            let old = driver(&daemon);
            kill(old["pid"].as_i64().unwrap());
            let mut now = Value::Null;
            eventually("a new process", || {
                now = driver(&daemon);
                now["id"] != old["id"] && now["pid"] != 0
            });
            let _may_have_exited = rustix::process::kill_process(
                rustix::process::Pid::from_raw(now["pid"].as_i64().unwrap() as i32).unwrap(),
                rustix::process::Signal::KILL,
            );
            await_restart(&daemon, &now);
        } else {
            kill_driver(&daemon);
        }
        assert_eq!(daemon.end_table("g0", table), 0);
        let audit = daemon.audit();
        assert_eq!(audit["domains"].as_array().unwrap().len(), 5, "{audit}");
    }
    println!("100 restarts in {:?}", start.elapsed());
    let mut now = [0; 4];
    let mut has_shrunk = || {
        now = resource_counts(&daemon);
        now.iter().zip(before).all(|(now, before)| *now <= before)
    };
    testing::wait_for("the monitor holds more than before", || {
        has_shrunk().then_some(())
    });
    assert!(count(&driver(&daemon)["restarts"]["count"]) >= 100);
    for guest in 0..4 {
        let id = daemon.order(&format!("g{guest}"), json!({ "do": "id" }));
        assert_eq!(id, guest + 1);
    }
    daemon.down();
}

#[test]
fn a_dead_or_silent_guest_delays_no_other() {
    let daemon = Daemon::up(&plan(3));
    // The dead guest does not close its end, so the new driver domain still finds it connected.
    let before = driver(&daemon);
    kill(before["pid"].as_i64().unwrap());
    kill(daemon.domain_status("g0")["pid"].as_i64().unwrap());
    let now = await_restart(&daemon, &before);
    assert_eq!(now["restarts"]["count"], 1);
    daemon.await_exit("g0");
    for guest in ["g1", "g2"] {
        assert_eq!(daemon.other_end(guest), (4, 4));
    }
    let closed = daemon.calls("g1", HypercallKind::ConnectSet, &[[0, 6, 0]]);
    assert_eq!(closed[0][5], 0);
    let old = driver(&daemon);
    kill(old["pid"].as_i64().unwrap());
    eventually("ready without the unresponsive guest", || {
        let now = driver(&daemon);
        now["id"] != old["id"] && now["state"] == "running" && daemon.other_end("g2").1 == 4
    });
    assert!(driver(&daemon)["restarts"]["connected_ns"].is_null());
    daemon.down();
}

#[test]
fn backed_off_restarts_do_not_block_shutdown() {
    let mut plan = machine(1);
    plan.domains[0].restart_pause_ms = Some(60_000);
    let daemon = Daemon::up(&plan);
    let program = daemon.dir.path().join("driver");
    // From now on, the start of the driver domain fails.
    std::fs::remove_file(&program).unwrap();
    kill(driver(&daemon)["pid"].as_i64().unwrap());
    eventually("some attempts", || {
        count(&driver(&daemon)["restarts"]["in_a_row"]) >= 8
    });
    // The state contains the reason, except while the next attempt runs.
    eventually("the state says why", || {
        let state = driver(&daemon)["state"].as_str().unwrap().to_owned();
        state.contains("; did not start: domain driver: ")
    });
    let status = driver(&daemon);
    assert_eq!(
        (&status["alive"], &status["restarts"]["count"]),
        (&json!(false), &json!(0))
    );
    daemon.logs("driver: starts again in 640 ms: start 8 in a row\n");
    let log = daemon.log();
    assert_eq!(log.matches("did not start again").count(), 1, "{log}");
    assert_eq!(log.matches("No such file").count(), 1, "{log}");
    assert_eq!(daemon.order("g0", json!({ "do": "id" })), 1);
    assert_eq!(daemon.audit()["leaked"], 0);
    daemon.down();
}

/// S-1: another build replaces the driver domain's program. The running domain is unaffected. After
/// its exit, the monitor does not start the other build, and starts the right one once it is
/// restored.
#[test]
fn a_program_of_another_version_is_rejected() {
    let mut plan = plan(1);
    plan.domains[0].restart_pause_ms = Some(20);
    let daemon = Daemon::up(&plan);
    let [program, right] = ["driver", "right"].map(|name| daemon.dir.path().join(name));
    let mut image = std::fs::read(&program).unwrap();
    let note = b"\x09\0\0\0\x04\0\0\0\x01\0\0\0Grantway\0\0\0\0";
    let at = image.windows(note.len()).position(|bytes| bytes == note);
    image[at.unwrap() + note.len()] += 1;
    std::fs::rename(&program, &right).unwrap();
    std::fs::write(&program, image).unwrap();
    assert_eq!(driver(&daemon)["state"], "running");
    kill(driver(&daemon)["pid"].as_i64().unwrap());
    let why = format!(
        "the program of a domain of version {}; this monitor starts only version {VERSION}",
        VERSION + 1
    );
    eventually("the log explains it", || {
        driver(&daemon)["state"].as_str().unwrap().contains(&why)
    });
    assert_eq!(daemon.order("g0", json!({ "do": "id" })), 1);
    std::fs::rename(&right, &program).unwrap();
    eventually("the driver domain is restarted", || {
        driver(&daemon)["state"] == "running"
    });
    daemon.down();
}

/// Gives the driver domain an AF_XDP wire. Returns the namespace at the other end, which must
/// outlive the machine.
fn with_wire(plan: &mut Machine) -> Option<Namespace> {
    testing::require!(af_xdp);
    let namespace = Namespace::new().unwrap();
    let far = Tap {
        ifname: "wire".into(),
        netns: Some(namespace.path().display().to_string()),
        mtu: 1500,
        ..Tap::default()
    };
    plan.domains[0].devices.push(Device::Xdp(Xdp {
        netdev: Netdev::Veth(far),
        first_frame: 0,
        frames: 16,
        chunk_bytes: 2048,
        entries: 32,
        rings_slot: 0,
        queues: 0,
    }));
    Some(namespace)
}

/// one of several devices cannot be opened. The opened devices are closed with a delay, so a
/// second attempt may find them open.
#[test]
fn the_reason_of_a_failed_device_is_reported() {
    let mut plan = plan(1);
    let Some(_namespace) = with_wire(&mut plan) else {
        return;
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    common::with_file(&mut plan, 0, file.path());
    plan.domains[0].restart_pause_ms = Some(20);
    let daemon = Daemon::up(&plan);
    let path = file.path().to_owned();
    let content = file.into_temp_path();
    std::fs::rename(&content, path.with_extension("away")).unwrap();
    kill(driver(&daemon)["pid"].as_i64().unwrap());
    eventually("some attempts", || {
        count(&driver(&daemon)["restarts"]["in_a_row"]) >= 10
    });
    let cause = format!("the file {} cannot be read: No such file", path.display());
    // The state contains the reason, except while the next attempt runs.
    eventually("the state says why", || {
        driver(&daemon)["state"].as_str().unwrap().contains(&cause)
    });
    daemon.logs(&cause);
    let log = daemon.log();
    assert_eq!(log.matches("did not start again").count(), 1, "{log}");
    std::fs::rename(path.with_extension("away"), &path).unwrap();
    eventually("the driver domain is restarted", || {
        driver(&daemon)["state"] == "running"
    });
    daemon.down();
}

/// the kernel needs some milliseconds to release a dead domain's socket. Attempts to open the
/// devices in the meantime create no file.
#[test]
fn a_file_is_created_after_all_other_devices() {
    let mut plan = plan(1);
    let dir = tempfile::tempdir().unwrap();
    let path = |number: u32| dir.path().join(format!("out.{number}"));
    let first = dir.path().join("out").display().to_string();
    plan.domains[0].devices.push(Device::Write(first));
    let Some(_namespace) = with_wire(&mut plan) else {
        return;
    };
    let daemon = Daemon::up(&plan);
    for life in 1..=3 {
        kill_driver(&daemon);
        assert!(path(life).exists());
        assert!(!path(life + 1).exists());
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4);
    daemon.down();
}

#[test]
fn output_is_logged_after_failed_starts() {
    let mut plan = plan(1);
    plan.domains[0].restart_pause_ms = Some(20);
    let daemon = Daemon::up(&plan);
    let [program, away] = ["driver", "away"].map(|name| daemon.dir.path().join(name));
    std::fs::rename(&program, &away).unwrap();
    kill(driver(&daemon)["pid"].as_i64().unwrap());
    eventually("some attempts", || {
        count(&driver(&daemon)["restarts"]["in_a_row"]) >= 3
    });
    std::fs::rename(&away, &program).unwrap();
    eventually("the log contains the output", || {
        daemon.log().matches("driver: up as").count() == 2
    });
    daemon.down();
}

#[test]
fn guests_and_failed_starts_are_not_restarted() {
    let mut plan = plan(1);
    let daemon = Daemon::up(&plan);
    kill(daemon.domain_status("g0")["pid"].as_i64().unwrap());
    eventually("the guest has exited", || {
        daemon.domain_status("g0")["state"] == "killed by signal 9"
    });
    assert!(daemon.domain_status("g0")["restarts"].is_null());
    daemon.down();
    plan.domains[0].config = json!({ "silent": true }).to_string();
    let (_daemon, line) = Daemon::start(&plan);
    let error = line["error"].as_str().unwrap();
    assert!(
        error.contains("domain driver did not start: killed"),
        "{error}"
    );
    assert_eq!(plan.domains[0].program, Program::Driver);
}
