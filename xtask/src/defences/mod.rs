//! Checks that each defence is tested: `xtask/defences.toml` lists changes of the code that remove
//! a defence, and the test that must then fail. For each row, this task makes the change in a copy
//! of the tree. The test must fail with the change and pass without it.
//!
//! Resumable: a row's result is stored below `target/defences/` until the row, its file or its
//! package's tests change.

mod tree_copy;

use crate::workspace;
use anyhow::{Context, Result, bail, ensure};
use figures::table::table;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use tree_copy::{Scratch, TestRun};

/// The file with the rows.
const TABLE: &str = "xtask/defences.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Defences {
    defence: Vec<Defence>,
}

/// A change that removes a defence, and the test that detects it.
#[derive(Clone, Debug, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
struct Defence {
    /// Description of the defence.
    name: String,
    /// The row of SPECIFICATION's attack table, if the defence has one.
    #[serde(default)]
    attack: Option<u32>,
    /// The file, relative to the workspace's root.
    file: String,
    /// A text that occurs once in the file.
    old: String,
    /// The text that replaces it and removes the defence.
    new: String,
    /// The package of the test.
    package: String,
    /// The test's target, as cargo's argument.
    target: String,
    /// The test's full name.
    test: String,
}

/// Runs `defences [--kept] [NAME…]`, which selects the rows whose names contain one of these words
/// (empty: all rows).
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (options, words): (Vec<&String>, Vec<&String>) =
        args.iter().partition(|arg| arg.starts_with('-'));
    let only_kept = match options.as_slice() {
        [] => false,
        [kept] if *kept == "--kept" => true,
        _ => bail!("defences has no such option: {options:?}"),
    };
    let mut rows = read(&workspace::root())?;
    rows.retain(|row| words.is_empty() || words.iter().any(|word| row.name.contains(*word)));
    ensure!(!rows.is_empty(), "no defence has such a name");
    let folder = workspace::target_directory()?.join("defences");
    fs::create_dir_all(&folder)?;
    let mut kept = StoredVerdicts::open(&folder.join("verdicts.json"))?;
    if !only_kept && rows.iter().any(|row| kept.of(row).is_none()) {
        let scratch = Scratch::new(&folder)?;
        for row in &rows {
            if kept.of(row).is_none() {
                eprintln!("{}", row.name);
                kept.add(row, row.verdict_without(&scratch)?)?;
            }
        }
    }
    let verdict = |row: &Defence| kept.of(row).unwrap_or("not tried").to_owned();
    let lines: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let attack = row.attack.map_or(String::new(), |row| row.to_string());
            vec![row.name.clone(), attack, verdict(row)]
        })
        .collect();
    println!("{}", table(&["defence", "attack", "without it"], &lines));
    let missed = rows.iter().filter(|row| verdict(row) != TEST_FAILS).count();
    ensure!(
        missed == 0 || only_kept,
        "{missed} of {} defences are not tested",
        rows.len()
    );
    Ok(())
}

/// Returns the rows of a workspace. The text of each row must exist.
fn read(root: &Path) -> Result<Vec<Defence>> {
    let path = root.join(TABLE);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let Defences { defence } = toml::from_str(&text).with_context(|| TABLE.to_owned())?;
    for row in &defence {
        row.changed(root)?;
    }
    Ok(defence)
}

/// The expected result of a row.
const TEST_FAILS: &str = "the test fails";

impl Defence {
    /// Returns the text of the row's file without the defence.
    fn changed(&self, root: &Path) -> Result<String> {
        let path = root.join(&self.file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let times = text.matches(&self.old).count();
        ensure!(
            times == 1,
            "{TABLE}: {}: its text occurs {times} times in {}",
            self.name,
            self.file
        );
        Ok(text.replacen(&self.old, &self.new, 1))
    }

    fn verdict_without(&self, scratch: &Scratch) -> Result<&'static str> {
        match scratch.test(&self.package, &self.target, &self.test)? {
            TestRun::Passed => {}
            TestRun::Failed => return Ok("the test also fails with the defence"),
            TestRun::Missing => return Ok("this test does not exist"),
            TestRun::NotBuilt => return Ok("the tree does not compile"),
        }
        let without = self.changed(&workspace::root())?;
        scratch.with(&self.file, &without, || {
            Ok(
                match scratch.test(&self.package, &self.target, &self.test)? {
                    TestRun::Failed => TEST_FAILS,
                    TestRun::Passed => "NOT TEST_FAILS",
                    TestRun::Missing | TestRun::NotBuilt => "does not compile",
                },
            )
        })
    }

    /// Returns a hash of the row and of every file on which its result depends.
    fn number(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        let root = workspace::root();
        // An unreadable file is reported when the change is made.
        fs::read(root.join(&self.file))
            .unwrap_or_default()
            .hash(&mut hasher);
        let of_package = Path::new(&self.file)
            .ancestors()
            .map(|folder| root.join(folder))
            .find(|folder| folder.join("Cargo.toml").exists());
        if let Some(folder) = of_package {
            for tests in [folder.join("src"), folder.join("tests")] {
                for file in crate::source::files(&tests).unwrap_or_default() {
                    fs::read(file).unwrap_or_default().hash(&mut hasher);
                }
            }
        }
        format!("{:016x}", hasher.finish())
    }
}

/// Stored results: the hash and the verdict of each row.
struct StoredVerdicts {
    path: PathBuf,
    verdicts: BTreeMap<String, String>,
}

impl StoredVerdicts {
    fn open(path: &Path) -> Result<Self> {
        let verdicts = match fs::read(path) {
            // An interrupted run may leave an incomplete file. All rows are then tried again.
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(_) => BTreeMap::new(),
        };
        Ok(Self {
            path: path.to_owned(),
            verdicts,
        })
    }

    fn of(&self, row: &Defence) -> Option<&str> {
        self.verdicts.get(&row.number()).map(String::as_str)
    }

    fn add(&mut self, row: &Defence, verdict: &str) -> Result<()> {
        self.verdicts.insert(row.number(), verdict.to_owned());
        let text = serde_json::to_vec_pretty(&self.verdicts)?;
        fs::write(&self.path, text).with_context(|| self.path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_changes_an_existing_text() {
        let rows = read(&workspace::root()).unwrap();
        assert!(rows.len() >= 10);
        for row in rows {
            assert_ne!(row.old, row.new, "{}", row.name);
        }
    }

    #[test]
    fn a_row_with_a_missing_text_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("xtask")).unwrap();
        fs::write(folder.path().join("a.rs"), "let x = 1;\nlet x = 1;\n").unwrap();
        let row = "[[defence]]\nname = \"n\"\nfile = \"a.rs\"\nold = \"let x\"\nnew = \"\"\n\
                   package = \"p\"\ntarget = \"--lib\"\ntest = \"t\"\n";
        fs::write(folder.path().join(TABLE), row).unwrap();
        let error = read(folder.path()).unwrap_err().to_string();
        assert_eq!(
            error,
            "xtask/defences.toml: n: its text occurs 2 times in a.rs"
        );
    }
}
