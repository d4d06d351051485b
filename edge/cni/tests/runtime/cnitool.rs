//! CNI's own library, as a program.

use crate::machine::run_script;
use testing::require;

#[test]
fn cnis_own_client_is_content() {
    require!(
        machine,
        program("grantway"),
        cni_plugin("host-local"),
        cni_plugin("portmap"),
        cni_plugin("firewall"),
        cni_plugin("tuning"),
        tool("cnitool"),
        tool("ip"),
        tool("ping"),
        tool("busybox"),
        tool("curl"),
        tool("iptables-save"),
        tool("unshare")
    );
    run_script("cnitool.sh");
}
