//! Tests of the arguments of the virtual machine monitor.

use std::process::Command;

#[test]
fn a_monitor_without_a_socket_prints_its_usage() {
    let output = Command::new(env!("CARGO_BIN_EXE_hostile-vm"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("usage: hostile-vm SOCKET"), "{text}");
}
