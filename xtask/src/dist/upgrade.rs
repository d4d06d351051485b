//! Upgrades the package while a machine runs.

use crate::workspace::output;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The script, which runs in new namespaces.
const SCRIPT: &str = include_str!("upgrade.sh");

/// The bytes before the version in a program's file: sizes, type and owner of an ELF note.
const NOTE: &[u8] = b"\x09\0\0\0\x04\0\0\0\x01\0\0\0Grantway\0\0\0\0";
/// A version that no core has.
const FOREIGN: u8 = 77;

/// Upgrades the package in `root` twice under streams, by dpkg with these options: first to the
/// same programs, then to programs that need another core.
///
/// # Errors
///
/// Returns an error if root, iperf3 or namespaces are missing, or a stream is lost.
pub(super) fn under_streams(package: &Path, root: &Path, options: &[String]) -> Result<()> {
    let later = later(package, &root.with_file_name("later"), false)?;
    let foreign = self::later(package, &root.with_file_name("later-core"), true)?;
    let script = root.with_file_name("upgrade.sh");
    fs::write(&script, SCRIPT)?;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--net", "--pid", "--fork", "--kill-child"])
        .args(["--mount-proc", "sh"])
        .args([&script, root, &later, &foreign])
        .args(options);
    let said = output(&mut command)
        .context("the upgrade under streams, which needs root, iperf3 and iproute2")?;
    print!("{said}");
    println!("dist: upgraded under streams of 16 attached guests, also to another core");
    Ok(())
}

/// Builds the same package as a later version and returns its path. If `is_foreign` is true, its
/// core has another version.
fn later(package: &Path, folder: &Path, is_foreign: bool) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let deb = |args: &[&Path]| output(Command::new("dpkg-deb").args(args)).map(drop);
    deb(&[Path::new("--raw-extract"), package, folder])?;
    let control = folder.join("DEBIAN/control");
    let text = fs::read_to_string(&control)?;
    let version = text.lines().find(|line| line.starts_with("Version: "));
    let version = version.context("the package has no version")?;
    let suffix = match is_foreign {
        true => "+later.core",
        false => "+later",
    };
    let named = text.replacen(version, &format!("{version}{suffix}"), 1);
    ensure!(named != text, "the package's version cannot be changed");
    fs::write(&control, named)?;
    if is_foreign {
        make_foreign(&folder.join("usr/libexec/grantway/grantwayd"))?;
    }
    let made = folder.with_extension("deb");
    // The package is read only once, so compression would dominate the time.
    let words = ["-Znone", "--build"].map(Path::new);
    deb(&[&words[..], &[folder, &made]].concat())?;
    Ok(made)
}

/// Changes the version in a core, so that the other programs of its package seem to need it.
fn make_foreign(core: &Path) -> Result<()> {
    let mut bytes = fs::read(core)?;
    let at = bytes.windows(NOTE.len()).position(|part| part == NOTE);
    let version = at.and_then(|at| bytes.get_mut(at + NOTE.len()));
    *version.context("the core has no version note")? = FOREIGN;
    fs::write(core, bytes)?;
    Ok(())
}
