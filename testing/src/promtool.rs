//! Validation of metrics and rules by Prometheus' `promtool`.

use std::io::Write;
use std::process::{Command, Stdio};

/// Passes the text to `promtool ARGS`; returns its output.
///
/// # Panics
///
/// Panics if promtool rejects the text or cannot be run. Tests must first
/// `require!(tool("promtool"))`.
#[track_caller]
pub fn promtool(args: &[&str], text: &str) -> String {
    let mut check = Command::new("promtool")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts");
    let mut stdin = check.stdin.take().expect("a pipe");
    stdin.write_all(text.as_bytes()).expect("it reads");
    drop(stdin);
    let said = check.wait_with_output().expect("its end");
    let words = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    assert!(said.status.success(), "promtool {args:?}: {words}");
    words
}
