//! Fork bombs.

use crate::testbed::Testbed;
use crate::unprivileged::as_nobody;
use rustix::process::Signal;
use testing::require;

/// A program that starts processes until it is killed. It prints their number at the first failure.
const FORK_BOMB: &str = r#"
import os, signal, sys, time
started = 0
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            signal.pause()
            os._exit(0)
        started += 1
    except OSError as error:
        print("full", started, error.errno, flush=True)
        if len(sys.argv) > 1:
            sys.exit(7)
        time.sleep(0.1)
    if started == 3000:
        sys.exit(4)
"#;

const LIMIT: [&str; 3] = ["--processes", "600", "--"];

/// Returns the number of processes that a fork bomb has started before the first failure.
fn started(line: &str) -> u32 {
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!((words[0], words[2]), ("full", "11"), "{line}");
    words[1].parse().unwrap()
}

fn is_limited(started: u32) {
    assert!((200..600).contains(&started), "{started}");
}

#[test]
fn a_fork_bomb_is_limited() {
    let Some(world) = Testbed::new(&["python3"]) else {
        return;
    };
    require!(pid_limits);
    let ran = world.run(&[&LIMIT[..], &["python3", "-c", FORK_BOMB, "once"]].concat());
    assert_eq!(ran.code, 7, "{ran:?}");
    is_limited(started(ran.out.trim()));
    let system = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    assert!(system.trim().parse::<u32>().unwrap() > 600, "{system}");
}

#[test]
fn a_fork_bomb_ends_with_a_signal_or_its_parent() {
    let Some(world) = Testbed::new(&["python3"]) else {
        return;
    };
    require!(pid_limits);
    for (signal, code) in [(Signal::TERM, 143), (Signal::KILL, -1)] {
        let mut running = world.start(&[&LIMIT[..], &["python3", "-c", FORK_BOMB]].concat());
        is_limited(started(&running.line()));
        running.signal(signal);
        let ran = running.finish();
        assert_eq!(ran.code, code, "{ran:?}");
        world.wait_until_clean();
    }
}

#[test]
fn without_privileges_a_fork_bomb_is_limited_too() {
    require!(userns);
    let Some(world) = Testbed::new(&["python3"]) else {
        return;
    };
    require!(pid_limits);
    let options = ["-q", "--no-uplink"];
    let command = ["python3", "-c", FORK_BOMB, "once"];
    let ran = as_nobody(&world, &[&options[..], &LIMIT, &command].concat(), None);
    assert_eq!(ran.code, 7, "{ran:?}");
    is_limited(started(ran.out.trim()));
    world.wait_until_clean();
}
