//! A compromised netd: the core starts a hostile program in netd's place, under netd's confinement.

mod common;

use common::{Daemon, built, core, eventually, is_process, kill, machine};
use std::fs;
use std::path::Path;
use std::process::Command;
use testing::{child_of, require};

#[test]
fn a_compromised_netd_accesses_nothing() {
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
    eventually("the first netd reports", ended);
    // When the next netd starts, the domains exist, and the core has their memory.
    let before = child_of(daemon.child.id().into(), "grantway-netd").unwrap();
    fs::remove_file(&report).unwrap();
    kill(before as i64);
    eventually("the next netd reports", ended);
    assert_eq!(fs::read_to_string(&report).unwrap(), "done\n");
    assert!(daemon.processes().into_iter().all(is_process));
    daemon.down();
}
