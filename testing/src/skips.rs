//! Reports and lists skipped tests, and rejects skips if everything is required.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{Write, stderr};
use std::panic::Location;
use std::path::{Path, PathBuf};

/// The list of skips, in the target folder: a line is `BINARY TEST: reason`.
pub const LIST: &str = "skipped-tests.txt";

/// If this variable is `all`, every skip fails.
const REQUIRE: &str = "GRANTWAY_REQUIRE";

/// Reports that a test or a part of it cannot run here, and why. Returns a default value.
///
/// # Panics
///
/// Panics if everything is required.
#[track_caller]
pub fn skip<T: Default>(missing: impl Display) -> T {
    let line = line(&name(Location::caller()), &missing.to_string());
    match std::env::var(REQUIRE).as_deref() {
        Err(_) | Ok("") => {}
        Ok("all") => panic!("{line} ({REQUIRE}=all)"),
        Ok(other) => panic!("{REQUIRE}={other}: the only value is `all`"),
    }
    // This does not use `eprintln!`, because libtest captures its output.
    let _unseen = stderr().write_all(format!("skipped: {line}\n").as_bytes());
    if let Err(error) = list().and_then(|list| append(&list, &line)) {
        let _unseen = writeln!(stderr(), "the skip is not on the list: {error}");
    }
    T::default()
}

/// Formats the reason as one line.
fn line(name: &str, missing: &str) -> String {
    let words: Vec<&str> = missing.split_whitespace().collect();
    format!("{name}: {}", words.join(" "))
}

/// Returns the binary without cargo's hash, and the test, whose name libtest gives to its thread. A
/// thread that a test has started has no name, and a single thread is called `main`. In these cases
/// returns the location in the source instead.
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

/// Returns the path of the list. It is in the outermost folder above this program that contains
/// cargo's `CACHEDIR.TAG`.
fn list() -> std::io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let marked = |folder: &&Path| folder.join("CACHEDIR.TAG").is_file();
    let target = program.ancestors().filter(marked).last();
    let target = target.ok_or_else(|| std::io::Error::other("cargo has not built this program"))?;
    Ok(target.join(LIST))
}

/// Appends with a single write, because tests in several processes append at the same time.
fn append(list: &Path, line: &str) -> std::io::Result<()> {
    let mut list = OpenOptions::new().create(true).append(true).open(list)?;
    list.write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Output};

    /// Environment variable that selects the skip of [`the_child_of_the_other_tests`].
    const ROLE: &str = "GRANTWAY_TEST_SKIP";

    fn prepares() -> Option<u32> {
        crate::require!(tool("sh"), tool("no-such-tool"));
        Some(1)
    }

    /// This is not a test itself. The other tests run it in a new process.
    #[test]
    fn the_child_of_the_other_tests() {
        let Ok(missing) = std::env::var(ROLE) else {
            return;
        };
        if missing == "tool" {
            assert_eq!(prepares(), None);
        } else {
            skip(missing)
        }
    }

    /// Runs that test in a folder that resembles cargo's; returns its output and the list.
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
                "skips::tests::the_child_of_the_other_tests",
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
    fn a_skip_bypasses_the_capture_and_is_listed() {
        let name = "some_tests skips::tests::the_child_of_the_other_tests";
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
    fn a_skip_fails_if_everything_is_required() {
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
