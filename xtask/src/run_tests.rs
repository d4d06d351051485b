//! Runs every test, then says which of them have failed, and which could not run here and what they
//! lack.

use crate::workspace;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::process::Stdio;

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
    let mut cargo = command
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let mut failures = Failures::default();
    for line in BufReader::new(cargo.stdout.take().context("no output")?).split(b'\n') {
        let line = line.context("cannot read what cargo prints")?;
        std::io::stdout().write_all(&[&line[..], b"\n"].concat())?;
        failures.hear(&String::from_utf8_lossy(&line));
    }
    let status = cargo.wait().context("cannot wait for cargo")?;
    print!("{}{}", failures.report(), report(&skips(&list)?));
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

/// Lines that are repeated of what one test has said.
const LINES_OF_A_TEST: usize = 12;

/// What the failed tests have said, some lines of each: somewhere above it is in whole.
#[derive(Default)]
struct Failures {
    lines: Vec<String>,
    /// Lines so far of the one that is being heard.
    of_this: Option<usize>,
}

impl Failures {
    /// A line that the tests print.
    fn hear(&mut self, line: &str) {
        if line.starts_with("---- ") {
            self.of_this = Some(0);
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.of_this = None;
        }
        if let Some(lines) = &mut self.of_this
            && *lines < LINES_OF_A_TEST
            && !line.is_empty()
        {
            *lines += 1;
            self.lines.push(line.to_owned());
        }
    }

    fn report(&self) -> String {
        if self.lines.is_empty() {
            return String::new();
        }
        format!("\nfailed:\n{}\n", self.lines.join("\n"))
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
    fn what_failed_tests_have_said_is_told_again() {
        let mut failures = Failures::default();
        assert_eq!(failures.report(), "");
        let said = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\n\nit is 4\n\n\
                    failures:\n    a\n\ntest result: FAILED. 0 passed\ntest b ... ok";
        said.lines().for_each(|line| failures.hear(line));
        (0..99).for_each(|n| failures.hear(&format!("test b{n} ... ok")));
        assert_eq!(
            failures.report(),
            "\nfailed:\n---- a stdout ----\nit is 4\n"
        );
        failures.hear("---- b stdout ----");
        (0..99).for_each(|n| failures.hear(&n.to_string()));
        assert_eq!(failures.lines.len(), 2 + LINES_OF_A_TEST);
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
