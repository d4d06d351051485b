//! Programs of domains that a user starts manually.

use std::process::Command;

/// Starts a domain's program without grantwayd, and checks that it exits with an
/// explanation in one line.
///
/// # Panics
///
/// Panics if the program does anything else.
#[track_caller]
pub fn assert_needs_monitor(program: &str) {
    let output = Command::new(program).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("must be started by grantwayd"), "{words}");
    assert!(output.stdout.is_empty(), "{output:?}");
}
