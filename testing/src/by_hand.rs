//! A domain's program that a person starts.

use std::process::Command;

/// Starts a domain's program without grantwayd, and checks that it ends with one line that says so.
///
/// # Panics
/// It does something else.
#[track_caller]
pub fn refuses_a_person(program: &str) {
    let output = Command::new(program).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("must be started by grantwayd"), "{words}");
    assert!(output.stdout.is_empty(), "{output:?}");
}
