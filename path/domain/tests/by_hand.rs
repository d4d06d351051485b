//! The domains' programs, started by a person instead of the monitor.

use std::process::Command;

fn says_who_must_start_it(program: &str) {
    let output = Command::new(program).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("must be started by grantwayd"), "{words}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

#[test]
fn the_driver_says_who_must_start_it() {
    says_who_must_start_it(env!("CARGO_BIN_EXE_driver"));
}

#[test]
fn a_guest_says_who_must_start_it() {
    says_who_must_start_it(env!("CARGO_BIN_EXE_guest"));
}
