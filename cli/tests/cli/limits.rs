//! Limits of a process that are too low for a machine.

use crate::test_dir::{SIM, TestDir, UNPRIVILEGED_UID};
use testing::{ProgramOutput, require};

/// The message about the limit of open files.
const FILES: &str = "the limit of open files of a process (`ulimit -Hn`) is ";
/// The message about the limit of processes.
const TASKS: &str = "the limit of processes and threads of a user (`ulimit -u`) is ";

fn is_refused(place: &TestDir, run: &ProgramOutput, code: i32, says: &str) {
    assert_eq!((run.code, run.out.as_str()), (code, ""), "{run:?}");
    assert!(
        run.err.contains(says) && run.err.lines().count() == 1,
        "{run:?}"
    );
    assert!(run.err.contains(", but the machine needs "), "{run:?}");
    assert!(
        !place.has("run"),
        "{:?}",
        std::fs::read_dir(place.path("run"))
    );
    assert!(place.users().is_empty(), "{:?}", place.users());
}

#[test]
fn a_limit_that_is_too_low_is_named() {
    require!(root, tool("prlimit"));
    let place = TestDir::with_machine();
    place.open_to_all();
    let file = place.file("m.toml", SIM);
    let up = ["up", &file, "--detach"];
    for files in [16, 64, 128, 512] {
        let run = place.run_limited(0, &format!("--nofile={files}:{files}"), &up);
        is_refused(&place, &run, 3, &format!("{FILES}{files}, "));
    }
    for user in [0, UNPRIVILEGED_UID] {
        let run = place.run_limited(user, "--nproc=2:2", &up);
        is_refused(&place, &run, 3, &format!("{TASKS}2, "));
    }
    let check = place.run_limited(0, "--nofile=128:128", &["up", &file, "--check"]);
    is_refused(&place, &check, 3, FILES);
    let demo = place.run_limited(0, "--nofile=128:128", &["demo", "--quick", "--sim"]);
    is_refused(&place, &demo, 3, FILES);
    // `run` fails with 125, because all other exit statuses are the command's.
    let run = place.run_limited(0, "--nofile=128:128", &["run", "--", "true"]);
    is_refused(&place, &run, 125, FILES);
}

#[test]
fn the_required_limit_suffices() {
    require!(root, tool("prlimit"));
    let place = TestDir::with_machine();
    let file = place.file("m.toml", SIM);
    let up = ["up", &file, "--detach"];
    let refused = place.run_limited(0, "--nofile=16:16", &up);
    let (_, need) = refused.err.split_once("the machine needs ").unwrap();
    let need: u32 = need.split(':').next().unwrap().parse().unwrap();
    // The program raises the soft limit.
    let run = place.run_limited(0, &format!("--nofile=32:{need}"), &up);
    assert!(run.ok(), "{run:?}");
    let guest = place.file(
        "guest.toml",
        "[[vif]]\nendpoint = \"stack\"\nnetwork = true\n",
    );
    for n in 0..16 {
        let attach = place.run(&["attach", &format!("g{n}"), "--file", &guest]);
        assert!(attach.ok(), "{attach:?}");
    }
    let down = place.run(&["down"]);
    assert!(down.ok(), "{down:?}");
}
