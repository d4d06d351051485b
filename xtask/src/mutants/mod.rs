//! Mutation tests of the security-critical modules: `cargo-mutants` makes small changes to the
//! code, and a test must detect each.
//!
//! Resumable: results are stored below `target/mutants/`. A new run resumes an interrupted one, and
//! retries undetected mutants and all mutants of changed files. The order is random, so that the
//! results of an interrupted run are a random sample.

mod verdicts;

use crate::{source, workspace};
use anyhow::{Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use verdicts::{Sources, Tally, Verdict, Verdicts};

/// Files that are mutated together.
struct Module {
    name: &'static str,
    package: &'static str,
    /// Files and folders, relative to the workspace's root.
    paths: &'static [&'static str],
    /// The package's test targets that cover the module, as cargo's arguments.
    tests: &'static [&'static str],
    /// Prefixes of the names of the tests that cover the module (empty: every test of the targets).
    names: &'static [&'static str],
}

const MODULES: [Module; 5] = [
    Module {
        name: "ring",
        package: "vif",
        // The loom model is not listed, because ordinary builds exclude it.
        paths: &[
            "path/vif/src/ring/back.rs",
            "path/vif/src/ring/consumer.rs",
            "path/vif/src/ring/end.rs",
            "path/vif/src/ring/format.rs",
            "path/vif/src/ring/front.rs",
            "path/vif/src/ring/producer.rs",
            "path/vif/src/ring/slots.rs",
            "path/vif/src/ring/words.rs",
            "path/vif/src/events.rs",
        ],
        tests: &["--lib"],
        names: &["ring::", "events::"],
    },
    Module {
        name: "grants",
        package: "monitor",
        paths: &[
            "tcb/monitor/src/grant/accounts.rs",
            "tcb/monitor/src/grant/audit.rs",
            "tcb/monitor/src/grant/window.rs",
        ],
        tests: &["--lib", "--test=hypercalls", "--test=counted_grants"],
        names: &[],
    },
    Module {
        name: "classic-grants",
        package: "baselines",
        paths: &[
            "lab/baselines/src/audit.rs",
            "lab/baselines/src/usage.rs",
            "lab/baselines/src/copy.rs",
            "lab/baselines/src/entry.rs",
            "lab/baselines/src/map.rs",
            "lab/baselines/src/pages.rs",
        ],
        tests: &["--lib", "--test=grants", "--test=hypercalls"],
        names: &[],
    },
    Module {
        name: "counted-grants",
        package: "monitor",
        paths: &["tcb/monitor/src/grant/counted"],
        tests: &["--test=counted_grants"],
        names: &[],
    },
    Module {
        name: "bridge",
        package: "net",
        paths: &["path/net/src/bridge"],
        tests: &["--lib", "--test=bridge", "--test=bridge_model"],
        names: &[],
    },
];

/// Minimum share of mutants that the tests must detect, percent.
const FLOOR: f64 = 90.0;

/// Limits the CPU time (seconds) and memory (bytes) of a test program, so that a mutant that
/// computes or allocates without end is killed. These limits do not depend on other load.
pub(crate) const RUNNER: &str =
    r#"target.'cfg(unix)'.runner=["prlimit", "--cpu=20", "--data=1073741824", "--core=0"]"#;
/// Timeout for a mutant that only waits, seconds. It is long because a busy machine is slow.
const TEST_SECONDS_MIN: &str = "180";
/// Settings of property tests. A failing test neither shrinks nor stores its case, and the cases
/// are always the same, so that verdicts are reproducible.
pub(crate) const PROPERTY_TESTS: [(&str, &str); 3] = [
    ("PROPTEST_MAX_SHRINK_ITERS", "0"),
    ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1"),
    ("PROPTEST_RNG_SEED", "1"),
];

/// Tests the named modules (empty: all). Fails if the tests detect too few mutants of a module.
pub(crate) fn run(names: &[String]) -> Result<()> {
    let modules = named(names)?;
    let present = workspace::cargo().args(["mutants", "--version"]).output()?;
    ensure!(
        present.status.success(),
        "cargo-mutants is not installed: cargo install --locked cargo-mutants"
    );
    let all = workspace::target_directory()?.join("mutants");
    let mut below = Vec::new();
    for module in modules {
        module.try_open(&all)?;
        let tally = module.write_detected(&all)?;
        ensure!(tally.untried == 0, "cargo-mutants has not tried all");
        if tally.detected_percent() < FLOOR {
            below.push(module.name);
        }
    }
    ensure!(below.is_empty(), "below {FLOOR} %: {}", below.join(", "));
    Ok(())
}

/// Prints the stored results of the named modules (empty: all) without a run.
pub(crate) fn print_stored(names: &[String]) -> Result<()> {
    let all = workspace::target_directory()?.join("mutants");
    for module in named(names)? {
        module.write_detected(&all)?;
    }
    Ok(())
}

/// Returns the modules of these names (empty: all).
fn named(names: &[String]) -> Result<Vec<Module>> {
    let known = MODULES.map(|module| module.name);
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("no such module: {name} (choose from {})", known.join(", "));
    }
    let is_named = |module: &Module| names.is_empty() || names.iter().any(|n| n == module.name);
    Ok(MODULES.into_iter().filter(is_named).collect())
}

impl Module {
    /// Tries the undetected mutants. `all` is the folder with the results of all modules.
    fn try_open(&self, all: &Path) -> Result<()> {
        let folder = all.join(self.name);
        fs::create_dir_all(&folder)?;
        let verdicts = Verdicts::open(&folder, &self.sources()?)?;
        if !self.list()?.iter().any(|name| verdicts.must_be_tried(name)) {
            return Ok(());
        }
        verdicts.write_skipped()?;
        let status = self
            .cargo_mutants()?
            .args(["--iterate", "--shuffle", "--jobs=1", "--profile=mutants"])
            .args(["--minimum-test-timeout", TEST_SECONDS_MIN])
            .args(self.tests.iter().map(|test| format!("--cargo-arg={test}")))
            .arg(format!("--cargo-arg=--config={RUNNER}"))
            .arg("--output")
            .arg(&folder)
            .env("CARGO_TARGET_DIR", all.join("build"))
            .envs(PROPERTY_TESTS)
            .args(["--", "--"])
            .args(self.names)
            .status()?;
        // 0: Status 0 means that all were detected, 2 that some were missed, 3 that some timed out.
        // Other statuses are errors.
        ensure!(
            matches!(status.code(), Some(0 | 2 | 3)),
            "cargo-mutants failed: {status}"
        );
        Ok(())
    }

    /// Counts and prints the stored results.
    fn write_detected(&self, all: &Path) -> Result<Tally> {
        let folder = all.join(self.name);
        let mutants = self.list()?;
        fs::create_dir_all(&folder)?;
        let verdicts = Verdicts::open(&folder, &self.sources()?)?;
        for verdict in [Verdict::Missed, Verdict::Timeout] {
            let of_this = |name: &&String| verdicts.of(name) == Some(verdict);
            for name in mutants.iter().filter(of_this) {
                println!("{verdict:?}: {name}");
            }
        }
        let tally = verdicts.tally(&mutants);
        println!("{}: {tally}", self.name);
        Ok(tally)
    }

    /// Returns a hash of the content of each of the module's files.
    fn sources(&self) -> Result<Sources> {
        let numbered = |file: PathBuf| {
            let mut hasher = DefaultHasher::new();
            fs::read(workspace::root().join(&file))?.hash(&mut hasher);
            let number = format!("{:016x}", hasher.finish());
            Ok((file.to_string_lossy().into_owned(), number))
        };
        self.files()?.into_iter().map(numbered).collect()
    }

    /// Returns the module's files, relative to the workspace's root.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let root = workspace::root();
        let mut files = Vec::new();
        for path in self.paths {
            let path = root.join(path);
            ensure!(path.exists(), "{} does not exist", path.display());
            for file in source::files(&path)? {
                files.push(file.strip_prefix(&root)?.to_path_buf());
            }
        }
        Ok(files)
    }

    /// Returns the names of the module's mutants.
    fn list(&self) -> Result<Vec<String>> {
        let printed = workspace::output(self.cargo_mutants()?.args(["--list", "--json"]))?;
        let list: Vec<Value> = serde_json::from_str(&printed)?;
        let names = list.iter().filter_map(|mutant| mutant["name"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    fn cargo_mutants(&self) -> Result<Command> {
        let mut command = workspace::cargo();
        command.args(["mutants", "--package", self.package]);
        for file in self.files()? {
            command.arg("--file").arg(file);
        }
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_has_files() {
        for module in MODULES {
            let files = module.files().unwrap();
            assert!(!files.is_empty() && files.iter().all(|file| file.is_relative()));
            assert_eq!(module.sources().unwrap().len(), files.len());
        }
    }

    #[test]
    fn an_unknown_module_is_an_error() {
        let error = run(&["rings".into()]).unwrap_err().to_string();
        assert_eq!(
            error,
            "no such module: rings (choose from ring, grants, classic-grants, counted-grants, \
             bridge)"
        );
    }
}
