//! Shell scripts that test a program with a real container runtime.

use crate::requirements::{DEBIAN_13, debian_13_root};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// The top folder of the source tree.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Makes ROOT the root folder, with the kernel's file systems and each of the folders before `--`
/// at the same path, and executes a command there. A root that is only changed by `chroot` is no
/// mount point, which container runtimes need.
const IN_ROOT: &str = r#"
set -eu
root=$1
shift
mount --bind "$root" "$root"
for folder in /proc /sys /dev; do mount --rbind "$folder" "$root$folder"; done
while [ "$1" != -- ]; do
    mkdir -p "$root$1"
    mount --bind "$1" "$root$1"
    shift
done
shift
mkdir -p "$root/old"
cd "$root"
pivot_root . old
umount -l /old
exec "$@"
"#;

/// Runs `SCRIPT GRANTWAY PROGRAM FOLDER` in new mount and network namespaces, with an empty
/// temporary folder. `grantway` is next to the program.
///
/// # Panics
///
/// Panics if the script fails, with its standard error.
#[track_caller]
pub fn run_script(script: &Path, program: &Path) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    run(&[], script, program, folder.path());
}

/// Like [`run_script`], on Debian 13 instead of this system. The kernel is this system's.
///
/// # Panics
///
/// Panics if the script fails, with its standard error, or if there is no Debian 13.
#[track_caller]
pub fn run_script_on_debian_13(script: &Path, program: &Path) {
    let root = debian_13_root().expect(DEBIAN_13);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = Path::new(SOURCE).canonicalize().expect("the source tree");
    let programs = program.parent().expect("a folder of programs");
    let prefix = ["sh", "-c", IN_ROOT, "sh"].map(OsStr::new);
    let folders = [&*root, &source, programs, folder.path()].map(Path::as_os_str);
    let prefix = [&prefix[..], &folders, &[OsStr::new("--")]].concat();
    run(&prefix, script, program, folder.path());
}

#[track_caller]
fn run(prefix: &[&OsStr], script: &Path, program: &Path, folder: &Path) {
    let run = Command::new("unshare")
        .args(["--mount", "--net", "--propagation", "private"])
        .args(prefix)
        .arg("sh")
        .args([script, &program.with_file_name("grantway"), program])
        .arg(folder)
        .output()
        .expect("unshare starts");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
}
