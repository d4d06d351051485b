//! Compromised helpers try all attacks, each under the confinement of its role.

use std::process::Command;
use testing::require;

/// Runs the probe in a role. Returns the attacks that succeeded.
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
fn every_attack_of_a_manager_fails() {
    assert_eq!(succeeded("manager"), "done\n");
}

/// The broker lists the devices of IOMMU groups, so it may read folders that it has opened.
#[test]
fn a_broker_can_only_list_folders() {
    assert_eq!(succeeded("broker"), "getdents64: -9\ndone\n");
}

#[test]
fn netd_accesses_no_process_and_no_file() {
    require!(root, landlock, tap);
    assert_eq!(succeeded("netd"), "done\n");
}

/// Without Landlock, the separate user and the missing capabilities protect other processes.
#[test]
fn netd_without_landlock_accesses_no_process() {
    require!(root);
    assert_eq!(succeeded("bare"), "done\n");
}
