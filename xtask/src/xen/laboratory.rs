//! Creates the parts of a machine: packages, kernels, programs of this tree, images.

use super::images::{self, Programs};
use super::kernels::{self, Kernels};
use super::packages::{self, Packages};
use crate::{build, workspace};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::PathBuf;

/// The parts of a machine.
pub(super) struct Laboratory {
    pub(super) home: PathBuf,
    pub(super) packages: Packages,
    pub(super) kernels: Kernels,
    pub(super) image: PathBuf,
}

impl Laboratory {
    /// Creates missing parts. Returns `None` if this system cannot create them. `release` selects
    /// the release profile for the driver domain.
    pub(super) fn ready(release: bool) -> Result<Option<Self>> {
        let home = home()?;
        let packages = match packages::ready(&home) {
            Ok(packages) => packages,
            Err(why) => {
                skip(&format!("{why:#}"))?;
                return Ok(None);
            }
        };
        let programs = build(release)?;
        let kernels = kernels::ready(&home, &packages)?;
        let image = images::dom0(&home, &packages, &kernels, &programs)?;
        Ok(Some(Self {
            home,
            packages,
            kernels,
            image,
        }))
    }
}

/// Returns the folder of all parts.
pub(super) fn home() -> Result<PathBuf> {
    let home = workspace::target_directory()?.join("xen");
    fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
    Ok(home)
}

/// Reports a skip, which is a failure only if `GRANTWAY_REQUIRE` is `all`.
fn skip(why: &str) -> Result<()> {
    if std::env::var("GRANTWAY_REQUIRE").is_ok_and(|value| value == "all") {
        bail!("{why}");
    }
    println!("skipped: {why}");
    Ok(())
}

/// Returns the factor by which all deadlines are multiplied.
pub(super) fn deadline_factor() -> Result<u32> {
    if let Ok(given) = std::env::var("GRANTWAY_XEN_SLOW") {
        let slow: u32 = given.parse().context("GRANTWAY_XEN_SLOW")?;
        ensure!((1..=100).contains(&slow), "GRANTWAY_XEN_SLOW is 1 to 100");
        return Ok(slow);
    }
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load
        .split_whitespace()
        .next()
        .and_then(|load| load.parse().ok())
        .unwrap_or(0.0);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Ok((1.0 + load / cpus as f64).round().clamp(1.0, 10.0) as u32)
}

/// Builds the programs that run inside. If `release` is true, builds the driver domain in the
/// release profile.
fn build(release: bool) -> Result<Programs> {
    let programs = ["--bin", "grantway-xen", "--bin", "grantway"];
    let examples = ["--example", "hostile-front", "--example", "xen-window"];
    let debug = build::as_tested(&[programs, examples].concat())?;
    let mut driver = debug.join("grantway-xen");
    if release {
        let mut command = workspace::cargo();
        command.args(["build", "--release", "-p", "xen", "--bin", "grantway-xen"]);
        let built = build::executables_of(&mut command)?;
        driver = built.first().context("cargo built nothing")?.clone();
    }
    Ok(Programs {
        driver,
        cli: debug.join("grantway"),
        hostile: debug.join("examples/hostile-front"),
        window: debug.join("examples/xen-window"),
    })
}
