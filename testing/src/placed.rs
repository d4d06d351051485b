//! Programs that a test puts where it wants to run them.

use crate::needs::MACHINE;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

// A file that somebody has open for writing cannot be executed. Were it this process that writes
// it, each child that another thread's test forks meanwhile would hold it open until it becomes
// another program. So children write.

/// Puts a program of this build at `to`: as the same file, or as a copy where that cannot be.
///
/// # Panics
/// It is there already, or cannot be made.
#[track_caller]
pub fn place_program(from: &Path, to: &Path) {
    assert!(!to.exists(), "{} is there already", to.display());
    if fs::hard_link(from, to).is_ok() {
        return;
    }
    let copied = Command::new("cp").arg("--").arg(from).arg(to).status();
    assert!(copied.expect("cp starts").success(), "{}", from.display());
}

/// Puts `grantway` and the programs that a machine consists of into a folder, from that in which
/// `grantway` was built.
///
/// # Panics
/// As [`place_program`].
#[track_caller]
pub fn place_machine(grantway: &Path, folder: &Path) {
    for name in MACHINE.iter().chain(&["grantway"]) {
        place_program(&grantway.with_file_name(name), &folder.join(name));
    }
}

/// Puts a shell script at `to`, in the place of what is there.
///
/// # Panics
/// It cannot be written.
#[track_caller]
pub fn place_script(to: &Path, script: &str) {
    // Another file, not another text: the old one may be a program of this build.
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
