//! An unprivileged monitor starts domains in a user namespace.

mod common;

use common::{GUEST, TestDomain, serialize};
use std::os::unix::process::CommandExt;
use std::process::Command;
use testing::{require, skip};

const NOBODY_UID: u32 = 65534;
const ROLE: &str = "GRANTWAY_TEST_ROOTLESS";

/// Program that the next test runs without privileges.
#[test]
fn unprivileged_monitor() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    assert!(!rustix::process::geteuid().is_root());
    let mut target = TestDomain::new();
    assert_eq!(target.domain.missing, ["a separate user id"]);
    target
        .guest_word(7)
        .store(0x5afe, std::sync::atomic::Ordering::SeqCst);
    target.map(5, 7, false);
    assert_eq!(target.read(5), Ok(0x5afe));
    assert_eq!(target.write(5, 1), Err(()));
    target.unmap(5);
    assert_eq!(target.read(5), Err(()));
    target.domain.agent.remove_memory(GUEST).expect("removed");
    target.kill();
    assert!(target.has_exited());
}

#[test]
fn a_monitor_without_privileges_starts_domains() {
    let Some(_guard) = serialize() else { return };
    require!(userns);
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "unprivileged_monitor", "--nocapture"])
        .env(ROLE, "1");
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY_UID).gid(NOBODY_UID);
    }
    match command.output() {
        Ok(done) => assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        ),
        Err(error) => skip(format!(
            "a folder in which another user can run this test: {error}"
        )),
    }
}
