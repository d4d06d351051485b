//! Runs every test, then lists the failed tests, and the skipped tests with the reason.

use crate::workspace;
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// The file in the target folder that lists skipped tests: `testing::LIST`.
const LIST: &str = "skipped-tests.txt";

/// The test program that runs in parallel with all others, because it takes longest and mostly
/// waits.
const PARALLEL_TEST: &str = "traffic";

/// Number of its tests that run at the same time: `MACHINES_MAX` of `cli/tests/traffic/machine.rs`.
const PARALLEL_TEST_THREADS: &str = "2";

/// Builds and runs all tests of the workspace, with the programs that they use. A failing test does
/// not stop the others. With `--require`, a skipped test fails. Other arguments are passed to
/// cargo. If they select no tests, [`PARALLEL_TEST`] runs at the same time as the other tests.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let list = workspace::target_directory()?.join(LIST);
    remove_list(&list)?;
    let is_required = args.iter().any(|arg| arg == "--require");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let args: Vec<&str> = args.into_iter().filter(|arg| *arg != "--require").collect();
    let cargo = |targets: &[&str]| {
        let mut command = workspace::cargo();
        command.args(["test", "--no-fail-fast"]);
        if !names_packages(&args) {
            command.arg("--workspace");
        }
        command.args(targets).args(&args).stdout(Stdio::piped());
        if is_required {
            command.env("GRANTWAY_REQUIRE", "all");
        }
        command
    };
    build(&args)?;
    let mut failures = Failures::default();
    let failed = match selects_tests(&args) {
        true => run_all(&mut [cargo(&[])], &mut failures)?,
        false => split(&cargo, &mut failures)?,
    };
    print!("{}{}", failures.report(), report(&skips(&list)?));
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

/// Returns whether arguments of `cargo test` name packages. With `--workspace` cargo ignores them.
fn names_packages(args: &[&str]) -> bool {
    args.iter()
        .take_while(|arg| **arg != "--")
        .any(|arg| arg.starts_with("-p") || arg.starts_with("--package"))
}

/// Returns whether arguments of `cargo test` name packages, targets or tests. `--skip` does not
/// select tests, because each test program accepts it.
fn selects_tests(args: &[&str]) -> bool {
    let (of_cargo, of_tests) = match args.iter().position(|arg| *arg == "--") {
        Some(at) => (&args[..at], &args[at + 1..]),
        None => (args, &[][..]),
    };
    let is_skip = |pair: &[&str]| pair.len() == 2 && pair[0] == "--skip";
    !of_cargo.iter().all(|arg| is_neutral(arg)) || !of_tests.chunks(2).all(is_skip)
}

/// Builds all programs and tests. Tests start programs of other packages, but `cargo test` builds
/// only the programs of packages with integration tests.
fn build(args: &[&str]) -> Result<()> {
    let of_cargo = args.split(|arg| *arg == "--").next().unwrap_or_default();
    let built = workspace::cargo()
        .args(["build", "--workspace", "--bins", "--tests"])
        .args(of_cargo.iter().filter(|arg| is_neutral(arg)))
        .status()
        .context("cannot run cargo")?;
    ensure!(built.success(), "cargo build: {built}");
    Ok(())
}

/// Returns whether an argument of cargo selects no tests.
fn is_neutral(arg: &str) -> bool {
    ["--locked", "--offline", "--frozen", "--release"].contains(&arg)
}

/// Runs [`PARALLEL_TEST`] and the other tests at the same time. Returns a line for each failed
/// command.
fn split(cargo: &impl Fn(&[&str]) -> Command, failures: &mut Failures) -> Result<Vec<String>> {
    let names = workspace::test_targets()?;
    ensure!(
        names.contains(PARALLEL_TEST),
        "no test program is named {PARALLEL_TEST}"
    );
    let others = names.iter().filter(|name| *name != PARALLEL_TEST);
    let others = others.flat_map(|name| ["--test", name]);
    let others: Vec<&str> = ["--lib", "--bins"].into_iter().chain(others).collect();
    let mut beside = cargo(&["--test", PARALLEL_TEST]);
    beside.env("RUST_TEST_THREADS", PARALLEL_TEST_THREADS);
    std::thread::scope(|scope| {
        let beside = scope.spawn(move || {
            // The output is printed at the end, so that lines do not mix.
            beside.stderr(Stdio::inherit()).output()
        });
        let mut failed = run_all(&mut [cargo(&others), cargo(&["--doc"])], failures)?;
        let beside = beside.join().map_err(|_| anyhow!("a thread panicked"))?;
        let output = beside.context("cannot run cargo")?;
        for line in output.stdout.split_inclusive(|&byte| byte == b'\n') {
            failures.print(line)?;
        }
        if !output.status.success() {
            failed.push(format!(
                "cargo test --test {PARALLEL_TEST}: {}",
                output.status
            ));
        }
        Ok(failed)
    })
}

/// Runs commands one after another and prints their output. Returns a line for each failed command.
fn run_all(commands: &mut [Command], failures: &mut Failures) -> Result<Vec<String>> {
    let mut failed = Vec::new();
    for command in commands {
        let mut cargo = command.spawn().context("cannot run cargo")?;
        let mut output = BufReader::new(cargo.stdout.take().context("no output")?);
        let mut line = Vec::new();
        while output
            .read_until(b'\n', &mut line)
            .context("cannot read what cargo prints")?
            > 0
        {
            failures.print(&line)?;
            line.clear();
        }
        let status = cargo.wait().context("cannot wait for cargo")?;
        if !status.success() {
            failed.push(format!("cargo test: {status}"));
        }
    }
    Ok(failed)
}

fn remove_list(list: &Path) -> Result<()> {
    match fs::remove_file(list) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", list.display()))
        }
        _ => Ok(()),
    }
}

/// Returns each line once, in order, because a test may report the same skip several times.
fn skips(list: &Path) -> Result<BTreeSet<String>> {
    match fs::read_to_string(list) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", list.display())),
    }
}

/// Maximum number of lines that are repeated from one test's output.
const LINES_PER_TEST_MAX: usize = 12;

/// The first lines of each failed test's output. The whole output was printed before.
#[derive(Default)]
struct Failures {
    lines: Vec<String>,
    /// Number of lines of the current test so far; `None` between tests.
    of_this: Option<usize>,
}

impl Failures {
    /// Prints and processes a line of output.
    fn print(&mut self, line: &[u8]) -> Result<()> {
        std::io::stdout().write_all(line)?;
        self.record(String::from_utf8_lossy(line).trim_end_matches('\n'));
        Ok(())
    }

    /// Records a line of output if it belongs to a failed test.
    fn record(&mut self, line: &str) {
        if line.starts_with("---- ") {
            self.of_this = Some(0);
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.of_this = None;
        }
        if let Some(lines) = &mut self.of_this
            && *lines < LINES_PER_TEST_MAX
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
        "\nskipped because of a missing prerequisite: {}\n{lines}",
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
    fn only_selected_tests_run_in_one_process() {
        for args in [
            &[][..],
            &["--locked"],
            &["--locked", "--", "--skip", "cnitool"],
        ] {
            assert!(!selects_tests(args), "{args:?}");
        }
        for args in [
            &["-p", "net"][..],
            &["nat::"],
            &["--", "nat::"],
            &["--", "--skip"],
        ] {
            assert!(selects_tests(args), "{args:?}");
        }
    }

    #[test]
    fn packages_are_named_before_the_arguments_of_tests() {
        for args in [
            &["-p", "net"][..],
            &["-pnet"],
            &["--package=net", "--", "x"],
        ] {
            assert!(names_packages(args), "{args:?}");
        }
        for args in [&[][..], &["--locked"], &["nat::", "--", "-p"]] {
            assert!(!names_packages(args), "{args:?}");
        }
    }

    #[test]
    fn test_threads_match_the_limit_of_machines() {
        let file = workspace::root().join("cli/tests/traffic/machine.rs");
        let text = fs::read_to_string(file).unwrap();
        let limit = format!("const MACHINES_MAX: usize = {PARALLEL_TEST_THREADS};");
        assert!(text.contains(&limit), "{limit}");
    }

    #[test]
    fn the_split_names_every_test_program() {
        let names = workspace::test_targets().unwrap();
        assert!(
            names.contains(PARALLEL_TEST) && names.len() > 10,
            "{names:?}"
        );
    }

    #[test]
    fn output_of_failed_tests_is_repeated() {
        let mut failures = Failures::default();
        assert_eq!(failures.report(), "");
        let said = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\n\nit is 4\n\n\
                    failures:\n    a\n\ntest result: FAILED. 0 passed\ntest b ... ok";
        said.lines().for_each(|line| failures.record(line));
        (0..99).for_each(|n| failures.record(&format!("test b{n} ... ok")));
        assert_eq!(
            failures.report(),
            "\nfailed:\n---- a stdout ----\nit is 4\n"
        );
        failures.record("---- b stdout ----");
        (0..99).for_each(|n| failures.record(&n.to_string()));
        assert_eq!(failures.lines.len(), 2 + LINES_PER_TEST_MAX);
    }

    #[test]
    fn skips_are_counted_once_and_reported() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join(LIST);
        assert_eq!(report(&skips(&list).unwrap()), "\nno test was skipped\n");
        fs::write(&list, "b tests::x: root\na y: tap\nb tests::x: root\n").unwrap();
        assert_eq!(
            report(&skips(&list).unwrap()),
            "\nskipped because of a missing prerequisite: 2\n  a y: tap\n  b tests::x: root\n"
        );
        remove_list(&list).unwrap();
        remove_list(&list).unwrap();
        assert!(skips(&list).unwrap().is_empty());
    }
}
