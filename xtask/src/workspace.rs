//! Cargo's description of the workspace.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate of this workspace.
#[derive(Debug)]
pub(crate) struct Crate {
    pub(crate) name: String,
    /// The folder of the crate's manifest.
    pub(crate) root: PathBuf,
    /// The root files of the crate's library and of each of its programs.
    pub(crate) targets: Vec<PathBuf>,
    /// Crates of this workspace among the normal and build dependencies.
    pub(crate) inside: Vec<String>,
    /// Other crates among these dependencies.
    pub(crate) outside: Vec<String>,
}

/// Returns the folder of the workspace.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// Returns a command for the cargo that runs this program, in this workspace.
pub(crate) fn cargo() -> Command {
    cargo_in(&root())
}

/// Returns a command for the cargo that runs this program, in another workspace.
pub(crate) fn cargo_in(folder: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(folder);
    command
}

/// Runs a command until it exits. Returns its output.
///
/// # Errors
///
/// Returns an error if the command cannot be run or has failed. The error contains its output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let done = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{command:?}: {}", said.trim());
    String::from_utf8(done.stdout).with_context(|| format!("{command:?} prints no UTF-8"))
}

/// Returns cargo's output folder without the target triple. Honours `CARGO_TARGET_DIR`.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let metadata = metadata(&root())?;
    let path = metadata["target_directory"]
        .as_str()
        .context("no target directory")?;
    Ok(path.into())
}

/// Returns every crate of the workspace. Dev-dependencies are excluded: tests may use any crate.
pub(crate) fn crates() -> Result<Vec<Crate>> {
    let metadata = metadata(&root())?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    packages.iter().map(read_crate).collect()
}

/// Returns the names of the integration tests of this workspace.
pub(crate) fn test_targets() -> Result<BTreeSet<String>> {
    let metadata = metadata(&root())?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let targets = packages
        .iter()
        .filter_map(|package| package["targets"].as_array());
    let tests = targets
        .flatten()
        .filter(|target| target["kind"][0] == "test");
    let names = tests.filter_map(|target| target["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

/// Returns the package and the name of each bench of a workspace.
pub(crate) fn bench_targets(folder: &Path) -> Result<Vec<(String, String)>> {
    let metadata = metadata(folder)?;
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        let is_bench = |target: &&Value| target["kind"][0] == "bench";
        let targets = package["targets"].as_array().context("no targets")?;
        for target in targets.iter().filter(is_bench) {
            let name = |of: &Value| of["name"].as_str().unwrap_or_default().to_owned();
            found.push((name(package), name(target)));
        }
    }
    Ok(found)
}

/// Returns every crate that a package links if it is built alone, including the package itself.
/// Excludes procedural macros and crates that only they link.
pub(crate) fn linked(package: &str) -> Result<BTreeSet<String>> {
    let tree = ["tree", "--offline", "--package", package, "--prefix=none"];
    let parts = ["--edges=normal,no-proc-macro", "--format={p}"];
    let lines = output(cargo().args(tree).args(parts))?;
    let names = lines.lines().filter_map(|line| line.split(' ').next());
    Ok(names.map(str::to_owned).collect())
}

fn metadata(folder: &Path) -> Result<Value> {
    let arguments = ["metadata", "--format-version=1", "--no-deps", "--offline"];
    let printed = output(cargo_in(folder).args(arguments))?;
    Ok(serde_json::from_str(&printed)?)
}

fn read_crate(package: &Value) -> Result<Crate> {
    let text = |value: &Value| value.as_str().map(str::to_owned).context("not a string");
    let manifest = PathBuf::from(text(&package["manifest_path"])?);
    let mut found = Crate {
        name: text(&package["name"])?,
        root: manifest
            .parent()
            .context("a manifest without a folder")?
            .to_path_buf(),
        targets: Vec::new(),
        inside: Vec::new(),
        outside: Vec::new(),
    };
    let targets = package["targets"].as_array().context("no targets")?;
    for target in targets.iter().filter(|target| is_product(target)) {
        found.targets.push(text(&target["src_path"])?.into());
    }
    for dependency in package["dependencies"]
        .as_array()
        .context("no dependencies")?
    {
        if dependency["kind"] == "dev" {
            continue;
        }
        let list = match dependency["path"].is_string() {
            true => &mut found.inside,
            false => &mut found.outside,
        };
        list.push(text(&dependency["name"])?);
    }
    Ok(found)
}

/// Returns whether a target is a library or a program, but not a test, a benchmark or a build
/// script.
fn is_product(target: &Value) -> bool {
    let kinds = target["kind"].as_array().into_iter().flatten();
    kinds.filter_map(Value::as_str).any(|kind| {
        let library = kind.ends_with("lib") || kind == "proc-macro";
        library || kind == "bin"
    })
}
