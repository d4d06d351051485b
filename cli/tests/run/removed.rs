//! A command that removes its interface.

use crate::testbed::Testbed;
use rustix::process::Signal;
use std::thread;
use std::time::Duration;
use testing::{cpu_ticks, wait_until};

#[test]
fn no_process_spins_when_the_interface_is_removed() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    let script = "ip link del eth0 && echo removed && exec sleep 1000";
    let mut run = world.start(&["--", "sh", "-c", script]);
    assert_eq!(run.line(), "removed");
    // The processes are core, netd, manager, driver, guest and the command.
    wait_until_idle(&world, 5);
    run.signal(Signal::TERM);
    assert_eq!(run.finish().code, 143);
    world.wait_until_clean();
}

/// Waits for a second in which more than `least` processes of a command exist and use almost no CPU
/// time.
pub(crate) fn wait_until_idle(world: &Testbed, least: usize) {
    let pids = || {
        let all = world.processes().into_iter();
        all.filter_map(|process| process.split(' ').next()?.parse().ok())
    };
    wait_until("a process spins", || {
        let before: Vec<(u64, u64)> = pids().map(|pid| (pid, cpu_ticks(pid))).collect();
        thread::sleep(Duration::from_secs(1));
        assert!(before.len() > least, "{before:?}");
        before
            .iter()
            .all(|(pid, before)| cpu_ticks(*pid) - before < 33)
    });
}
