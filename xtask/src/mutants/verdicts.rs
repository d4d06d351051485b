//! What became of each mutant, kept over runs in the file `verdicts`: a line each, the verdict and
//! the name (which begins with file, line and column); of two lines the later counts.

use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Caught,
    Missed,
    Timeout,
    /// It does not compile.
    Unviable,
}

impl Verdict {
    /// As cargo-mutants calls it in `outcomes.json`; None: no verdict (the baseline, a run without
    /// tests).
    fn from_summary(summary: &str) -> Option<Self> {
        Some(match summary {
            "CaughtMutant" => Self::Caught,
            "MissedMutant" => Self::Missed,
            "Timeout" => Self::Timeout,
            "Unviable" => Self::Unviable,
            _ => return None,
        })
    }

    fn word(self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::Missed => "missed",
            Self::Timeout => "timeout",
            Self::Unviable => "unviable",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        [Self::Caught, Self::Missed, Self::Timeout, Self::Unviable]
            .into_iter()
            .find(|verdict| verdict.word() == word)
    }
}

/// What became of the mutants of a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    caught: u64,
    missed: u64,
    timeout: u64,
    unviable: u64,
    pub(super) untried: u64,
}

impl Tally {
    /// Nothing was tried.
    pub(super) fn of_none(mutants: &[String]) -> Self {
        Self {
            untried: mutants.len() as u64,
            ..Self::default()
        }
    }

    /// Share of the mutants that were tried and compile that was noticed, percent. One that never
    /// ends was noticed.
    pub(super) fn noticed(self) -> f64 {
        let noticed = (self.caught + self.timeout) as f64;
        let all = noticed + self.missed as f64;
        if all == 0.0 {
            100.0
        } else {
            100.0 * noticed / all
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noticed = self.noticed();
        let Self {
            caught,
            missed,
            timeout,
            unviable,
            untried,
        } = self;
        write!(
            f,
            "{noticed:.1} % noticed: {caught} caught, {timeout} without end, {missed} missed; \
             {unviable} do not compile, {untried} not tried"
        )
    }
}

/// The verdicts of a module.
#[derive(Debug)]
pub(super) struct Verdicts {
    /// The module's folder, in which cargo-mutants makes `mutants.out`.
    folder: PathBuf,
    by_name: BTreeMap<String, Verdict>,
}

impl Verdicts {
    /// Reads what is kept, and keeps what the last run, whether it came to its end or not, has
    /// found beyond that.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let mut verdicts = Self {
            folder: folder.to_path_buf(),
            by_name: BTreeMap::new(),
        };
        let kept = fs::read_to_string(folder.join("verdicts")).unwrap_or_default();
        for line in kept.lines() {
            let (word, name) = line.split_once(' ').context("a verdict without a name")?;
            let verdict = Verdict::from_word(word).with_context(|| format!("verdict {word}"))?;
            verdicts.by_name.insert(name.to_owned(), verdict);
        }
        let outcomes = folder.join("mutants.out/outcomes.json");
        // A run that is broken off while it writes leaves half a file; its mutants are tried again.
        if let Ok(outcomes) = fs::read(outcomes)
            && let Ok(outcomes) = serde_json::from_slice(&outcomes)
        {
            verdicts.add(&outcomes);
            verdicts.write()?;
        }
        Ok(verdicts)
    }

    fn add(&mut self, outcomes: &Value) {
        for outcome in outcomes["outcomes"].as_array().into_iter().flatten() {
            let name = outcome["scenario"]["Mutant"]["name"].as_str();
            let verdict = outcome["summary"].as_str().and_then(Verdict::from_summary);
            if let (Some(name), Some(verdict)) = (name, verdict) {
                self.by_name.insert(name.to_owned(), verdict);
            }
        }
    }

    fn write(&self) -> Result<()> {
        let lines = self.by_name.iter();
        let lines = lines.map(|(name, verdict)| format!("{} {name}\n", verdict.word()));
        let new = self.folder.join("verdicts.new");
        fs::write(&new, lines.collect::<String>())?;
        Ok(fs::rename(new, self.folder.join("verdicts"))?)
    }

    /// What became of a mutant; None: it was not tried.
    pub(super) fn of(&self, name: &str) -> Option<Verdict> {
        self.by_name.get(name).copied()
    }

    /// Whether a mutant has to be tried (again).
    pub(super) fn is_open(&self, name: &str) -> bool {
        !matches!(self.of(name), Some(Verdict::Caught | Verdict::Unviable))
    }

    /// Tells the next run of cargo-mutants with `--iterate` what it need not try.
    pub(super) fn before_a_run(&self) -> Result<()> {
        let out = self.folder.join("mutants.out");
        if out.exists() {
            fs::remove_dir_all(&out)?;
        }
        fs::create_dir(&out)?;
        let settled = self.by_name.keys().filter(|name| !self.is_open(name));
        let settled: String = settled.map(|name| format!("{name}\n")).collect();
        Ok(fs::write(out.join("previously_caught.txt"), settled)?)
    }

    /// Counts the verdicts of all the mutants that there are.
    pub(super) fn tally(&self, mutants: &[String]) -> Tally {
        let mut tally = Tally::default();
        for name in mutants {
            let count = match self.of(name) {
                Some(Verdict::Caught) => &mut tally.caught,
                Some(Verdict::Missed) => &mut tally.missed,
                Some(Verdict::Timeout) => &mut tally.timeout,
                Some(Verdict::Unviable) => &mut tally.unviable,
                None => &mut tally.untried,
            };
            *count += 1;
        }
        tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the form of cargo-mutants 27.1, less what nobody reads.
    const OUTCOMES: &str = r#"{
      "outcomes": [
        {"scenario": "Baseline", "summary": "Success"},
        {"scenario": {"Mutant": {"name": "a.rs:1:2: replace f with ()", "package": "net"}},
         "summary": "CaughtMutant"},
        {"scenario": {"Mutant": {"name": "a.rs:3:4: replace + with - in g"}}, "summary": "MissedMutant"},
        {"scenario": {"Mutant": {"name": "b.rs:5:6: delete !"}}, "summary": "Timeout"},
        {"scenario": {"Mutant": {"name": "b.rs:7:8: replace h with None"}}, "summary": "Unviable"}
      ],
      "total_mutants": 4, "missed": 1, "caught": 1, "timeout": 1, "unviable": 1, "success": 0
    }"#;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_run_is_kept_and_the_next_one_tries_what_was_missed() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("mutants.out");
        fs::create_dir(&out).unwrap();
        fs::write(out.join("outcomes.json"), OUTCOMES).unwrap();
        let all = names(&[
            "a.rs:1:2: replace f with ()",
            "a.rs:3:4: replace + with - in g",
            "b.rs:5:6: delete !",
            "b.rs:7:8: replace h with None",
        ]);

        let verdicts = Verdicts::open(folder.path()).unwrap();
        assert_eq!(
            all.iter()
                .map(|name| verdicts.is_open(name))
                .collect::<Vec<_>>(),
            [false, true, true, false]
        );
        assert!(verdicts.is_open("c.rs:9:9: not tried"));
        verdicts.before_a_run().unwrap();
        let told = fs::read_to_string(out.join("previously_caught.txt")).unwrap();
        assert_eq!(told, format!("{}\n{}\n", all[0], all[3]));

        // The next run catches one and is broken off while it writes.
        fs::write(
            out.join("outcomes.json"),
            OUTCOMES.replace("MissedMutant", "CaughtMutant"),
        )
        .unwrap();
        Verdicts::open(folder.path()).unwrap();
        fs::write(out.join("outcomes.json"), &OUTCOMES[..100]).unwrap();
        let verdicts = Verdicts::open(folder.path()).unwrap();
        let more = [all, names(&["c.rs:9:9: not tried"])].concat();
        let tally = verdicts.tally(&more);
        assert_eq!(
            tally.to_string(),
            "100.0 % noticed: 2 caught, 1 without end, 0 missed; 1 do not compile, 1 not tried"
        );
        assert_eq!(Tally::of_none(&more).untried, 5);
    }

    #[test]
    fn shares() {
        let tally = Tally {
            caught: 7,
            missed: 1,
            timeout: 2,
            unviable: 3,
            untried: 4,
        };
        assert_eq!(tally.noticed(), 90.0);
        assert_eq!(Tally::default().noticed(), 100.0);
    }
}
