//! Runs the fuzz targets for a moment each. The same bodies run as property tests on stable.

use crate::workspace;
use anyhow::{Context, Result, ensure};
use std::fs;

/// Runs every target for `seconds`; a crash fails.
pub(crate) fn smoke(seconds: u32) -> Result<()> {
    let folder = workspace::root().join("fuzz");
    let present = workspace::cargo().args(["fuzz", "--version"]).output()?;
    ensure!(
        present.status.success(),
        "cargo-fuzz is not installed: cargo install --locked cargo-fuzz"
    );
    let mut targets = Vec::new();
    for entry in fs::read_dir(folder.join("fuzz_targets")).context("no fuzz targets")? {
        let path = entry?.path();
        targets.extend(path.file_stem().map(|stem| stem.to_os_string()));
    }
    targets.sort();
    for target in targets {
        println!("fuzz: {} for {seconds} s", target.display());
        // Coverage guidance without a sanitizer works on a stable compiler; the crates under test
        // contain no `unsafe`, so there is little for a sanitizer to find.
        let status = workspace::cargo()
            .args(["fuzz", "run", "--sanitizer", "none"])
            .arg(&target)
            .args(["--", &format!("-max_total_time={seconds}")])
            .status()?;
        ensure!(status.success(), "{} found something", target.display());
    }
    Ok(())
}
