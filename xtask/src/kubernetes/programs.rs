//! The programs of a cluster: Kubernetes' programs, which are built once, and programs of this
//! system.

use crate::xen::find;
use crate::{build, workspace};
use anyhow::{Context, Result, ensure};
use figures::Failure;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The version of Kubernetes, as in `xtask/kubernetes/programs/go.mod`.
const VERSION: &str = "1.33.13";

/// Required programs of this system, and the package of each.
const REQUIRED_PROGRAMS: [(&str, &str); 10] = [
    ("containerd", "Debian's package containerd"),
    ("ctr", "Debian's package containerd"),
    ("runc", "Debian's package runc"),
    ("busybox", "Debian's package busybox-static"),
    ("conntrack", "Debian's package conntrack"),
    ("iptables", "Debian's package iptables"),
    ("curl", "Debian's package curl"),
    ("ip", "Debian's package iproute2"),
    ("nsenter", "Debian's package util-linux"),
    ("unshare", "Debian's package util-linux"),
];

/// Returns a sentence that names what this system lacks, or `None` if it lacks nothing.
pub(super) fn missing(home: &Path) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("a cluster needs root: nodes are namespaces".to_owned());
    }
    for (program, package) in REQUIRED_PROGRAMS {
        if find(program).is_none() {
            return Some(format!("{program} is missing: install {package}"));
        }
    }
    let plugins = Path::new("/usr/lib/cni");
    for plugin in ["host-local", "loopback", "portmap"] {
        if !plugins.join(plugin).is_file() {
            let package = "Debian's package containernetworking-plugins";
            return Some(format!("the plugin {plugin} is missing: install {package}"));
        }
    }
    if find("go").is_none() && !is_built(home) {
        return Some("go is missing, which builds Kubernetes: install Go 1.24 or later".to_owned());
    }
    None
}

/// Paths of a cluster's programs.
pub(super) struct Components {
    /// The binary with all components of Kubernetes.
    pub(super) kubernetes: PathBuf,
    /// The folder of Grantway's programs.
    pub(super) grantway: PathBuf,
}

/// Builds missing programs.
pub(super) fn ready(home: &Path) -> Result<Components> {
    let grantway = build()?;
    let kubernetes = home.join("kubernetes");
    if !is_built(home) {
        compile(home, &kubernetes)?;
    }
    Ok(Components {
        kubernetes,
        grantway,
    })
}

/// Builds Grantway's programs in the same way as for its tests. Returns their folder.
fn build() -> Result<PathBuf> {
    let installed = build::PROGRAMS.iter();
    let installed = installed.filter(|(.., purpose)| *purpose == build::Purpose::Use);
    let targets: Vec<&str> = installed.flat_map(|(_, name, _)| ["--bin", name]).collect();
    build::as_tested(&targets)
}

fn sources() -> PathBuf {
    workspace::root().join("xtask/kubernetes/programs")
}

/// Returns everything that determines the binary's contents.
fn build_inputs() -> Result<String> {
    let mut text = VERSION.to_owned();
    for name in ["go.mod", "go.sum", "main.go"] {
        let path = sources().join(name);
        text += &fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    }
    Ok(text)
}

fn is_built(home: &Path) -> bool {
    let built = fs::read_to_string(home.join("kubernetes.built"));
    home.join("kubernetes").is_file() && built.ok() == build_inputs().ok()
}

/// Phrases in Go's messages about modules that are invalid regardless of their source. They do not
/// include phrases about missing modules, because a proxy may lack some modules.
const INVALID_MODULE: [&str; 3] = ["SECURITY ERROR", "checksum mismatch", "missing go.sum"];
/// Phrases in Go's messages about a proxy or repository that does not answer or rejects the
/// request.
const UNREACHABLE: [&str; 2] = ["https://", "dial tcp"];

/// Downloads the modules for building Kubernetes, unless it is already built.
///
/// # Errors
/// Returns [`Failure::CannotRun`] if the modules cannot be downloaded here, and another error if
/// the list of modules is wrong.
pub(super) fn fetch(home: &Path) -> Result<()> {
    if is_built(home) {
        return Ok(());
    }
    let mut list = go("list");
    list.args(["-mod=readonly", "-deps", "."])
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let output = list.output().context("cannot run go")?;
    let messages = String::from_utf8_lossy(&output.stderr);
    eprint!("{messages}");
    ensure!(
        output.status.success() || !is_unreachable(&messages),
        Failure::CannotRun("go cannot download the modules of Kubernetes".to_owned())
    );
    ensure!(
        output.status.success(),
        "go rejects the modules of Kubernetes"
    );
    Ok(())
}

/// Returns whether Go's messages report only downloads that failed on this system.
fn is_unreachable(messages: &str) -> bool {
    let have = |phrases: &[&str]| phrases.iter().any(|phrase| messages.contains(phrase));
    !have(&INVALID_MODULE) && have(&UNREACHABLE)
}

/// Returns a Go command for the sources of the components.
fn go(verb: &str) -> Command {
    let mut go = Command::new("go");
    go.arg(verb).env("CGO_ENABLED", "0").current_dir(sources());
    go
}

fn compile(home: &Path, binary: &Path) -> Result<()> {
    println!("building Kubernetes {VERSION} from Go modules: 6 minutes, 3 GB in Go's cache");
    let began = Instant::now();
    let version = "k8s.io/component-base/version";
    let mut parts = VERSION.split('.');
    let (major, minor) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let flags = format!(
        "-s -w -X {version}.gitVersion=v{VERSION} -X {version}.gitMajor={major} \
         -X {version}.gitMinor={minor}"
    );
    let mut build = go("build");
    build
        .args(["-mod=readonly", "-trimpath", "-ldflags", &flags])
        .arg("-o")
        .arg(binary)
        .arg(".");
    let status = build.status().context("cannot run go")?;
    ensure!(status.success(), "go cannot build Kubernetes");
    fs::write(home.join("kubernetes.built"), build_inputs()?)?;
    println!("built in {} s", began.elapsed().as_secs());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_downloads_differ_from_wrong_modules() {
        let proxy = "go: downloading k8s.io/api v0.33.13\ngo: k8s.io/api@v0.33.13: Get \
                     \"https://proxy.golang.org/k8s.io/api/@v/v0.33.13.zip\": dial tcp: lookup \
                     proxy.golang.org: no such host\n";
        let refused = "main.go:4:2: k8s.io/api@v0.33.13: reading https://proxy.golang.org/k8s.io/\
                       api/@v/v0.33.13.zip: 403 Forbidden\n";
        for messages in [proxy, refused] {
            assert!(is_unreachable(messages), "{messages}");
        }
        let no_sum = "go: downloading k8s.io/api v0.33.13\nmain.go:4:2: missing go.sum entry for \
                      module providing package k8s.io/api\n";
        let forged = "verifying k8s.io/api@v0.33.13: checksum mismatch\nSECURITY ERROR\n";
        let syntax = "go: errors parsing go.mod:\ngo.mod:3: unknown directive: goo\n";
        let mixed = format!("{proxy}{forged}");
        for messages in [no_sum, forged, syntax, &mixed] {
            assert!(!is_unreachable(messages), "{messages}");
        }
    }
}
