//! Tells the crate which commit it is built from, if it is built in a git checkout: a program that
//! was copied elsewhere cannot find out.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return;
    };
    let clean = git(&["status", "--porcelain", "--untracked-files=no"]).as_deref() == Some("");
    let mark = if clean { "" } else { "+" };
    println!("cargo:rustc-env=GRANTWAY_COMMIT={commit}{mark}");
    // Another commit shows in HEAD, in the branch that it names, or where branches were packed.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD", "packed-refs"].into_iter().map(str::to_owned);
    for name in names.chain(branch) {
        let path = git(&["rev-parse", "--git-path", &name]);
        // A path that is not there would mean "always".
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}

/// What git prints about the checkout that this folder is in.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
