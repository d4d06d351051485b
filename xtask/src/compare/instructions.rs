//! Counts instructions of the benches on both sides. These counts do not depend on other load.
//!
//! A criterion bench runs each of its functions once (`--test`). callgrind counts the part that
//! criterion would time.

use super::aliases::{Aliases, NameKind};
use super::callgrind;
use super::cells::Counts;
use super::plans::Bench;
use super::sides::{Side, Sides};
use crate::{build, workspace};
use anyhow::{Context, Result, ensure};
use figures::interrupt;
use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Makes benches read clocks through glibc. rustix would use the vDSO at the address that the
/// kernel reports, and valgrind does not map it.
const LIBC: &str = r#"target.'cfg(unix)'.rustflags=["--cfg=rustix_use_libc"]"#;

/// A function's instructions on both sides.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Count {
    pub(super) bench: String,
    pub(super) function: String,
    pub(super) old: u64,
    pub(super) new: u64,
}

impl Count {
    /// Returns new / old: less is better.
    pub(super) fn ratio(&self) -> f64 {
        self.new as f64 / self.old as f64
    }
}

/// Counts all bench functions that both sides have. Returns an error if the sides of a bench have
/// no function in common.
pub(super) fn count(benches: &[Bench], sides: &Sides, aliases: &Aliases) -> Result<Vec<Count>> {
    let mut counts = Vec::new();
    let folder = sides.folder.join("callgrind");
    for bench in benches {
        let both = [&sides.old, &sides.new];
        let [old, new] = both.map(|side| one_side(bench, side, &folder, aliases));
        let both = paired(bench, &old?, &new?);
        ensure!(!both.is_empty(), "bench {}: nothing in common", bench.name);
        counts.extend(both);
    }
    Ok(counts)
}

/// Returns the largest ratio among these benches.
pub(super) fn largest(counts: &[Count], benches: &[String]) -> Counts {
    let of = counts.iter().filter(|count| benches.contains(&count.bench));
    let ratios = of.map(Count::ratio);
    ratios.max_by(f64::total_cmp).map_or_else(
        || Counts::None("no bench was counted".to_owned()),
        Counts::Most,
    )
}

fn paired(bench: &Bench, old: &BTreeMap<String, u64>, new: &BTreeMap<String, u64>) -> Vec<Count> {
    let pair = |(function, &new): (&String, &u64)| {
        Some(Count {
            bench: bench.name.clone(),
            function: function.clone(),
            old: *old.get(function)?,
            new,
        })
    };
    new.iter().filter_map(pair).collect()
}

/// Returns the instruction count of each function.
fn one_side(
    bench: &Bench,
    side: &Side,
    folder: &Path,
    aliases: &Aliases,
) -> Result<BTreeMap<String, u64>> {
    let program = built(bench, side, aliases)?;
    let output = Command::new(&program)
        .args(["--bench", "--list"])
        .output()?;
    let mut counts = BTreeMap::new();
    for function in functions(&String::from_utf8_lossy(&output.stdout), &bench.cells) {
        interrupt::check()?;
        let count = collected(bench, &program, &function, folder);
        counts.insert(function, count?);
    }
    Ok(counts)
}

/// Builds a bench under this side's name for it.
fn built(bench: &Bench, side: &Side, aliases: &Aliases) -> Result<PathBuf> {
    let targets = workspace::bench_targets(&side.workspace)?;
    let packages = aliases.of(NameKind::Package, &bench.package);
    let benches = aliases.of(NameKind::Bench, &bench.name);
    let is_it =
        |(package, name): &&(String, String)| packages.contains(package) && benches.contains(name);
    let (package, name) = targets
        .iter()
        .find(is_it)
        .with_context(|| format!("no bench {} in {}", bench.name, side.workspace.display()))?;
    let mut command = workspace::cargo_in(&side.workspace);
    command.args(["bench", "--no-run", "--package", package, "--bench", name]);
    command.args(["--message-format=json-render-diagnostics", "--config", LIBC]);
    if let Some(folder) = &side.build {
        command.env("CARGO_TARGET_DIR", folder);
    }
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().context("cargo without output")?;
    let programs = build::executables(BufReader::new(output))?;
    ensure!(child.wait()?.success(), "the build of bench {name} failed");
    let program = programs.into_iter().next_back();
    program.with_context(|| format!("cargo built no bench {name}"))
}

/// Returns the functions that criterion lists and whose names end with one of `cells` (empty: all
/// functions).
fn functions(listed: &str, cells: &[String]) -> Vec<String> {
    let names = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": benchmark"));
    let is_wanted = |name: &&str| cells.is_empty() || cells.iter().any(|end| name.ends_with(end));
    names.filter(is_wanted).map(str::to_owned).collect()
}

fn collected(bench: &Bench, program: &Path, function: &str, folder: &Path) -> Result<u64> {
    let count = callgrind::collect(program, &bench.toggle, folder, |command| {
        match (&bench.cell_in, function.split_once('/')) {
            // The variable holds the name within the bench's group.
            (Some(variable), Some((_group, cell))) => command.env(variable, cell),
            _ => command.args(["--bench", "--test", "--exact", function]),
        };
    });
    count.with_context(|| format!("bench {}: {function}", bench.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_read_from_criterions_list() {
        let listed = "bridge/wire-to-one-guest: benchmark\nlro/gro/skb/hot/8: benchmark\n\n\
                      2 tests, 0 benchmarks\n";
        let all = ["bridge/wire-to-one-guest", "lro/gro/skb/hot/8"];
        assert_eq!(functions(listed, &[]), all);
        assert_eq!(functions(listed, &["/hot/8".to_owned()]), all[1..]);
    }

    #[test]
    fn the_worst_bench_function_decides() {
        let count = |bench: &str, new| Count {
            bench: bench.to_owned(),
            function: "f".to_owned(),
            old: 1000,
            new,
        };
        let counts = [count("path", 990), count("path", 1005), count("lro", 2000)];
        let of = |benches: &[&str]| {
            let names: Vec<String> = benches.iter().map(|&name| name.to_owned()).collect();
            largest(&counts, &names)
        };
        assert_eq!(of(&["path"]), Counts::Most(1.005));
        assert_eq!(of(&["path", "lro"]), Counts::Most(2.0));
        assert!(matches!(of(&["vif"]), Counts::None(_)));
    }

    #[test]
    fn only_functions_of_both_sides_are_compared() {
        let plans = super::super::plans::read().unwrap();
        let plan = &plans.named(&["base".to_owned()]).unwrap()[0];
        let bench = plans.benches(plan).next().unwrap();
        let side = |names: [(&str, u64); 2]| names.map(|(name, n)| (name.to_owned(), n)).into();
        let both = paired(
            bench,
            &side([("a", 10), ("b", 20)]),
            &side([("b", 30), ("c", 1)]),
        );
        assert_eq!(both.len(), 1);
        assert_eq!((both[0].function.as_str(), both[0].ratio()), ("b", 1.5));
    }
}
