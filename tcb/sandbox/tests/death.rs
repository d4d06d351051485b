//! If one process ends in any way, the others end as well, and nothing remains.

mod common;

use common::{HOSTILE, World, alone, gone_within};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use sandbox::{AgentError, SpawnError};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testing::{PATIENCE, Tracer, require, wait_until};

fn pidfd(pid: i32) -> std::os::fd::OwnedFd {
    pidfd_open(Pid::from_raw(pid).expect("a pid"), PidfdFlags::empty()).expect("a pidfd")
}

/// Ten times the promised time (SPECIFICATION.md).
const AFTER_THE_MONITOR: Duration = Duration::from_secs(1);

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("killed");
}

/// The monitor that the next test starts and kills. It starts a domain, prints both process ids,
/// and sleeps.
#[test]
fn monitor_to_be_killed() {
    if std::env::var_os("GRANTWAY_TEST_MONITOR").is_none() {
        return;
    }
    let world = World::new();
    // Bypass the test harness, which captures output.
    let line = format!("pids {} {}\n", world.domain.pid, world.domain.agent_pid);
    std::fs::File::from(rustix::io::dup(std::io::stderr()).expect("a descriptor"))
        .write_all(line.as_bytes())
        .expect("said");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn nothing_survives_the_monitor() {
    let Some(_alone) = alone() else { return };
    // One of several attempts must succeed, since the machine may stall.
    let soon = (0..10).any(|_| {
        let took = time_to_follow_a_killed_monitor();
        println!("ended after {took:?}");
        took < AFTER_THE_MONITOR
    });
    assert!(soon, "never within {AFTER_THE_MONITOR:?}");
}

fn time_to_follow_a_killed_monitor() -> Duration {
    let mut monitor = Command::new(std::env::current_exe().expect("myself"))
        .args(["--exact", "monitor_to_be_killed", "--nocapture"])
        .env("GRANTWAY_TEST_MONITOR", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a monitor");
    let mut lines = BufReader::new(monitor.stderr.take().expect("its errors")).lines();
    let pids = lines.find_map(|line| Some(line.ok()?.strip_prefix("pids ")?.to_owned()));
    let pids = pids.expect("pids");
    let fds: Vec<_> = pids
        .split(' ')
        .map(|pid| pidfd(pid.parse().expect("a pid")))
        .collect();
    let live = |fd: &_| !gone_within(fd, Duration::from_millis(50));
    assert!(fds.iter().all(live), "a process has ended too early");
    let killed = Instant::now();
    monitor.kill().expect("killed");
    for fd in &fds {
        assert!(gone_within(fd, PATIENCE), "a process outlives the monitor");
    }
    let took = killed.elapsed();
    monitor.wait().expect("waited");
    took
}

#[test]
fn kill_ends_the_agent_of_a_dead_domain() {
    let Some(_alone) = alone() else { return };
    let mut world = World::new();
    world.map(5, 7, true);
    let agent = pidfd(world.domain.agent_pid);
    kill(world.domain.pid);
    assert!(gone_within(&world.domain.pidfd, PATIENCE));
    world.assert_ended("killed by signal 9");
    // The agent still works: pages can be unmapped.
    world.unmap(5);
    world.end();
    assert!(gone_within(&agent, Duration::ZERO));
    assert!(!Path::new(&format!("/proc/{}", world.domain.pid)).exists());
    assert!(!Path::new(&format!("/proc/{}", world.domain.agent_pid)).exists());
    assert!(matches!(
        world.domain.agent.unmap(&[abi::Slot(5)]),
        Err(AgentError::Gone)
    ));
    assert!(world.domain.kill());
}

#[test]
fn an_agent_that_dies_takes_its_domain_along() {
    let Some(_alone) = alone() else { return };
    let mut world = World::new();
    world.domain.agent.set_deadline(2 * PATIENCE);
    kill(world.domain.agent_pid);
    assert!(gone_within(&world.domain.pidfd, PATIENCE));
    let began = Instant::now();
    assert!(matches!(
        world.domain.agent.unmap(&[abi::Slot(5)]),
        Err(AgentError::Gone)
    ));
    assert!(
        began.elapsed() < PATIENCE,
        "the call waited for the deadline"
    );
    world.end();
    assert!(!Path::new(&format!("/proc/{}", world.domain.pid)).exists());
}

#[test]
fn a_silent_agent_is_late() {
    let Some(_alone) = alone() else { return };
    let mut world = World::new();
    kill_process(
        Pid::from_raw(world.domain.agent_pid).expect("a pid"),
        Signal::STOP,
    )
    .expect("stopped");
    // A runnable agent only lacks a CPU.
    let state = || common::status(world.domain.agent_pid, "State");
    wait_until("the agent is not stopped", || !state().starts_with('R'));
    let deadline = Duration::from_secs(2);
    world.domain.agent.set_deadline(deadline);
    let began = Instant::now();
    assert!(matches!(
        world.domain.agent.unmap(&[abi::Slot(5)]),
        Err(AgentError::Late)
    ));
    // A single deadline: several are only for agents that lack a CPU.
    let took = began.elapsed();
    assert!((deadline..10 * deadline).contains(&took), "{took:?}");
    let again = world.domain.agent.unmap(&[abi::Slot(5)]);
    assert!(again.is_err_and(|error| error.is_fatal()));
    world.end();
    assert!(world.ended());
}

#[test]
fn a_process_that_lingers_is_not_reported_ended() {
    require!(root, tool("python3"));
    let Some(_alone) = alone() else { return };
    let mut world = World::new();
    let tracer = Tracer::of(world.domain.pid);
    assert!(!world.domain.kill());
    assert!(Path::new(&format!("/proc/{}", world.domain.agent_pid)).exists());
    tracer.release();
    world.end();
    assert!(!Path::new(&format!("/proc/{}", world.domain.agent_pid)).exists());
    assert!(world.domain.kill(), "a repeated kill fails");
}

#[test]
fn the_reason_of_an_end_is_known() {
    let Some(_alone) = alone() else { return };
    for (order, arg, expected) in [(8, 5, "exited with code 5"), (9, 0, "exited with code 101")] {
        let mut world = World::new();
        assert_eq!(world.domain.how_it_ended(), None);
        assert_eq!(world.tell(order, &[arg]), None, "a panic ends a domain");
        world.assert_ended(expected);
        let clocks = world.domain.cpu_ns();
        assert!(clocks.is_some_and(|clocks| clocks.iter().all(|ns| *ns > 0)));
        world.end();
        assert_eq!(world.domain.cpu_ns(), None);
    }
}

#[test]
fn a_failed_start_leaves_nothing() {
    let Some(_alone) = alone() else { return };
    let children = || {
        let path = "/proc/thread-self/children";
        std::fs::read_to_string(path)
            .expect("the children")
            .split_whitespace()
            .count()
    };
    // The first start opens the shared empty namespaces permanently.
    drop(common::start(Path::new(HOSTILE), "x", &[]).expect("a start"));
    let before = (children(), common::descriptors(std::process::id() as i32));
    for program in ["/nonexistent", "/etc/passwd", "/bin/sh"] {
        let result = common::start(Path::new(program), "x", &[]);
        assert!(
            matches!(result, Err(SpawnError::Program { .. })),
            "{program}"
        );
    }
    let result = common::start(Path::new(HOSTILE), "x", &[1000]);
    assert!(matches!(
        result,
        Err(SpawnError::Step {
            what: "setting the CPUs",
            ..
        })
    ));
    let result = common::start(Path::new(HOSTILE), "a\0b", &[]);
    assert!(matches!(result, Err(SpawnError::Spec(_))));
    let after = (children(), common::descriptors(std::process::id() as i32));
    assert_eq!(before, after);
}

#[test]
fn sixty_four_domains_live_side_by_side() {
    let Some(_alone) = alone() else { return };
    let began = Instant::now();
    let mut worlds: Vec<_> = (0..64).map(|_| World::new()).collect();
    println!("64 domains started in {:?}", began.elapsed());
    for (n, world) in worlds.iter_mut().enumerate() {
        world.map(n as u32, n as u32, true);
        assert_eq!(world.write(n as u32, n as u64), Ok(0));
    }
    let began = Instant::now();
    drop(worlds);
    println!("ended in {:?}", began.elapsed());
}
