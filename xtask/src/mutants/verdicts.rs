//! Stores the verdict on each mutant in the file `verdicts`. Each line holds a verdict and a
//! mutant's name, which begins with file, line and column. The file `sources` identifies the
//! sources: each line holds a hash of the content and a path.

use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A hash of the content of each file, by its path.
pub(super) type Sources = BTreeMap<String, String>;

/// The verdict on a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Caught,
    Missed,
    Timeout,
    /// The mutant does not compile.
    Unviable,
}

impl Verdict {
    /// Converts cargo-mutants' name in `outcomes.json`. Returns `None` for outcomes that are not
    /// verdicts: the baseline and a run without tests.
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

/// The number of mutants of a module with each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    caught: u64,
    missed: u64,
    timeout: u64,
    unviable: u64,
    pub(super) untried: u64,
}

impl Tally {
    /// Returns the share of detected mutants among those that were tried and compile, percent. A
    /// timeout counts as detected.
    pub(super) fn detected_percent(self) -> f64 {
        let detected = (self.caught + self.timeout) as f64;
        let all = detected + self.missed as f64;
        if all == 0.0 {
            100.0
        } else {
            100.0 * detected / all
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detected_percent = self.detected_percent();
        let Self {
            caught,
            missed,
            timeout,
            unviable,
            untried,
        } = self;
        write!(
            f,
            "{detected_percent:.1} % detected: {caught} caught, {timeout} timed out, \
             {missed} missed; {unviable} do not compile, {untried} not tried"
        )
    }
}

/// Returns the lines of a file, each split at its first space, or no lines if the file does not
/// exist.
fn pairs(file: &Path) -> Result<impl Iterator<Item = (String, String)> + use<>> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let cut = |line: &str| {
        let (first, rest) = line.split_once(' ')?;
        Some((first.to_owned(), rest.to_owned()))
    };
    let pairs: Option<Vec<_>> = text.lines().map(cut).collect();
    let pairs = pairs.with_context(|| format!("{} has an invalid line", file.display()))?;
    Ok(pairs.into_iter())
}

/// The verdicts of a module.
#[derive(Debug)]
pub(super) struct Verdicts {
    /// The module's folder, in which cargo-mutants creates `mutants.out`.
    folder: PathBuf,
    by_name: BTreeMap<String, Verdict>,
}

impl Verdicts {
    /// Reads the stored verdicts on these sources, and adds the verdicts of the last run, even if
    /// it was interrupted.
    pub(super) fn open(folder: &Path, sources: &Sources) -> Result<Self> {
        let mut verdicts = Self {
            folder: folder.to_path_buf(),
            by_name: BTreeMap::new(),
        };
        let (file, kept) = (folder.join("sources"), folder.join("verdicts"));
        for (word, name) in pairs(&kept)? {
            let verdict = Verdict::from_word(&word).with_context(|| format!("verdict {word}"))?;
            verdicts.by_name.insert(name, verdict);
        }
        let outcomes = folder.join("mutants.out/outcomes.json");
        // An interrupted run may leave an incomplete file. Its mutants are tried again.
        if let Ok(bytes) = fs::read(&outcomes) {
            if let Ok(outcomes) = serde_json::from_slice(&bytes) {
                verdicts.add(&outcomes);
            }
            fs::remove_file(outcomes)?;
        }
        // Stored verdicts apply only to files that have not changed since.
        let then: Sources = pairs(&file)?.map(|(number, path)| (path, number)).collect();
        verdicts.by_name.retain(|name, _| {
            let path = name.split(':').next().unwrap_or_default();
            sources.contains_key(path) && then.get(path) == sources.get(path)
        });
        verdicts.write()?;
        let lines = sources.iter();
        let lines = lines.map(|(path, number)| format!("{number} {path}\n"));
        fs::write(file, lines.collect::<String>())?;
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

    /// Returns the verdict on a mutant, or `None` if it was not tried.
    pub(super) fn of(&self, name: &str) -> Option<Verdict> {
        self.by_name.get(name).copied()
    }

    /// Returns whether a mutant must be tried, or tried again.
    pub(super) fn must_be_tried(&self, name: &str) -> bool {
        !matches!(self.of(name), Some(Verdict::Caught | Verdict::Unviable))
    }

    /// Writes the list of mutants that the next run of cargo-mutants with `--iterate` skips.
    pub(super) fn write_skipped(&self) -> Result<()> {
        let out = self.folder.join("mutants.out");
        if out.exists() {
            fs::remove_dir_all(&out)?;
        }
        fs::create_dir(&out)?;
        let settled = self.by_name.keys().filter(|name| !self.must_be_tried(name));
        let settled: String = settled.map(|name| format!("{name}\n")).collect();
        Ok(fs::write(out.join("previously_caught.txt"), settled)?)
    }

    /// Counts the verdicts of all existing mutants.
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

    /// The format of cargo-mutants 27.1, without unused fields.
    const OUTCOMES: &str = r#"{
      "outcomes": [
        {"scenario": "Baseline", "summary": "Success"},
        {"scenario": {"Mutant": {"name": "a.rs:1:2: replace f with ()", "package": "net"}},
         "summary": "CaughtMutant"},
        {"scenario": {"Mutant": {"name": "a.rs:3:4: replace + with - in g"}},
         "summary": "MissedMutant"},
        {"scenario": {"Mutant": {"name": "b.rs:5:6: delete !"}}, "summary": "Timeout"},
        {"scenario": {"Mutant": {"name": "b.rs:7:8: replace h with None"}}, "summary": "Unviable"}
      ],
      "total_mutants": 4, "missed": 1, "caught": 1, "timeout": 1, "unviable": 1, "success": 0
    }"#;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|&name| name.to_owned()).collect()
    }

    fn sources(all: &[(&str, &str)]) -> Sources {
        let owned = all
            .iter()
            .map(|&(path, number)| (path.into(), number.into()));
        owned.collect()
    }

    #[test]
    fn the_next_run_retries_missed_mutants() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("mutants.out");
        let now = sources(&[("a.rs", "1"), ("b.rs", "2")]);
        let open = || Verdicts::open(folder.path(), &now).unwrap();
        let ran = |text: &str| fs::write(out.join("outcomes.json"), text).unwrap();
        let all = names(&[
            "a.rs:1:2: replace f with ()",
            "a.rs:3:4: replace + with - in g",
            "b.rs:5:6: delete !",
            "b.rs:7:8: replace h with None",
        ]);
        open().write_skipped().unwrap();
        ran(OUTCOMES);

        let verdicts = open();
        assert_eq!(
            all.iter()
                .map(|name| verdicts.must_be_tried(name))
                .collect::<Vec<_>>(),
            [false, true, true, false]
        );
        assert!(verdicts.must_be_tried("c.rs:9:9: not tried"));
        verdicts.write_skipped().unwrap();
        let skipped = fs::read_to_string(out.join("previously_caught.txt")).unwrap();
        assert_eq!(skipped, format!("{}\n{}\n", all[0], all[3]));

        // The next run detects one more, and is interrupted while it writes.
        ran(&OUTCOMES.replace("MissedMutant", "CaughtMutant"));
        open();
        ran(&OUTCOMES[..100]);
        let more = [all, names(&["b.rs:9:9: not tried"])].concat();
        assert_eq!(
            open().tally(&more).to_string(),
            "100.0 % detected: 2 caught, 1 timed out, 0 missed; 1 do not compile, 1 not tried"
        );
    }

    #[test]
    fn mutants_of_a_changed_file_are_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let open = |all| Verdicts::open(folder.path(), &sources(all)).unwrap();
        let before = open(&[("a.rs", "1"), ("b.rs", "2")]);
        before.write_skipped().unwrap();
        fs::write(folder.path().join("mutants.out/outcomes.json"), OUTCOMES).unwrap();
        // The file b.rs has changed during the run, so its verdicts do not apply.
        let after = open(&[("a.rs", "1"), ("b.rs", "3")]);
        assert_eq!(
            after.of("a.rs:1:2: replace f with ()"),
            Some(Verdict::Caught)
        );
        assert_eq!(after.of("b.rs:7:8: replace h with None"), None);
        let back = open(&[("a.rs", "1"), ("b.rs", "2")]);
        assert_eq!(back.by_name.len(), 2);
        assert_eq!(open(&[("b.rs", "2")]).by_name.len(), 0);
    }

    #[test]
    fn timeouts_count_as_detected() {
        let tally = Tally {
            caught: 7,
            missed: 1,
            timeout: 2,
            unviable: 3,
            untried: 4,
        };
        assert_eq!(tally.detected_percent(), 90.0);
        assert_eq!(Tally::default().detected_percent(), 100.0);
    }
}
