//! External programs that the kernel baselines are set up with.

use anyhow::{Context as _, bail};
use figures::Failure;
use std::process::{Command, Stdio};

/// Runs a program and returns what it printed.
///
/// # Errors
/// [`Failure::CannotRun`], naming the package, if it is not installed; [`Failure::Failed`] with
/// what it said if it fails.
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

/// Whether all `programs` are installed.
///
/// # Errors
/// [`Failure::CannotRun`] naming the package of the first that is not.
pub fn need(programs: &[&str]) -> Result<(), Failure> {
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
