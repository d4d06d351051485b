//! Passes the commit of the git checkout to the crate at build time. A program that was copied
//! elsewhere cannot determine the commit at run time.

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
    // A new commit changes HEAD, the branch to which HEAD refers, or the packed branches.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD", "packed-refs"].into_iter().map(str::to_owned);
    for name in names.chain(branch) {
        let path = git(&["rev-parse", "--git-path", &name]);
        // If a path does not exist, Cargo rebuilds the crate every time.
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}

/// Runs git in this folder and returns its output.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
