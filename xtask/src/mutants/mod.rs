//! Mutation tests of the modules whose mistakes would be breaches: `cargo-mutants` changes the
//! code in small ways, and a test must notice each.
//!
//! Resumable: what became of a mutant is kept below `target/mutants/`. A run that was broken off
//! goes on where it stopped, and one after tests were added tries only what they had missed. The
//! mutants of a file that changes begin anew. The order is random, so that what is kept of a run
//! that was broken off is a fair sample.

mod verdicts;

use crate::{source, workspace};
use anyhow::{Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use verdicts::{Sources, Tally, Verdict, Verdicts};

/// What is mutated together.
struct Module {
    name: &'static str,
    package: &'static str,
    /// Files and folders, from the workspace's root.
    paths: &'static [&'static str],
    /// The package's test targets that are about it, as cargo's arguments.
    tests: &'static [&'static str],
    /// What the names of the tests that are about it begin with; none: every test of the targets.
    names: &'static [&'static str],
}

const MODULES: [Module; 5] = [
    Module {
        name: "ring",
        package: "vif",
        // Without the loom model, which an ordinary build leaves out.
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
            "lab/baselines/src/books.rs",
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

/// Share of the mutants that the tests must notice, percent.
const FLOOR: f64 = 90.0;

/// What runs a test program: a mutant that computes for ever, or takes memory for ever, is ended by
/// what it uses, which does not depend on how busy the machine is. Seconds of CPU time, bytes.
pub(crate) const RUNNER: &str =
    r#"target.'cfg(unix)'.runner=["prlimit", "--cpu=20", "--data=1073741824", "--core=0"]"#;
/// Time after which a mutant that only waits is ended, seconds: a busy machine is slow.
const TEST_SECONDS_MIN: &str = "180";
/// A property test that fails has said enough: it need not look for the smallest case, nor write
/// it down. The same cases each time, so that a verdict can be had again.
pub(crate) const PROPERTY_TESTS: [(&str, &str); 3] = [
    ("PROPTEST_MAX_SHRINK_ITERS", "0"),
    ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1"),
    ("PROPTEST_RNG_SEED", "1"),
];

/// Runs the named modules (none: all) and fails if one is below the floor.
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
        let tally = module.told(&all)?;
        ensure!(tally.untried == 0, "cargo-mutants has not tried all");
        if tally.noticed() < FLOOR {
            below.push(module.name);
        }
    }
    ensure!(below.is_empty(), "below {FLOOR} %: {}", below.join(", "));
    Ok(())
}

/// Prints what is kept of the named modules (none: all), without running anything.
pub(crate) fn print_kept(names: &[String]) -> Result<()> {
    let all = workspace::target_directory()?.join("mutants");
    for module in named(names)? {
        module.told(&all)?;
    }
    Ok(())
}

/// The modules of these names (none: all).
fn named(names: &[String]) -> Result<Vec<Module>> {
    let known = MODULES.map(|module| module.name);
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("no such module: {name} (there are {})", known.join(", "));
    }
    let is_named = |module: &Module| names.is_empty() || names.iter().any(|n| n == module.name);
    Ok(MODULES.into_iter().filter(is_named).collect())
}

impl Module {
    /// Tries what was not yet noticed; `all` is the folder of all modules' results.
    fn try_open(&self, all: &Path) -> Result<()> {
        let folder = all.join(self.name);
        fs::create_dir_all(&folder)?;
        let verdicts = Verdicts::open(&folder, &self.sources()?)?;
        if !self.list()?.iter().any(|name| verdicts.is_open(name)) {
            return Ok(());
        }
        verdicts.before_a_run()?;
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
        // 0: all noticed; 2: some missed; 3: some without end. Anything else says nothing.
        ensure!(
            matches!(status.code(), Some(0 | 2 | 3)),
            "cargo-mutants failed: {status}"
        );
        Ok(())
    }

    /// Counts and prints what is kept.
    fn told(&self, all: &Path) -> Result<Tally> {
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

    /// A number for the content of each of its files.
    fn sources(&self) -> Result<Sources> {
        let numbered = |file: PathBuf| {
            let mut hasher = DefaultHasher::new();
            fs::read(workspace::root().join(&file))?.hash(&mut hasher);
            let number = format!("{:016x}", hasher.finish());
            Ok((file.to_string_lossy().into_owned(), number))
        };
        self.files()?.into_iter().map(numbered).collect()
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
            "no such module: rings (there are ring, grants, classic-grants, counted-grants, bridge)"
        );
    }
}
