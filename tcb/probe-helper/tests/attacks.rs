//! Compromised helpers make every attempt, each under its own confinement.

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
fn a_manager_cannot_make_any_attack_call() {
    assert_eq!(succeeded("manager"), "done\n");
}

/// A broker lists the devices of IOMMU groups: it may read folders that it has opened.
#[test]
fn a_broker_can_only_list_folders() {
    assert_eq!(succeeded("broker"), "getdents64: -9\ndone\n");
}

#[test]
fn a_netd_reaches_no_process_and_no_file() {
    require!(root, landlock, tap);
    assert_eq!(succeeded("netd"), "done\n");
}

/// Even without Landlock, the user and the capabilities protect other processes.
#[test]
fn netd_without_landlock_reaches_no_process() {
    require!(root);
    assert_eq!(succeeded("bare"), "done\n");
}
