//! Programs of other packages.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Builds `packages` if `folder`, which is `TARGET/TRIPLE/PROFILE`, lacks one of `programs`. An
/// existing program is never replaced, because tests that run at the same time may use it.
/// `cargo xtask test` builds all of them first.
///
/// # Panics
///
/// Panics if the build fails.
#[track_caller]
pub fn build_missing(folder: &Path, programs: &[&str], packages: &[&str]) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if programs.iter().all(|name| folder.join(name).is_file()) {
        return;
    }
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--bins", "--profile", profile])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .arg("--target-dir")
        .args(folder.ancestors().nth(2))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo starts");
    assert!(built.success(), "cargo build of {packages:?}: {built}");
}
