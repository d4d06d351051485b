//! If one process exits in any way, the others exit as well, and nothing remains.

mod common;

use common::{HOSTILE, TestDomain, exits_within, serialize};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use sandbox::{AgentError, SpawnError};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testing::{TIMEOUT, Tracer, require, wait_until};

fn pidfd(pid: i32) -> std::os::fd::OwnedFd {
    pidfd_open(Pid::from_raw(pid).expect("a pid"), PidfdFlags::empty()).expect("a pidfd")
}

/// Maximum time between the monitor's exit and that of its processes: ten times the specified time
/// (SPECIFICATION.md).
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("killed");
}

/// Monitor that the next test runs and kills. It starts a domain, prints both process ids, and
/// sleeps.
#[test]
fn monitor_to_be_killed() {
    if std::env::var_os("GRANTWAY_TEST_MONITOR").is_none() {
        return;
    }
    let target = TestDomain::new();
    // Write to a descriptor, because the test harness captures output.
    let line = format!("pids {} {}\n", target.domain.pid, target.domain.agent_pid);
    std::fs::File::from(rustix::io::dup(std::io::stderr()).expect("a descriptor"))
        .write_all(line.as_bytes())
        .expect("written");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn nothing_survives_the_monitor() {
    let Some(_guard) = serialize() else { return };
    // One success in ten attempts is enough, because the machine may stall.
    let in_time = (0..10).any(|_| {
        let took = exit_time_after_killed_monitor();
        println!("ended after {took:?}");
        took < EXIT_TIMEOUT
    });
    assert!(in_time, "never within {EXIT_TIMEOUT:?}");
}

fn exit_time_after_killed_monitor() -> Duration {
    let mut monitor = Command::new(std::env::current_exe().expect("this program"))
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
    let live = |fd: &_| !exits_within(fd, Duration::from_millis(50));
    assert!(fds.iter().all(live), "a process has exited too early");
    let killed = Instant::now();
    monitor.kill().expect("killed");
    for fd in &fds {
        assert!(exits_within(fd, TIMEOUT), "a process outlives the monitor");
    }
    let took = killed.elapsed();
    monitor.wait().expect("waited");
    took
}

#[test]
fn kill_ends_the_agent_of_a_dead_domain() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    target.map(5, 7, true);
    let agent = pidfd(target.domain.agent_pid);
    kill(target.domain.pid);
    assert!(exits_within(&target.domain.pidfd, TIMEOUT));
    target.assert_exit("killed by signal 9");
    // The agent still works: pages can be unmapped.
    target.unmap(5);
    target.kill();
    assert!(exits_within(&agent, Duration::ZERO));
    assert!(!Path::new(&format!("/proc/{}", target.domain.pid)).exists());
    assert!(!Path::new(&format!("/proc/{}", target.domain.agent_pid)).exists());
    assert!(matches!(
        target.domain.agent.unmap(&[abi::Slot(5)]),
        Err(AgentError::Exited)
    ));
    assert!(target.domain.kill());
}

#[test]
fn a_domain_dies_with_its_agent() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    target.domain.agent.set_deadline(2 * TIMEOUT);
    kill(target.domain.agent_pid);
    assert!(exits_within(&target.domain.pidfd, TIMEOUT));
    let began = Instant::now();
    assert!(matches!(
        target.domain.agent.unmap(&[abi::Slot(5)]),
        Err(AgentError::Exited)
    ));
    assert!(
        began.elapsed() < TIMEOUT,
        "the call waited for the deadline"
    );
    target.kill();
    assert!(!Path::new(&format!("/proc/{}", target.domain.pid)).exists());
}

#[test]
fn a_silent_agent_is_late() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    kill_process(
        Pid::from_raw(target.domain.agent_pid).expect("a pid"),
        Signal::STOP,
    )
    .expect("stopped");
    // A runnable agent would count as one that lacks a CPU.
    let state = || common::status(target.domain.agent_pid, "State");
    wait_until("the agent is not stopped", || !state().starts_with('R'));
    let deadline = Duration::from_secs(2);
    target.domain.agent.set_deadline(deadline);
    let began = Instant::now();
    assert!(matches!(
        target.domain.agent.unmap(&[abi::Slot(5)]),
        Err(AgentError::TimedOut)
    ));
    // Only an agent that lacks a CPU has several deadlines.
    let took = began.elapsed();
    assert!((deadline..10 * deadline).contains(&took), "{took:?}");
    let again = target.domain.agent.unmap(&[abi::Slot(5)]);
    assert!(again.is_err_and(|error| error.is_fatal()));
    target.kill();
    assert!(target.has_exited());
}

#[test]
fn a_process_that_lingers_is_not_reported_ended() {
    let Some(_guard) = serialize() else { return };
    require!(root, tool("python3"));
    let mut target = TestDomain::new();
    let tracer = Tracer::of(target.domain.pid);
    assert!(!target.domain.kill());
    assert!(Path::new(&format!("/proc/{}", target.domain.agent_pid)).exists());
    tracer.release();
    target.kill();
    assert!(!Path::new(&format!("/proc/{}", target.domain.agent_pid)).exists());
    assert!(target.domain.kill(), "a repeated kill fails");
}

#[test]
fn the_exit_reason_is_reported() {
    let Some(_guard) = serialize() else { return };
    for (order, arg, expected) in [(8, 5, "exited with code 5"), (9, 0, "exited with code 101")] {
        let mut target = TestDomain::new();
        assert_eq!(target.domain.exit_description(), None);
        assert_eq!(target.execute(order, &[arg]), None, "a panic ends a domain");
        target.assert_exit(expected);
        let clocks = target.domain.cpu_ns();
        assert!(clocks.is_some_and(|clocks| clocks.iter().all(|ns| *ns > 0)));
        target.kill();
        assert_eq!(target.domain.cpu_ns(), None);
    }
}

#[test]
fn a_failed_start_leaves_nothing() {
    let Some(_guard) = serialize() else { return };
    let children = || {
        let path = "/proc/thread-self/children";
        std::fs::read_to_string(path)
            .expect("the children")
            .split_whitespace()
            .count()
    };
    // The first start opens the shared empty namespaces, which stay open.
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
fn sixty_four_domains_run_concurrently() {
    let Some(_guard) = serialize() else { return };
    let began = Instant::now();
    let mut targets: Vec<_> = (0..64).map(|_| TestDomain::new()).collect();
    println!("64 domains started in {:?}", began.elapsed());
    for (n, target) in targets.iter_mut().enumerate() {
        target.map(n as u32, n as u32, true);
        assert_eq!(target.write(n as u32, n as u64), Ok(0));
    }
    let began = Instant::now();
    drop(targets);
    println!("ended in {:?}", began.elapsed());
}
