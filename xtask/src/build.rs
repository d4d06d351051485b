//! Builds the programs and runs the demo.

use crate::workspace;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::io::BufReader;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The package, name and purpose of each program.
pub(crate) const PROGRAMS: [(&str, &str, Purpose); 15] = [
    ("cli", "grantway", Purpose::Use),
    ("grantwayd", "grantwayd", Purpose::Use),
    ("netd", "grantway-netd", Purpose::Use),
    ("manager", "grantway-manager", Purpose::Use),
    ("driver", "driver", Purpose::Use),
    ("guest", "guest", Purpose::Use),
    ("device", "device", Purpose::Use),
    ("xen", "grantway-xen", Purpose::Use),
    ("cni", "grantway-cni", Purpose::Use),
    ("docker", "grantway-docker", Purpose::Use),
    ("kube-edge", "grantway-kube", Purpose::Use),
    ("lab", "grantway-lab", Purpose::Lab),
    ("pointers", "pointers", Purpose::Comparison),
    ("baselines", "grantwayd-lab", Purpose::Comparison),
    ("lab-driver", "driver-lab", Purpose::Comparison),
];

/// Purpose of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Installed by the main package.
    Use,
    /// Installed by a separate package.
    Lab,
    /// Started only by comparisons.
    Comparison,
}

/// Builds the programs and places them together in `target/release/`. If `CARGO_TARGET_DIR` is
/// another folder, also places them there. Returns the path of `grantway`.
pub(crate) fn build() -> Result<PathBuf> {
    let mut command = workspace::cargo();
    command.args(["build", "--release"]);
    for (package, program, _) in PROGRAMS {
        command.args(["--package", package, "--bin", program]);
    }
    let built = executables_of(&mut command)?;
    ensure!(built.len() == PROGRAMS.len(), "cargo built {built:?} only");

    let home = workspace::root().join("target/release");
    let beside = workspace::target_directory()?.join("release");
    for folder in [&beside, &home] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for program in &built {
            place(program, folder)?;
        }
    }
    Ok(beside.join("grantway"))
}

/// Builds one more program, and places it beside `grantway`.
pub(crate) fn add(grantway: &Path, package: &str, program: &str) -> Result<()> {
    let mut command = workspace::cargo();
    command.args(["build", "--release", "--package", package, "--bin", program]);
    let built = executables_of(&mut command)?;
    let path = built.first().context("cargo built nothing")?;
    place(
        path,
        grantway.parent().context("a program without a folder")?,
    )
}

/// Builds, then executes `grantway demo ARGS…`. Also builds the programs of comparisons: users run
/// plans of `grantway exp` after the demo.
pub(crate) fn demo(args: &[String]) -> Result<()> {
    let grantway = build()?;
    let error = Command::new(&grantway).arg("demo").args(args).exec();
    Err(error).with_context(|| format!("cannot run {}", grantway.display()))
}

/// A small test program, whose selection activates dev-dependencies (see [`as_tested`]).
const ANY_TEST: [&str; 2] = ["--test", "by_hand"];

/// Builds `targets`, which are cargo's arguments, from the same crates as `cargo xtask test`, so
/// that no crate is built twice. Returns the folder of the programs.
///
/// Cargo enables the features of a crate that the selected packages need. It adds the features that
/// dev-dependencies need only if a test is selected. Therefore this function selects all packages
/// and a test.
pub(crate) fn as_tested(targets: &[&str]) -> Result<PathBuf> {
    let built = workspace::cargo()
        .args(["build", "--quiet", "--workspace"])
        .args(targets)
        .args(ANY_TEST)
        .status()
        .context("cannot run cargo")?;
    ensure!(built.success(), "the build failed");
    Ok(workspace::target_directory()?.join("x86_64-unknown-linux-gnu/debug"))
}

/// Runs a build command. Returns the paths of the built programs.
pub(crate) fn executables_of(command: &mut Command) -> Result<Vec<PathBuf>> {
    let mut child = command
        .arg("--message-format=json-render-diagnostics")
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let output = child.stdout.take().context("cargo without output")?;
    let built = executables(BufReader::new(output))?;
    ensure!(child.wait()?.success(), "the build failed");
    Ok(built)
}

/// Returns the paths of the programs in cargo's messages.
pub(crate) fn executables(messages: impl std::io::BufRead) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for message in messages.lines() {
        let message: Value = serde_json::from_str(&message?)?;
        if let Some(path) = message["executable"].as_str() {
            found.push(PathBuf::from(path));
        }
    }
    Ok(found)
}

/// Copies a program into a folder. A running program keeps its old file open.
pub(crate) fn place(program: &Path, folder: &Path) -> Result<()> {
    let name = program.file_name().context("a program without a name")?;
    place_as(program, &folder.join(name))
}

/// Copies a program to another path.
pub(crate) fn place_as(program: &Path, place: &Path) -> Result<()> {
    let new = place.with_extension("new");
    if program == place {
        return Ok(());
    }
    fs::copy(program, &new)
        .and_then(|_| fs::rename(&new, place))
        .with_context(|| format!("cannot copy {} to {}", program.display(), place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let messages = concat!(
            "{\"reason\":\"compiler-artifact\",\"executable\":null}\n",
            "{\"reason\":\"compiler-artifact\",\"executable\":\"/x/guest\"}\n",
            "{\"reason\":\"build-finished\",\"success\":true}\n",
        );
        assert_eq!(
            executables(messages.as_bytes()).unwrap(),
            [PathBuf::from("/x/guest")]
        );
    }

    #[test]
    fn a_program_replaces_its_predecessor() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(&from).unwrap();
        fs::create_dir_all(&to).unwrap();
        fs::write(from.join("guest"), "new").unwrap();
        fs::write(to.join("guest"), "old").unwrap();
        place(&from.join("guest"), &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("guest")).unwrap(), "new");
        assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
        place(&from.join("guest"), &from).unwrap();
    }
}
