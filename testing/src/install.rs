//! Installs programs in folders of a test's choice.

use crate::requirements::MACHINE;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

// A file that is open for writing cannot be executed. If this process wrote the file, a child that
// another thread forks in the meantime would hold the file open until its exec. Therefore child
// processes write the files.

/// Places a program of this build at `to`, as a hard link or, if that is impossible, as a copy.
///
/// # Panics
///
/// Panics if `to` exists or cannot be created.
#[track_caller]
pub fn place_program(from: &Path, to: &Path) {
    assert!(!to.exists(), "{} already exists", to.display());
    if fs::hard_link(from, to).is_ok() {
        return;
    }
    let copied = Command::new("cp").arg("--").arg(from).arg(to).status();
    assert!(copied.expect("cp starts").success(), "{}", from.display());
}

/// Places `grantway` and the programs of a machine in a folder. The programs are next to
/// `grantway`.
///
/// # Panics
///
/// Panics like [`place_program`].
#[track_caller]
pub fn place_machine(grantway: &Path, folder: &Path) {
    for name in MACHINE.iter().chain(&["grantway"]) {
        place_program(&grantway.with_file_name(name), &folder.join(name));
    }
}

/// Writes a shell script to `to`, replacing an existing file.
///
/// # Panics
///
/// Panics if it cannot be written.
#[track_caller]
pub fn place_script(to: &Path, script: &str) {
    // Replace the file, not its contents, because the old file may be a program of this build.
    let _ = fs::remove_file(to);
    let mut writer = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(to)
        .stdin(Stdio::piped())
        .spawn()
        .expect("sh starts");
    let mut text = writer.stdin.take().expect("a pipe");
    write!(text, "#!/bin/sh\n{script}\n").expect("it reads");
    drop(text);
    assert!(writer.wait().expect("its end").success());
}
