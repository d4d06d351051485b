//! Signals, and unexpected exits.

use crate::testbed::{Testbed, wait_until_none};
use rustix::process::Signal;
use std::thread;
use std::time::Duration;
use testing::wait_until;

/// A script that prints the signals that it receives.
const PRINT_SIGNALS: &str = "for s in INT TERM HUP QUIT USR1 USR2; do trap \"echo $s\" $s; done; \
                    trap 'echo TERM; exit 3' TERM; echo runs; while :; do sleep 0.05; done";

#[test]
fn signals_are_forwarded_to_the_command() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    let mut run = world.start(&["--", "sh", "-c", PRINT_SIGNALS]);
    run.line_with("runs");
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        run.signal(signal);
        assert_eq!(run.line(), name);
    }
    run.signal(Signal::TERM);
    assert_eq!(run.line(), "TERM");
    assert_eq!(run.finish().code, 3);
    world.wait_until_clean();
}

#[test]
fn the_status_shows_a_signal_that_ended_it() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut run = world.start(&["--", "sh", "-c", "echo runs; exec sleep 1000"]);
        run.line_with("runs");
        run.signal(signal);
        assert_eq!(run.finish().code, code);
        assert_eq!(world.leftovers(), [""; 0]);
    }
}

/// Signals that a shell or `nohup` ignores stay ignored, also for the command.
#[test]
fn ignored_signals_stay_ignored() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    let grantway = crate::testbed::grantway();
    let script = format!("trap '' HUP; exec {grantway} run -- sh -c 'kill -HUP $$; echo lives'");
    let ran = world
        .spawn(&mut world.command("sh", &["-c", &script]))
        .finish();
    assert_eq!((ran.code, ran.out.as_str()), (0, "lives\n"), "{ran:?}");
    world.wait_until_clean();
}

#[test]
fn everything_ends_with_a_killed_run() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    let all = [11, 12, 13, 14].map(unique_sleep);
    let [a, b, c, d] = &all;
    let script = format!("(sleep {a} & sleep {b} &) ; setsid sleep {c} & echo runs; sleep {d}");
    let mut run = world.start(&["--", "sh", "-c", &script]);
    run.line_with("runs");
    wait_until("not all processes sleep", || sleeping(&all).len() == 4);
    run.signal(Signal::KILL);
    assert_eq!(run.finish().code, -1);
    world.wait_until_clean();
    wait_until_none(|| sleeping(&all));
}

/// Signals also terminate `run` while the machine starts.
#[test]
fn a_run_that_ends_at_any_time_leaves_nothing() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    let asleep = [unique_sleep(41)];
    for ms in [3, 20, 50, 100, 200, 400] {
        for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
            let run = world.start(&["--", "sleep", &asleep[0]]);
            thread::sleep(Duration::from_millis(ms));
            run.signal(signal);
            let code = run.finish().code;
            assert_ne!(code, 0, "{signal:?} after {ms} ms");
            // A killed run cannot remove its log and its note, so later runs remove them.
            wait_until_none(|| {
                let mut left = world.leftovers();
                let may_stay = |what: &str| what.contains(".log") || what.contains(".host");
                left.retain(|what| !(signal == Signal::KILL && may_stay(what)));
                left.extend(sleeping(&asleep));
                left
            });
        }
    }
    assert_eq!(world.run(&["--", "true"]).code, 0);
    world.wait_until_clean();
}

#[test]
fn the_end_of_the_machine_is_a_hangup() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    let mut run = world.start(&["--name", "mine", "--", "sh", "-c", "echo runs; sleep 1000"]);
    run.line_with("runs");
    let grantway = crate::testbed::grantway();
    let down = world
        .spawn(&mut world.command(&grantway, &["down", "--name", "mine"]))
        .finish();
    assert_eq!(down.code, 0, "{down:?}");
    let ran = run.finish();
    assert_eq!(ran.code, 129, "{ran:?}");
    assert!(ran.err.contains("the machine was ended"), "{ran:?}");
    world.wait_until_clean();
}

/// Returns a sleep time of at least a day, which identifies processes of this test.
pub(crate) fn unique_sleep(number: u32) -> String {
    format!(
        "{}",
        100 * (1000 + u64::from(std::process::id())) + u64::from(number)
    )
}

/// Returns the processes that run `sleep SECONDS` for one of these times.
pub(crate) fn sleeping(seconds: &[String]) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let words = |entry: std::fs::DirEntry| {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).replace('\0', " ")
    };
    let is_one = |words: &String| {
        let slept = words.trim_end().strip_prefix("sleep ");
        slept.is_some_and(|slept| seconds.iter().any(|s| s == slept))
    };
    processes.map(words).filter(is_one).collect()
}
