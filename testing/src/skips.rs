//! A skip is said, listed, and refused where everything is required.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{Write, stderr};
use std::panic::Location;
use std::path::{Path, PathBuf};

/// The list of skips, in the target folder: a line is `BINARY TEST: what is missing`.
pub const LIST: &str = "skipped-tests.txt";

/// Every skip fails where this variable is `all`.
const REQUIRE: &str = "GRANTWAY_REQUIRE";

/// Says that a test cannot run here, or a part of it, and what is missing; returns the default of
/// what is asked for.
///
/// # Panics
/// If everything is required.
#[track_caller]
pub fn skip<T: Default>(missing: impl Display) -> T {
    let line = line(&name(Location::caller()), &missing.to_string());
    match std::env::var(REQUIRE).as_deref() {
        Err(_) | Ok("") => {}
        Ok("all") => panic!("{line} ({REQUIRE}=all)"),
        Ok(other) => panic!("{REQUIRE}={other}: the only value is `all`"),
    }
    // Not `eprintln!`, which libtest captures.
    let _unseen = stderr().write_all(format!("skipped: {line}\n").as_bytes());
    if let Err(error) = list().and_then(|list| append(&list, &line)) {
        let _unseen = writeln!(stderr(), "the skip is not on the list: {error}");
    }
    T::default()
}

/// One line, whatever is in the reason.
fn line(name: &str, missing: &str) -> String {
    let words: Vec<&str> = missing.split_whitespace().collect();
    format!("{name}: {}", words.join(" "))
}

/// The binary, without cargo's hash, and the test: libtest names its thread so. A thread of the
/// test's own has no name, or the only thread is `main`: then it is the place that says it.
fn name(at: &Location<'_>) -> String {
    let binary = std::env::current_exe().unwrap_or_default();
    let binary = binary.file_stem().unwrap_or_default().to_string_lossy();
    let binary = binary.rsplit_once('-').map_or(&*binary, |(name, _)| name);
    let thread = std::thread::current();
    match thread.name().filter(|name| *name != "main") {
        Some(test) => format!("{binary} {test}"),
        None => format!("{binary} {}:{}", at.file(), at.line()),
    }
}

/// The outermost folder above this program that cargo has marked as its own.
fn list() -> std::io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let marked = |folder: &&Path| folder.join("CACHEDIR.TAG").is_file();
    let target = program.ancestors().filter(marked).last();
    let target = target.ok_or_else(|| std::io::Error::other("this is no program of cargo's"))?;
    Ok(target.join(LIST))
}

/// In one write to the end: tests of several processes do so at the same time.
fn append(list: &Path, line: &str) -> std::io::Result<()> {
    let mut list = OpenOptions::new().create(true).append(true).open(list)?;
    list.write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Output};

    /// What [`what_the_others_run`] skips for.
    const ROLE: &str = "GRANTWAY_TEST_SKIP";

    fn prepares() -> Option<u32> {
        crate::require!(tool("sh"), tool("no-such-tool"));
        Some(1)
    }

    /// Not a test of its own: what the others run in a process of its own.
    #[test]
    fn what_the_others_run() {
        let Ok(missing) = std::env::var(ROLE) else {
            return;
        };
        if missing == "tool" {
            assert_eq!(prepares(), None);
        } else {
            skip(missing)
        }
    }

    /// In a folder that looks like cargo's; what it wrote there.
    fn run(role: &str, require: &str) -> (Output, String) {
        let target = tempfile::tempdir().unwrap();
        std::fs::write(target.path().join("CACHEDIR.TAG"), "").unwrap();
        let deps = target.path().join("debug/deps");
        std::fs::create_dir_all(&deps).unwrap();
        let program = deps.join("some_tests-0123456789abcdef");
        crate::place_program(&std::env::current_exe().unwrap(), &program);
        let output = Command::new(program)
            .args([
                "--exact",
                "skips::tests::what_the_others_run",
                "--test-threads=2",
            ])
            .env(ROLE, role)
            .env(REQUIRE, require)
            .output()
            .unwrap();
        let list = std::fs::read_to_string(target.path().join(LIST)).unwrap_or_default();
        (output, list)
    }

    #[test]
    fn a_skip_is_said_past_the_capture_and_listed() {
        let name = "some_tests skips::tests::what_the_others_run";
        let (output, list) = run("a\nsecond line", "");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(list, format!("{name}: a second line\n"));
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            format!("skipped: {list}")
        );
        let (_, list) = run("tool", "");
        assert_eq!(list, format!("{name}: the program no-such-tool\n"));
    }

    #[test]
    fn where_everything_is_required_a_skip_fails() {
        for (require, part) in [
            ("all", "a reason (GRANTWAY_REQUIRE=all)"),
            ("al", "the only value"),
        ] {
            let (output, list) = run("a reason", require);
            assert!(!output.status.success(), "{output:?}");
            assert_eq!(list, "");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains(part), "{said}");
        }
    }
}
