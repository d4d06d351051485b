//! A compromised netd: a hostile program in its place, under its confinement, started by the core.

mod common;

use common::{Daemon, built, core, eventually, is_process, kill, machine};
use std::fs;
use std::path::Path;
use std::process::Command;
use testing::{child_of, require};

#[test]
fn a_compromised_netd_reaches_nothing() {
    require!(root, landlock, tap);
    let dir = tempfile::tempdir().unwrap();
    let place =
        |program: &Path, name: &str| testing::place_program(program, &dir.path().join(name));
    place(core().as_ref(), "grantwayd");
    place(&built("grantway-manager"), "grantway-manager");
    place(&built("probe-helper"), "grantway-netd");
    let report = dir.path().join("report");
    let core = Command::new(dir.path().join("grantwayd"));
    let (daemon, line) = Daemon::start_as(&machine(2), core);
    assert_eq!(line["ready"], true, "{line} {}", daemon.log());
    let ended = || {
        fs::read_to_string(&report)
            .unwrap_or_default()
            .ends_with("done\n")
    };
    eventually("the first one reports", ended);
    // Domains, and the core with their memory, exist when the next one starts.
    let before = child_of(daemon.child.id().into(), "grantway-netd").unwrap();
    fs::remove_file(&report).unwrap();
    kill(before as i64);
    eventually("the next one reports", ended);
    assert_eq!(fs::read_to_string(&report).unwrap(), "done\n");
    assert!(daemon.processes().into_iter().all(is_process));
    daemon.down();
}
