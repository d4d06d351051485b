//! Counts the lines of the trusted base.

use crate::rules::{self, LayeringRules};
use crate::source;
use crate::workspace::{self, Crate};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Prints lines of code (without blank lines, comments and tests) and unsafe blocks, per part and
/// then per program. Fails if a program exceeds its limit.
pub(crate) fn print() -> Result<()> {
    let root = workspace::root();
    let (mut all_lines, mut all_blocks) = (0, 0);
    println!(
        "{:<28} {:>7} {:>8}",
        "part of the trusted base", "lines", "unsafe"
    );
    let rules = rules::read()?;
    let manifest = std::fs::read_to_string(root.join("Cargo.toml"))?;
    check_overflow_checks(&workspace::crates()?, &rules, &root, &manifest)?;
    let attackers: Vec<PathBuf> = rules.attackers.iter().map(|path| root.join(path)).collect();
    for part in &rules.trusted {
        let path = root.join(part);
        if !path.exists() {
            continue;
        }
        let (lines, blocks) = count(path, &attackers)?;
        println!("{part:<28} {lines:>7} {blocks:>8}");
        all_lines += lines;
        all_blocks += blocks;
    }
    println!("{:<28} {all_lines:>7} {all_blocks:>8}", "together");
    programs(&rules, &root, &attackers)
}

/// Prints the counts for each program.
fn programs(rules: &LayeringRules, root: &Path, attackers: &[PathBuf]) -> Result<()> {
    let crates = workspace::crates()?;
    let beside = rules.beside.iter().map(|path| root.join(path));
    let mut taken: Vec<PathBuf> = attackers.iter().cloned().chain(beside).collect();
    let mut too_long = Vec::new();
    println!(
        "\n{:<20} {:>7} {:>7} {:>8}  crates from outside; capabilities",
        "program", "lines", "limit", "unsafe"
    );
    for program in &rules.programs {
        let (mut lines, mut blocks) = (0, 0);
        let parts: Vec<PathBuf> = program.parts.iter().map(|part| root.join(part)).collect();
        for part in &parts {
            ensure!(
                part.exists(),
                "layering.txt: {} does not exist",
                part.display()
            );
            let (of_part, blocks_of_part) = count(part.clone(), &taken)?;
            lines += of_part;
            blocks += blocks_of_part;
        }
        let outside = outside(&crates, &parts)?;
        let capabilities = rules.capabilities.get(&program.name);
        println!(
            "{:<20} {lines:>7} {:>7} {blocks:>8}  {}; {}",
            program.name,
            program.limit,
            outside.into_iter().collect::<Vec<_>>().join(" "),
            capabilities.map_or_else(String::new, |kept| kept.join(" ")),
        );
        if lines > program.limit {
            too_long.push(format!("{} has {lines} lines", program.name));
        }
        taken.extend(parts);
    }
    ensure!(
        too_long.is_empty(),
        "over the limit: {}",
        too_long.join(", ")
    );
    Ok(())
}

/// Checks that the release profile enables overflow checks for every crate that a trusted program
/// contains or links.
fn check_overflow_checks(
    crates: &[Crate],
    rules: &LayeringRules,
    root: &Path,
    manifest: &str,
) -> Result<()> {
    let manifest: toml::Table = manifest.parse()?;
    let packages = manifest
        .get("profile")
        .and_then(|all| all.get("release")?.get("package"));
    let is_checked = |name: &str| {
        let package = packages.and_then(|all| all.get(name));
        let checks = package.and_then(|package| package.get("overflow-checks"));
        checks.and_then(toml::Value::as_bool) == Some(true)
    };
    let parts = rules.programs.iter().flat_map(|program| &program.parts);
    let parts: Vec<PathBuf> = parts.map(|part| root.join(part)).collect();
    let is_part = |found: &&Crate| parts.iter().any(|part| part.starts_with(&found.root));
    let own = crates.iter().filter(is_part);
    let names = own.flat_map(|found| found.inside.iter().chain([&found.name]));
    let unchecked: BTreeSet<&String> = names.filter(|name| !is_checked(name)).collect();
    ensure!(
        unchecked.is_empty(),
        "Cargo.toml: [profile.release.package.NAME] needs overflow-checks = true for {unchecked:?}"
    );
    Ok(())
}

/// Returns the external crates that a program links and that the crates of its parts name. The
/// first part lies in the program's crate.
fn outside(crates: &[Crate], parts: &[PathBuf]) -> Result<BTreeSet<String>> {
    let has = |found: &Crate, part: &PathBuf| part.starts_with(&found.root);
    let own = parts.first().and_then(|part| {
        let mut all = crates.iter();
        all.find(|found| has(found, part))
    });
    let linked = workspace::linked(&own.context("a program of no crate")?.name)?;
    let named = crates
        .iter()
        .filter(|found| parts.iter().any(|part| has(found, part)))
        .flat_map(|found| found.outside.clone());
    Ok(named.filter(|name| linked.contains(name)).collect())
}

/// Counts lines and unsafe blocks under a folder, without test files and without the paths in
/// `except`.
fn count(path: PathBuf, except: &[PathBuf]) -> Result<(usize, usize)> {
    let mut files = match path.is_file() {
        true => vec![path],
        false => source::files(&path)?,
    };
    files.retain(|file| !except.iter().any(|folder| file.starts_with(folder)));
    let texts = source::without_tests(files)?;
    let counts = texts.iter().map(|(_, text)| source::count(text));
    Ok(counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trusted_crates_check_their_arithmetic() {
        let root = workspace::root();
        let (crates, rules) = (workspace::crates().unwrap(), rules::read().unwrap());
        let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
        check_overflow_checks(&crates, &rules, &root, &manifest).unwrap();
        for name in ["abi", "config", "confine", "manager", "netdev", "shmem"] {
            let section = format!("[profile.release.package.{name}]\noverflow-checks = true");
            let without = manifest.replace(&section, "");
            assert_ne!(without, manifest);
            let error = check_overflow_checks(&crates, &rules, &root, &without).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn test_modules_in_separate_files_are_excluded() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("lib.rs", "mod a;\n#[cfg(test)]\nmod tests;\n");
        write("tests.rs", "fn t() {}\n");
        write("tests/deep.rs", "fn t() {}\n");
        write("a.rs", "fn f() {\n}\n#[cfg(test)]\nmod tests;\n");
        write("a/tests.rs", "fn t() {}\n");
        write("a/b.rs", "unsafe fn g() {}\n");
        write("bin/attacker.rs", "fn main() {}\n");
        let except = [folder.path().join("bin")];
        assert_eq!(count(folder.path().to_path_buf(), &except).unwrap(), (4, 1));
    }
}
