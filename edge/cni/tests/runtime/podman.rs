//! Containers of a real runtime.

use std::path::Path;
use std::process::Command;
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
    let folder = tempfile::tempdir().unwrap();
    let plugin = Path::new(env!("CARGO_BIN_EXE_grantway-cni"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/runtime/podman.sh");
    let run = Command::new("unshare")
        .args(["--mount", "--net", "--propagation", "private", "sh", script])
        .arg(plugin.with_file_name("grantway"))
        .arg(plugin)
        .arg(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
}
