//! Signals, and ends that nobody planned.

use crate::world::{World, wait_until_none};
use rustix::process::Signal;
use std::thread;
use std::time::Duration;
use testing::wait_until;

/// A command that says which signals it gets, and that it runs.
const SAYS: &str = "for s in INT TERM HUP QUIT USR1 USR2; do trap \"echo $s\" $s; done; \
                    trap 'echo TERM; exit 3' TERM; echo runs; while :; do sleep 0.05; done";

#[test]
fn signals_reach_the_command_which_decides() {
    let Some(world) = World::new(&[]) else { return };
    let mut run = world.start(&["--", "sh", "-c", SAYS]);
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
fn a_command_that_a_signal_ends_says_so() {
    let Some(world) = World::new(&[]) else { return };
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut run = world.start(&["--", "sh", "-c", "echo runs; exec sleep 1000"]);
        run.line_with("runs");
        run.signal(signal);
        assert_eq!(run.finish().code, code);
        assert_eq!(world.left(), [""; 0]);
    }
}

/// What a shell or `nohup` has switched off stays off, for the command too.
#[test]
fn ignored_signals_stay_ignored() {
    let Some(world) = World::new(&[]) else { return };
    let grantway = crate::world::grantway();
    let script = format!("trap '' HUP; exec {grantway} run -- sh -c 'kill -HUP $$; echo lives'");
    let ran = world
        .spawn(&mut world.command("sh", &["-c", &script]))
        .finish();
    assert_eq!((ran.code, ran.out.as_str()), (0, "lives\n"), "{ran:?}");
    world.wait_until_clean();
}

#[test]
fn a_killed_run_takes_everything_along() {
    let Some(world) = World::new(&[]) else { return };
    let all = [11, 12, 13, 14].map(seconds);
    let [a, b, c, d] = &all;
    let script = format!("(sleep {a} & sleep {b} &) ; setsid sleep {c} & echo runs; sleep {d}");
    let mut run = world.start(&["--", "sh", "-c", &script]);
    run.line_with("runs");
    wait_until("they do not all sleep", || sleeping(&all).len() == 4);
    run.signal(Signal::KILL);
    assert_eq!(run.finish().code, -1);
    world.wait_until_clean();
    wait_until_none(|| sleeping(&all));
}

/// Also while the machine is being made.
#[test]
fn whenever_it_is_ended_nothing_is_left() {
    let Some(world) = World::new(&[]) else { return };
    let asleep = [seconds(41)];
    for ms in [3, 20, 50, 100, 200, 400] {
        for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
            let run = world.start(&["--", "sleep", &asleep[0]]);
            thread::sleep(Duration::from_millis(ms));
            run.signal(signal);
            let code = run.finish().code;
            assert_ne!(code, 0, "{signal:?} after {ms} ms");
            // One that is killed cannot remove its log and its note: the next one does.
            wait_until_none(|| {
                let mut left = world.left();
                let may_stay = |what: &str| what.contains(".log") || what.ends_with(".host");
                left.retain(|what| !(signal == Signal::KILL && may_stay(what)));
                left.extend(sleeping(&asleep));
                left
            });
        }
    }
    assert_eq!(world.run(&["--", "true"]).code, 0);
}

#[test]
fn the_machines_end_is_a_hangup() {
    let Some(world) = World::new(&[]) else { return };
    let mut run = world.start(&["--name", "mine", "--", "sh", "-c", "echo runs; sleep 1000"]);
    run.line_with("runs");
    let grantway = crate::world::grantway();
    let down = world
        .spawn(&mut world.command(&grantway, &["down", "--name", "mine"]))
        .finish();
    assert_eq!(down.code, 0, "{down:?}");
    let ran = run.finish();
    assert_eq!(ran.code, 129, "{ran:?}");
    assert!(ran.err.contains("the machine was ended"), "{ran:?}");
    world.wait_until_clean();
}

/// A time to sleep, a day at least, by which this run of the tests knows its own processes.
pub(crate) fn seconds(number: u32) -> String {
    format!(
        "{}",
        100 * (1000 + u64::from(std::process::id())) + u64::from(number)
    )
}

/// Processes `sleep SECONDS`.
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
