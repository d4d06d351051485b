//! Runs the program `grantway-lab`, which implements `demo`, `exp` and `prof`. Its separate package
//! may not be installed.

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tool::{Failure, interrupt};

const PROGRAM: &str = "grantway-lab";

/// Executes `grantway-lab` with the same arguments, in this process. Returns only on failure.
pub(crate) fn exec_lab(command: &str) -> anyhow::Result<()> {
    let program = program(&format!("`grantway {command}`"))?;
    let words = std::env::args_os().skip(1);
    let error = Command::new(&program).args(words).exec();
    Err(error).with_context(|| format!("run {}", program.display()))
}

/// Profiles a machine for `time` and prints the functions in which one of its domains ran.
pub(crate) fn print_profile(
    machine: &str,
    domain: &str,
    time: Duration,
    functions: usize,
) -> anyhow::Result<()> {
    let program = program("a profile")?;
    let mut child = Command::new(&program)
        .args(["look", "--seconds", &time.as_secs().to_string()])
        .args(["--functions", &functions.to_string()])
        .args(["--", machine, domain])
        .spawn()
        .with_context(|| format!("run {}", program.display()))?;
    // The child prints its own error.
    while child.try_wait().context("wait for the profile")?.is_none() {
        if let Err(interrupted) = interrupt::sleep(Duration::from_millis(20)) {
            // The process may already have exited.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            child.wait().context("wait for the profile")?;
            return Err(interrupted.into());
        }
    }
    Ok(interrupt::check()?)
}

fn program(what: &str) -> anyhow::Result<PathBuf> {
    client::program_path(PROGRAM).map_err(|error| match error {
        client::Error::NoDaemon(_) => Failure::CannotRun(format!(
            "{what} needs the program {PROGRAM}, which is not installed: install the package \
             {PROGRAM}, or build the whole workspace and keep it beside grantway or in \
             ../libexec/grantway"
        ))
        .into(),
        error => error.into(),
    })
}
