//! Runs every test, then says which of them could not run here, and what they lack.

use crate::workspace;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Where tests that skip say so, in the target folder: `testing::LIST`.
const LIST: &str = "skipped-tests.txt";

/// `cargo test` of the whole workspace, which builds the programs that tests drive; one that fails
/// does not keep others from running. With `--require` a test that skips fails; all other words
/// are cargo's.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let list = workspace::target_directory()?.join(LIST);
    forget(&list)?;
    let mut command = workspace::cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]);
    command.args(args.iter().filter(|arg| *arg != "--require"));
    if args.iter().any(|arg| arg == "--require") {
        command.env("GRANTWAY_REQUIRE", "all");
    }
    let status = command.status().context("cannot run cargo")?;
    print!("{}", report(&skips(&list)?));
    ensure!(status.success(), "cargo test: {status}");
    Ok(())
}

fn forget(list: &Path) -> Result<()> {
    match fs::remove_file(list) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", list.display()))
        }
        _ => Ok(()),
    }
}

/// Each line once, in order: a test that tries several things says of each what it lacks.
fn skips(list: &Path) -> Result<BTreeSet<String>> {
    match fs::read_to_string(list) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", list.display())),
    }
}

fn report(skips: &BTreeSet<String>) -> String {
    if skips.is_empty() {
        return "\nno test was skipped\n".into();
    }
    let lines: String = skips.iter().map(|skip| format!("  {skip}\n")).collect();
    format!(
        "\nskipped, because something is missing: {}\n{lines}",
        skips.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_where_tests_write_it() {
        assert_eq!(LIST, testing::LIST);
    }

    #[test]
    fn skips_are_counted_once_and_told() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join(LIST);
        assert_eq!(report(&skips(&list).unwrap()), "\nno test was skipped\n");
        fs::write(&list, "b tests::x: root\na y: tap\nb tests::x: root\n").unwrap();
        assert_eq!(
            report(&skips(&list).unwrap()),
            "\nskipped, because something is missing: 2\n  a y: tap\n  b tests::x: root\n"
        );
        forget(&list).unwrap();
        forget(&list).unwrap();
        assert!(skips(&list).unwrap().is_empty());
    }
}
