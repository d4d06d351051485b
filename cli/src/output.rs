//! Standard output, progress, and the exit status.

use abi::journal::{self, Level};
use anyhow::Context;
use figures::{Failure, clean};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Print text, without what a terminal would obey. A reader that has seen enough (`| head`) is no
/// error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    print_as_it_is(&clean::lines(text))
}

/// Print a text that is all our own.
pub(crate) fn print_as_it_is(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.context("write to standard output"),
    }
}

/// Print one JSON object as a line.
pub(crate) fn json(value: &serde_json::Value) -> anyhow::Result<()> {
    print_as_it_is(&clean::json(&format!("{value}\n")))
}

/// Whether standard error is the system's journal.
pub(crate) fn is_journal() -> bool {
    let stream = std::env::var(abi::core::JOURNAL_VAR).unwrap_or_default();
    let stderr = rustix::fs::fstat(io::stderr());
    stderr.is_ok_and(|file| journal::names(&stream, file.st_dev, file.st_ino))
}

/// Say something on standard error, a line each, without what a terminal would obey; in the journal
/// with how much it matters.
pub(crate) fn report(level: Level, who: &str, text: &str) {
    let prefix = if is_journal() { level.prefix() } else { "" };
    for line in clean::lines(text).lines() {
        // A reader that is gone misses nothing that it needs.
        let _ = writeln!(io::stderr(), "{prefix}{who}: {line}");
    }
}

/// What went wrong and is lived with: on standard error.
pub(crate) fn warn(warning: &dyn std::fmt::Display) {
    report(Level::Warning, "warning", &warning.to_string());
}

/// Something that takes a moment: an animation on standard error, if a person watches.
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

/// The names of the plans.
pub(crate) fn list_plans(as_json: bool) -> anyhow::Result<()> {
    for plan in experiments::exp::names() {
        if as_json {
            json(&serde_json::json!({ "plan": plan }))?;
        } else {
            print(&format!("{plan}\n"))?;
        }
    }
    Ok(())
}

/// Say why, on standard error, and answer with the exit status that goes with it.
pub(crate) fn failed(error: &anyhow::Error) -> ExitCode {
    // Ctrl-C needs no comment.
    let interrupted = matches!(error.downcast_ref(), Some(Failure::Interrupted));
    if !interrupted {
        report(Level::Error, "grantway", &format!("{error:#}"));
    }
    ExitCode::from(exit_code(error))
}

/// A refusal that is the caller's mistake, like a wrong option.
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
        match error {
            error if error.is_usage() => 2,
            error if error.cannot_run_here() => 3,
            _ => 1,
        }
    } else {
        figures::exit_code(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_says_whose_fault_it_was() {
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
