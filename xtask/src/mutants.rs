//! Mutation tests of the modules whose mistakes would be breaches: `cargo-mutants` changes the
//! code in small ways, and a test must notice each. File by file, so that a run can be broken off
//! and taken up again: what is finished is kept in `target/mutants/` until its file changes.

use crate::{source, workspace};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// Name, package and folders or files of each module.
const MODULES: [(&str, &str, &[&str]); 3] = [
    (
        "ring",
        "vif",
        &["path/vif/src/ring", "path/vif/src/events.rs"],
    ),
    ("grants", "monitor", &["tcb/monitor/src/grant"]),
    ("bridge", "net", &["path/net/src/bridge"]),
];

/// Share of the mutants that the tests must notice, percent.
const FLOOR: f64 = 90.0;

/// What became of the mutants of a file or module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    caught: u64,
    missed: u64,
    timeout: u64,
    unviable: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.caught += other.caught;
        self.missed += other.missed;
        self.timeout += other.timeout;
        self.unviable += other.unviable;
    }

    /// Share of the mutants that were noticed, percent. One that never ends was noticed.
    fn noticed(self) -> f64 {
        let noticed = (self.caught + self.timeout) as f64;
        let all = noticed + self.missed as f64;
        if all == 0.0 {
            100.0
        } else {
            100.0 * noticed / all
        }
    }

    fn read(text: &str) -> Option<(u64, Self)> {
        let mut words = text.split_whitespace().map(str::parse);
        let mut next = || words.next()?.ok();
        let (hash, caught, missed, timeout, unviable) =
            (next()?, next()?, next()?, next()?, next()?);
        Some((
            hash,
            Self {
                caught,
                missed,
                timeout,
                unviable,
            },
        ))
    }
}

/// Runs the named modules (none: all) and fails if one is below the floor.
pub(crate) fn run(names: &[String]) -> Result<()> {
    if let Some(name) = names
        .iter()
        .find(|name| !MODULES.iter().any(|module| module.0 == *name))
    {
        bail!("no such module: {name} (there are ring, grants, bridge)");
    }
    let present = workspace::cargo().args(["mutants", "--version"]).output()?;
    ensure!(
        present.status.success(),
        "cargo-mutants is not installed: cargo install --locked cargo-mutants"
    );
    let mut below = Vec::new();
    for (name, package, paths) in MODULES {
        if !names.is_empty() && !names.iter().any(|wanted| wanted == name) {
            continue;
        }
        let tally = module(name, package, paths)?;
        let noticed = tally.noticed();
        println!("{name}: {noticed:.1} % noticed, {tally:?}");
        if noticed < FLOOR {
            below.push(name);
        }
    }
    ensure!(below.is_empty(), "below {FLOOR} %: {}", below.join(", "));
    Ok(())
}

/// Every file of a module.
fn module(name: &str, package: &str, paths: &[&str]) -> Result<Tally> {
    let root = workspace::root();
    let mut tally = Tally::default();
    for path in paths
        .iter()
        .map(|path| root.join(path))
        .filter(|path| path.exists())
    {
        for file in source::files(&path)? {
            let file = file.strip_prefix(&root)?;
            tally.add(one_file(name, package, file)?);
        }
    }
    Ok(tally)
}

/// The kept result of a file, or a new one.
fn one_file(module: &str, package: &str, file: &Path) -> Result<Tally> {
    let root = workspace::root();
    let flat = file.display().to_string().replace(['/', '.'], "-");
    let folder = root.join("target/mutants").join(module).join(flat);
    let mut hasher = DefaultHasher::new();
    fs::read(root.join(file))?.hash(&mut hasher);
    let hash = hasher.finish();
    let done = folder.join("done");
    let kept = fs::read_to_string(&done)
        .ok()
        .and_then(|text| Tally::read(&text));
    if let Some((_, tally)) = kept.filter(|kept| kept.0 == hash) {
        println!("{}: kept {tally:?}", file.display());
        return Ok(tally);
    }
    fs::create_dir_all(&folder)?;
    let status = workspace::cargo()
        .args(["mutants", "--no-shuffle", "--package", package, "--file"])
        .arg(file)
        .arg("--output")
        .arg(&folder)
        .status()?;
    // 0: all noticed; 2: some missed; 3: some without end. Anything else says nothing.
    ensure!(
        matches!(status.code(), Some(0 | 2 | 3)),
        "cargo-mutants failed: {status}"
    );
    let tally = outcome(&folder.join("mutants.out/outcomes.json"))?;
    let Tally {
        caught,
        missed,
        timeout,
        unviable,
    } = tally;
    fs::write(
        &done,
        format!("{hash} {caught} {missed} {timeout} {unviable}\n"),
    )?;
    Ok(tally)
}

/// The sums that cargo-mutants leaves; a file without mutants leaves none.
fn outcome(path: &Path) -> Result<Tally> {
    if !path.exists() {
        return Ok(Tally::default());
    }
    let outcomes: Value = serde_json::from_slice(&fs::read(path)?)?;
    let sum = |key: &str| {
        outcomes[key]
            .as_u64()
            .with_context(|| format!("no sum of {key}"))
    };
    Ok(Tally {
        caught: sum("caught")?,
        missed: sum("missed")?,
        timeout: sum("timeout")?,
        unviable: sum("unviable")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_result_reads_as_it_was_written() {
        let tally = Tally {
            caught: 7,
            missed: 1,
            timeout: 2,
            unviable: 3,
        };
        assert_eq!(Tally::read("99 7 1 2 3\n"), Some((99, tally)));
        assert_eq!(Tally::read("99 7 1"), None);
        assert_eq!(tally.noticed(), 90.0);
        assert_eq!(Tally::default().noticed(), 100.0);
    }
}
