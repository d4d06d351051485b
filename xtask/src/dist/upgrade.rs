//! The package is upgraded while a machine of it runs.

use crate::workspace::output;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is run, in namespaces of its own.
const SCRIPT: &str = include_str!("upgrade.sh");

/// Installs a later package over the one that is installed in `root`, by dpkg with these options,
/// under streams.
///
/// # Errors
/// It takes root, iperf3 and namespaces; or a stream is lost.
pub(super) fn under_streams(package: &Path, root: &Path, options: &[String]) -> Result<()> {
    let later = later(package, &root.with_file_name("later"))?;
    let script = root.with_file_name("upgrade.sh");
    fs::write(&script, SCRIPT)?;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--net", "--pid", "--fork", "--kill-child"])
        .args(["--mount-proc", "sh"])
        .args([&script, root, &later])
        .args(options);
    output(&mut command)
        .context("the upgrade under streams, which takes root, iperf3 and iproute2")?;
    println!("dist: upgraded under streams of 16 attached guests");
    Ok(())
}

/// The same package as a later version.
fn later(package: &Path, folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let deb = |args: &[&Path]| output(Command::new("dpkg-deb").args(args)).map(drop);
    deb(&[Path::new("--raw-extract"), package, folder])?;
    let control = folder.join("DEBIAN/control");
    let text = fs::read_to_string(&control)?;
    let version = text.lines().find(|line| line.starts_with("Version: "));
    let version = version.context("the package has no version")?;
    let named = text.replacen(version, &format!("{version}+later"), 1);
    ensure!(named != text, "the package's version cannot be changed");
    fs::write(&control, named)?;
    let made = folder.with_extension("deb");
    deb(&[Path::new("--build"), folder, &made])?;
    Ok(made)
}
