//! Standard output, progress, and the exit status.

use abi::journal::{self, Level};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;
pub(crate) use tool::output::{json, print, print_unescaped};
use tool::{Failure, clean};

/// Returns whether standard error is the system's journal.
pub(crate) fn is_journal() -> bool {
    let stream = std::env::var(abi::core::JOURNAL_VAR).unwrap_or_default();
    let stderr = rustix::fs::fstat(io::stderr());
    stderr.is_ok_and(|file| journal::identifies_file(&stream, file.st_dev, file.st_ino))
}

/// Writes lines to standard error without terminal control codes. Lines for the journal begin with
/// their priority.
pub(crate) fn report(level: Level, who: &str, text: &str) {
    let prefix = if is_journal() { level.prefix() } else { "" };
    for line in clean::lines(text).lines() {
        // If standard error is closed, the message is lost.
        let _ = writeln!(io::stderr(), "{prefix}{who}: {line}");
    }
}

/// Writes a warning to standard error.
pub(crate) fn warn(warning: &dyn std::fmt::Display) {
    report(Level::Warning, "warning", &warning.to_string());
}

/// Returns a progress animation on standard error, which is visible only on a terminal.
pub(crate) fn spinner(what: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner().with_message(clean::line(what).into_owned());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(80));
    spinner
}

/// Writes the error to standard error and returns its exit status.
pub(crate) fn failed(error: &anyhow::Error) -> ExitCode {
    // Ctrl-C needs no message.
    let interrupted = matches!(error.downcast_ref(), Some(Failure::Interrupted));
    if !interrupted {
        report(Level::Error, "grantway", &format!("{error:#}"));
    }
    ExitCode::from(exit_code(error))
}

/// Converts a client error. An error that is the user's mistake, such as an invalid option, becomes
/// a usage error.
pub(crate) fn refused(error: client::Error) -> anyhow::Error {
    match error {
        client::Error::Refused(text) => Failure::Usage(text).into(),
        error => error.into(),
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let of_client = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<client::Error>());
    if error.chain().any(|cause| cause.is::<config::Problems>()) {
        2
    } else if let Some(error) = of_client {
        error.exit_code()
    } else {
        tool::exit_code(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_follows_the_kind_of_error() {
        let problems = config::parse("f", "x = 1").unwrap_err();
        assert_eq!(exit_code(&problems.into()), 2);
        assert_eq!(exit_code(&client::Error::BadName("/".into()).into()), 2);
        assert_eq!(exit_code(&client::Error::NoDaemon("/x".into()).into()), 3);
        assert_eq!(exit_code(&client::Error::Running("x".into()).into()), 1);
        let refusal = || client::Error::Refused("x".into());
        assert_eq!(exit_code(&refused(refusal())), 2);
        assert_eq!(exit_code(&refusal().into()), 1);
        assert_eq!(exit_code(&Failure::CannotRun("x".into()).into()), 3);
        assert_eq!(exit_code(&anyhow::anyhow!("x")), 1);
    }
}
