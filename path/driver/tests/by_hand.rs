//! The program `driver`, started by a person instead of the monitor.

use std::process::Command;

#[test]
fn says_who_must_start_it() {
    let output = Command::new(env!("CARGO_BIN_EXE_driver"))
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("must be started by grantwayd"), "{words}");
    assert!(output.stdout.is_empty(), "{output:?}");
}
