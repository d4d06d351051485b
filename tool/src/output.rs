//! Standard output.

use crate::clean;
use anyhow::Context as _;
use std::io::{self, Write as _};

/// Prints text without terminal control codes. A reader that closes the pipe (`| head`) is not an
/// error.
///
/// # Errors
///
/// Returns an error if standard output cannot be written.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_unescaped(&clean::lines(text))
}

/// Prints text that only this program wrote.
///
/// # Errors
///
/// Returns an error if standard output cannot be written.
pub fn print_unescaped(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.context("write to standard output"),
    }
}

/// Prints one JSON object as a line.
///
/// # Errors
///
/// Returns an error if standard output cannot be written.
pub fn json(value: &serde_json::Value) -> anyhow::Result<()> {
    print_unescaped(&clean::json(&format!("{value}\n")))
}
