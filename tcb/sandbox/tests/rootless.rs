//! An unprivileged monitor starts domains in a user namespace.

mod common;

use common::{GUEST, World, alone};
use std::os::unix::process::CommandExt;
use std::process::Command;
use testing::{require, skip};

const NOBODY: u32 = 65534;
const ROLE: &str = "GRANTWAY_TEST_ROOTLESS";

/// The process that the next test runs without privileges.
#[test]
fn as_nobody() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    assert!(!rustix::process::geteuid().is_root());
    let mut world = World::new();
    assert_eq!(world.domain.missing, ["a separate user id"]);
    world
        .guest_word(7)
        .store(0x5afe, std::sync::atomic::Ordering::SeqCst);
    world.map(5, 7, false);
    assert_eq!(world.read(5), Ok(0x5afe));
    assert_eq!(world.write(5, 1), Err(()));
    world.unmap(5);
    assert_eq!(world.read(5), Err(()));
    world.domain.agent.remove_memory(GUEST).expect("forgotten");
    world.end();
    assert!(world.ended());
}

#[test]
fn a_monitor_without_privileges_starts_domains() {
    let Some(_alone) = alone() else { return };
    require!(userns);
    let mut command = Command::new(std::env::current_exe().expect("myself"));
    command
        .args(["--exact", "as_nobody", "--nocapture"])
        .env(ROLE, "1");
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
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
