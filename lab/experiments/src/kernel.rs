//! External programs that set up the kernel baselines.

use anyhow::{Context as _, bail};
use figures::Failure;
use std::process::{Command, Stdio};

/// Runs a program and returns its output.
///
/// # Errors
/// Returns [`Failure::CannotRun`] with the package name if the program is not installed, and
/// [`Failure::Failed`] with its error output if it fails.
pub fn run(words: &[&str]) -> anyhow::Result<String> {
    let (program, args) = words.split_first().context("no command")?;
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => absent(program),
            _ => Failure::Failed(format!("{program}: {error}")),
        })?;
    if !output.status.success() {
        bail!(Failure::Failed(format!(
            "{}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Checks that all `programs` are installed.
///
/// # Errors
/// Returns [`Failure::CannotRun`] with the package name of the first missing one.
pub fn require_programs(programs: &[&str]) -> Result<(), Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for program in programs {
        if !std::env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
            return Err(absent(program));
        }
    }
    Ok(())
}

fn absent(program: &str) -> Failure {
    let package = match program {
        "ip" | "tc" => "iproute2",
        "nft" => "nftables",
        "nsenter" | "setpriv" | "taskset" => "util-linux",
        other => other,
    };
    Failure::CannotRun(format!("`{program}` is not installed: package {package}"))
}
