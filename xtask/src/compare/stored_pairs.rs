//! Stores pairs for later runs. Each measurement appends a line of JSON to `pairs.jsonl`.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// A cell's two values, each `None` if that side has no such figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Values {
    pub(super) config: String,
    pub(super) metric: String,
    pub(super) old: Option<f64>,
    pub(super) new: Option<f64>,
}

/// The results of one run on each side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Pair {
    /// The measured tree.
    pub(super) tree: String,
    pub(super) plan: String,
    /// Whether CPU time was stolen even when the run was repeated.
    pub(super) disturbed: bool,
    pub(super) values: Vec<Values>,
}

/// The pairs of one commit and one tree.
#[derive(Debug)]
pub(super) struct StoredPairs {
    file: PathBuf,
    by_plan: BTreeMap<String, Vec<Pair>>,
}

impl StoredPairs {
    /// Reads the pairs of `tree`. If `fresh` is true, discards them.
    pub(super) fn open(folder: &Path, tree: &str, fresh: bool) -> Result<Self> {
        let file = folder.join("pairs.jsonl");
        if fresh && file.exists() {
            fs::remove_file(&file)?;
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        let mut by_plan: BTreeMap<_, Vec<Pair>> = BTreeMap::new();
        // An incomplete line of an interrupted run is ignored.
        let pairs = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        for pair in pairs.filter(|pair: &Pair| pair.tree == tree) {
            by_plan.entry(pair.plan.clone()).or_default().push(pair);
        }
        Ok(Self { file, by_plan })
    }

    /// Adds a pair and appends it to the file.
    pub(super) fn add(&mut self, pair: Pair) -> Result<()> {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.file)
            .with_context(|| self.file.display().to_string())?;
        // The text begins with a newline, because the last line may be incomplete.
        write!(file, "\n{}", serde_json::to_string(&pair)?)?;
        self.by_plan
            .entry(pair.plan.clone())
            .or_default()
            .push(pair);
        Ok(())
    }

    /// Returns the pairs of a plan, in the order of their measurement.
    pub(super) fn of(&self, plan: &str) -> &[Pair] {
        self.by_plan.get(plan).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(tree: &str, plan: &str, new: f64) -> Pair {
        Pair {
            tree: tree.to_owned(),
            plan: plan.to_owned(),
            disturbed: false,
            values: vec![Values {
                config: "ngm-64@load=1".to_owned(),
                metric: "packets".to_owned(),
                old: None,
                new: Some(new),
            }],
        }
    }

    #[test]
    fn pairs_of_the_same_tree_are_continued() {
        let folder = tempfile::tempdir().unwrap();
        let open = |tree, fresh| StoredPairs::open(folder.path(), tree, fresh).unwrap();
        let mut kept = open("a", false);
        assert!(kept.of("base").is_empty());
        for pair in [
            pair("a", "base", 1.5),
            pair("a", "lro", 2.0),
            pair("a", "base", 0.1),
        ] {
            kept.add(pair).unwrap();
        }
        open("b", false).add(pair("b", "base", 9.0)).unwrap();
        let again = open("a", false);
        assert_eq!(again.of("base"), kept.of("base"));
        assert_eq!(again.of("lro").len(), 1);
        assert_eq!(open("b", false).of("base"), [pair("b", "base", 9.0)]);
        assert!(open("a", true).of("base").is_empty());
        assert!(open("a", false).of("base").is_empty());
    }

    #[test]
    fn an_interrupted_line_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let open = || StoredPairs::open(folder.path(), "a", false).unwrap();
        open().add(pair("a", "base", 1.0)).unwrap();
        let file = folder.path().join("pairs.jsonl");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text}\n{}", &text[..40])).unwrap();
        open().add(pair("a", "base", 2.0)).unwrap();
        assert_eq!(open().of("base").len(), 2);
    }
}
