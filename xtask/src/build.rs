//! Builds the programs and runs the demo.

use crate::workspace;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::io::BufReader;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The package and the name of each program, and what it is for.
pub(crate) const PROGRAMS: [(&str, &str, Purpose); 10] = [
    ("cli", "grantway", Purpose::Use),
    ("grantwayd", "grantwayd", Purpose::Use),
    ("netd", "grantway-netd", Purpose::Use),
    ("manager", "grantway-manager", Purpose::Use),
    ("driver", "driver", Purpose::Use),
    ("guest", "guest", Purpose::Use),
    ("xen", "grantway-xen", Purpose::Use),
    ("cni", "grantway-cni", Purpose::Use),
    ("pointers", "pointers", Purpose::Comparison),
    ("baselines", "grantwayd-lab", Purpose::Comparison),
];

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It is installed.
    Use,
    /// Only comparisons start it.
    Comparison,
}

/// Builds the programs and puts them side by side into `target/release/`, and beside cargo's own
/// output if `CARGO_TARGET_DIR` leads elsewhere. Returns the path of `grantway`.
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

/// Builds, then becomes `grantway demo ARGS…`. Builds also what comparisons start: after a demo
/// come the plans of `grantway exp`.
pub(crate) fn demo(args: &[String]) -> Result<()> {
    let grantway = build()?;
    let error = Command::new(&grantway).arg("demo").args(args).exec();
    Err(error).with_context(|| format!("cannot run {}", grantway.display()))
}

/// Builds; the paths of the programs that came of it.
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

/// The paths of the programs among cargo's messages.
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

/// Copies a program into a folder. An old one that still runs keeps its file.
pub(crate) fn place(program: &Path, folder: &Path) -> Result<()> {
    let name = program.file_name().context("a program without a name")?;
    place_as(program, &folder.join(name))
}

/// The same under another name.
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
    fn programs_are_found_in_what_cargo_says() {
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
