//! Shell scripts that test a program with a real container runtime.

use std::path::Path;
use std::process::Command;

/// Runs `SCRIPT GRANTWAY PROGRAM FOLDER` in new mount and network namespaces, with an empty
/// temporary folder. `grantway` is next to the program.
///
/// # Panics
///
/// Panics if the script fails, with its standard error.
#[track_caller]
pub fn run_script(script: &Path, program: &Path) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = Command::new("unshare")
        .args(["--mount", "--net", "--propagation", "private", "sh"])
        .args([script, &program.with_file_name("grantway"), program])
        .arg(folder.path())
        .output()
        .expect("unshare starts");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
}
