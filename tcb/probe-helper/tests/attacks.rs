//! Helpers that are taken over try everything, each under its own confinement.

use std::process::Command;
use testing::require;

/// Runs the probe in a role. Returns the attempts that succeeded.
#[track_caller]
fn succeeded(role: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_probe-helper"));
    let run = command.arg(role).output().unwrap();
    let out = String::from_utf8(run.stdout).unwrap();
    assert!(
        run.status.success(),
        "{out}{}",
        String::from_utf8_lossy(&run.stderr)
    );
    out
}

#[test]
fn a_manager_makes_no_call_of_an_attacker() {
    assert_eq!(succeeded("manager"), "done\n");
}

#[test]
fn a_broker_makes_no_call_of_an_attacker() {
    assert_eq!(succeeded("broker"), "done\n");
}

#[test]
fn a_netd_reaches_no_process_and_no_file() {
    require!(root, landlock, tap);
    assert_eq!(succeeded("netd"), "done\n");
}

/// The user and the capabilities protect other processes by themselves.
#[test]
fn without_landlock_a_netd_reaches_no_process() {
    require!(root);
    assert_eq!(succeeded("bare"), "done\n");
}
