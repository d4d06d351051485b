//! Mutation tests of the modules whose mistakes would be breaches: `cargo-mutants` changes the
//! code in small ways, and a test must notice each.
//!
//! Resumable: what became of a mutant is kept below `target/mutants/`. A run that was broken off
//! goes on where it stopped, and one after tests were added tries only what they had missed. When
//! a file of a module changes, the module begins anew.

mod verdicts;

use crate::{source, workspace};
use anyhow::{Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use verdicts::{Tally, Verdict, Verdicts};

/// What is mutated together.
struct Module {
    name: &'static str,
    package: &'static str,
    /// Files and folders, from the workspace's root.
    paths: &'static [&'static str],
    /// The package's test targets that are about it, as cargo's arguments.
    tests: &'static [&'static str],
}

const MODULES: [Module; 3] = [
    Module {
        name: "ring",
        package: "vif",
        // Without the loom model, which an ordinary build leaves out.
        paths: &[
            "path/vif/src/ring/back.rs",
            "path/vif/src/ring/front.rs",
            "path/vif/src/ring/mod.rs",
            "path/vif/src/ring/words.rs",
            "path/vif/src/events.rs",
        ],
        tests: &["--lib"],
    },
    Module {
        name: "grants",
        package: "monitor",
        paths: &["tcb/monitor/src/grant"],
        tests: &["--lib", "--test=grants", "--test=hypercalls"],
    },
    Module {
        name: "bridge",
        package: "net",
        paths: &["path/net/src/bridge"],
        tests: &["--lib", "--test=bridge", "--test=bridge_model"],
    },
];

/// Share of the mutants that the tests must notice, percent.
const FLOOR: f64 = 90.0;

/// The least time that tests get before they count as endless, seconds: a busy machine is slow.
const TEST_SECONDS_MIN: &str = "60";

/// Runs the named modules (none: all) and fails if one is below the floor.
pub(crate) fn run(names: &[String]) -> Result<()> {
    let known = MODULES.map(|module| module.name);
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("no such module: {name} (there are {})", known.join(", "));
    }
    let present = workspace::cargo().args(["mutants", "--version"]).output()?;
    ensure!(
        present.status.success(),
        "cargo-mutants is not installed: cargo install --locked cargo-mutants"
    );
    let all = workspace::target_directory()?.join("mutants");
    let mut below = Vec::new();
    for module in MODULES {
        if !names.is_empty() && !names.iter().any(|name| name == module.name) {
            continue;
        }
        let name = module.name;
        let tally = module.tested(&all)?;
        println!("{name}: {:.1} % noticed, {tally:?}", tally.noticed());
        if tally.noticed() < FLOOR {
            below.push(name);
        }
    }
    ensure!(below.is_empty(), "below {FLOOR} %: {}", below.join(", "));
    Ok(())
}

impl Module {
    /// Tests what was not yet noticed; `all` is the folder of all modules' results.
    fn tested(&self, all: &Path) -> Result<Tally> {
        let files = self.files()?;
        let folder = all.join(self.name);
        let sources = hash(&files)?;
        let kept = folder.join("sources");
        if fs::read_to_string(&kept).ok().as_ref() != Some(&sources) {
            if folder.exists() {
                fs::remove_dir_all(&folder)?;
            }
            fs::create_dir_all(&folder)?;
            fs::write(&kept, &sources)?;
        }
        let mutants = self.list(&files)?;
        let mut verdicts = Verdicts::open(&folder)?;
        if mutants.iter().any(|name| verdicts.is_open(name)) {
            verdicts.before_a_run()?;
            let status = self
                .cargo_mutants(&files)
                .args(["--iterate", "--no-shuffle", "--jobs=1", "--profile=mutants"])
                .args(["--minimum-test-timeout", TEST_SECONDS_MIN])
                .args(self.tests.iter().map(|test| format!("--cargo-arg={test}")))
                .arg("--output")
                .arg(&folder)
                .env("CARGO_TARGET_DIR", all.join("build"))
                .status()?;
            // 0: all noticed; 2: some missed; 3: some without end. Anything else says nothing.
            ensure!(
                matches!(status.code(), Some(0 | 2 | 3)),
                "cargo-mutants failed: {status}"
            );
            verdicts = Verdicts::open(&folder)?;
        }
        for verdict in [Verdict::Missed, Verdict::Timeout] {
            let of_this = |name: &&String| verdicts.of(name) == Some(verdict);
            for name in mutants.iter().filter(of_this) {
                println!("{verdict:?}: {name}");
            }
        }
        verdicts.tally(&mutants)
    }

    /// Its files, from the workspace's root.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let root = workspace::root();
        let mut files = Vec::new();
        for path in self.paths {
            let path = root.join(path);
            ensure!(path.exists(), "{} is not there", path.display());
            for file in source::files(&path)? {
                files.push(file.strip_prefix(&root)?.to_path_buf());
            }
        }
        Ok(files)
    }

    /// The names of its mutants.
    fn list(&self, files: &[PathBuf]) -> Result<Vec<String>> {
        let output = self
            .cargo_mutants(files)
            .args(["--list", "--json"])
            .output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cargo-mutants: {errors}");
        let list: Vec<Value> = serde_json::from_slice(&output.stdout)?;
        let names = list.iter().filter_map(|mutant| mutant["name"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    fn cargo_mutants(&self, files: &[PathBuf]) -> Command {
        let mut command = workspace::cargo();
        command.args(["mutants", "--package", self.package]);
        for file in files {
            command.arg("--file").arg(file);
        }
        command
    }
}

/// One number for the content of files and their names.
fn hash(files: &[PathBuf]) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.hash(&mut hasher);
        fs::read(workspace::root().join(file))?.hash(&mut hasher);
    }
    Ok(format!("{:016x}\n", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_has_files() {
        for module in MODULES {
            let files = module.files().unwrap();
            assert!(!files.is_empty() && files.iter().all(|file| file.is_relative()));
            assert_eq!(hash(&files).unwrap(), hash(&files).unwrap());
            assert_ne!(hash(&files).unwrap(), hash(&files[1..]).unwrap());
        }
    }

    #[test]
    fn an_unknown_module_is_an_error() {
        let error = run(&["rings".into()]).unwrap_err().to_string();
        assert_eq!(
            error,
            "no such module: rings (there are ring, grants, bridge)"
        );
    }
}
