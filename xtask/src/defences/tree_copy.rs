//! A copy of the tree in which code can be changed and tested.

use crate::mutants::{PROPERTY_TESTS, RUNNER};
use crate::{source, workspace};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TestRun {
    Passed,
    /// The test failed, crashed, or was killed because it used too many resources.
    Failed,
    Missing,
    NotBuilt,
}

/// A copy of the tree, with a separate target folder.
pub(super) struct Scratch {
    tree: PathBuf,
    target: PathBuf,
}

impl Scratch {
    /// Updates the copy from the tracked files of this tree and from new files that are not
    /// ignored. Equal files are not rewritten, so that cargo does not rebuild them.
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let scratch = Self {
            tree: folder.join("tree"),
            target: folder.join("build"),
        };
        let root = workspace::root();
        for name in source::names()? {
            // Git may still list a removed file, which is not part of the tree.
            if let Ok(bytes) = fs::read(root.join(&name)) {
                scratch.put(&name, &bytes)?;
            }
        }
        Ok(scratch)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.tree.join(name);
        if fs::read(&path).is_ok_and(|there| there == bytes) {
            return Ok(());
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, bytes).with_context(|| path.display().to_string())
    }

    /// Runs `body` while a file has another content.
    pub(super) fn with<T>(
        &self,
        name: &str,
        content: &str,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let path = self.tree.join(name);
        let before = fs::read(&path).with_context(|| path.display().to_string())?;
        self.put(name, content.as_bytes())?;
        let done = run();
        self.put(name, &before)?;
        done
    }

    /// Runs one test.
    pub(super) fn test(&self, package: &str, target: &str, name: &str) -> Result<TestRun> {
        let cargo = |run: &[&str]| -> Result<Output> {
            workspace::cargo_in(&self.tree)
                .args(["test", "--quiet", "--profile=mutants", "--package", package])
                .args([target, "--config", RUNNER])
                .args(run)
                .env("CARGO_TARGET_DIR", &self.target)
                .env("CARGO_INCREMENTAL", "0")
                .envs(PROPERTY_TESTS)
                .output()
                .context("cannot run cargo")
        };
        if !cargo(&["--no-run"])?.status.success() {
            return Ok(TestRun::NotBuilt);
        }
        let output = cargo(&["--", "--exact", name])?;
        let said = String::from_utf8_lossy(&output.stdout);
        Ok(match output.status.success() {
            true if said.contains("running 1 test") => TestRun::Passed,
            true => TestRun::Missing,
            false => TestRun::Failed,
        })
    }
}
