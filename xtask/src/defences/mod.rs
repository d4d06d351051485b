//! Each defence matters: `xtask/defences.toml` says which change of the code takes it away and
//! which test must then fail. A row makes the change in a copy of the tree, runs that one test, and
//! expects it to fail; the same test passes in the copy without it.
//!
//! Resumable: what a row came to is kept below `target/defences/` until the row, its file or its
//! package's tests change.

mod scratch;

use crate::workspace;
use anyhow::{Context, Result, bail, ensure};
use figures::table::table;
use scratch::{Ran, Scratch};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// The rows.
const TABLE: &str = "xtask/defences.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Defences {
    defence: Vec<Defence>,
}

/// A row.
#[derive(Clone, Debug, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
struct Defence {
    /// What is defended, in words.
    name: String,
    /// The row of SPECIFICATION's attack table, if it is one of those.
    #[serde(default)]
    attack: Option<u32>,
    /// The file, from the workspace's root.
    file: String,
    /// A text that occurs once in it.
    old: String,
    /// What stands there without the defence.
    new: String,
    /// The package of the test.
    package: String,
    /// Its target, as cargo's argument.
    target: String,
    /// Its whole name.
    test: String,
}

/// `defences [--kept] [NAME…]`: rows whose names contain one of these words (none: all).
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
    let mut kept = KeptVerdicts::open(&folder.join("verdicts.json"))?;
    if !only_kept && rows.iter().any(|row| kept.of(row).is_none()) {
        let scratch = Scratch::new(&folder)?;
        for row in &rows {
            if kept.of(row).is_none() {
                eprintln!("{}", row.name);
                kept.add(row, row.try_without(&scratch)?)?;
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
    let missed = rows.iter().filter(|row| verdict(row) != NOTICED).count();
    ensure!(
        missed == 0 || only_kept,
        "{missed} of {} defences are not shown to matter",
        rows.len()
    );
    Ok(())
}

/// The rows of a workspace; each must be about a text that is there.
fn read(root: &Path) -> Result<Vec<Defence>> {
    let path = root.join(TABLE);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let Defences { defence } = toml::from_str(&text).with_context(|| TABLE.to_owned())?;
    for row in &defence {
        row.changed(root)?;
    }
    Ok(defence)
}

/// What a row that is as it should be comes to.
const NOTICED: &str = "the test fails";

impl Defence {
    /// Its file without the defence.
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

    fn try_without(&self, scratch: &Scratch) -> Result<&'static str> {
        match scratch.test(&self.package, &self.target, &self.test)? {
            Ran::Passed => {}
            Ran::Failed => return Ok("the test fails with it, too"),
            Ran::NotThere => return Ok("there is no such test here"),
            Ran::NotBuilt => return Ok("the tree does not compile"),
        }
        let without = self.changed(&workspace::root())?;
        scratch.with(&self.file, &without, || {
            Ok(
                match scratch.test(&self.package, &self.target, &self.test)? {
                    Ran::Failed => NOTICED,
                    Ran::Passed => "NOT NOTICED",
                    Ran::NotThere | Ran::NotBuilt => "does not compile",
                },
            )
        })
    }

    /// A number for the row, and for the content of every file that decides about it.
    fn number(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        let root = workspace::root();
        // A file that cannot be read is reported where it is changed.
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

/// What rows came to, kept over runs: a number for each row, and the verdict.
struct KeptVerdicts {
    path: PathBuf,
    verdicts: BTreeMap<String, String>,
}

impl KeptVerdicts {
    fn open(path: &Path) -> Result<Self> {
        let verdicts = match fs::read(path) {
            // A run that is broken off while it writes leaves half a file: all is tried again.
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
    fn every_row_is_about_a_text_that_is_there_and_changes_it() {
        let rows = read(&workspace::root()).unwrap();
        assert!(rows.len() >= 10);
        for row in rows {
            assert_ne!(row.old, row.new, "{}", row.name);
        }
    }

    #[test]
    fn a_row_about_a_text_that_is_not_there_is_an_error() {
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
