//! Calls the plugin as CNI's library does, through the library's program `cnitool`.

use crate::machine::run_script;
use testing::require;

#[test]
fn cnitool_accepts_the_plugin() {
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
