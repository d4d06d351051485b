//! Containers of a real runtime: podman.

use crate::machine::run_script;
use testing::require;

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
    run_script("readme.sh");
}
