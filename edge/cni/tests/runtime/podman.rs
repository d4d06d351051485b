//! Containers of a real runtime: podman.

use crate::machine::{run_script, run_script_on_debian_13};
use std::sync::{Mutex, PoisonError};
use testing::require;

/// Held while a script runs. At its end, each script removes the control groups of every podman.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn containers_of_podman_are_guests() {
    require!(
        machine,
        program("grantway"),
        cni_plugin("host-local"),
        tool("podman"),
        tool("runc"),
        tool("busybox"),
        tool("curl"),
        tool("unshare")
    );
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    run_script("podman.sh");
}

#[test]
fn the_commands_of_readme_run_on_a_new_system() {
    require!(
        machine,
        program("grantway"),
        cni_plugin("host-local"),
        cni_plugin("portmap"),
        tool("podman"),
        tool("runc"),
        tool("busybox"),
        tool("curl"),
        tool("ip"),
        tool("nft"),
        tool("iptables"),
        tool("unshare")
    );
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    run_script("readme.sh");
}

/// The commands for podman 5, which Debian 12 does not have.
#[test]
fn the_commands_of_readme_run_on_debian_13() {
    require!(
        machine,
        program("grantway"),
        debian_13("usr/bin/podman"),
        tool("unshare"),
        tool("pivot_root")
    );
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    run_script_on_debian_13("readme.sh");
}
