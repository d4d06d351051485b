//! Counts the trusted base.

use crate::{rules, source, workspace};
use anyhow::Result;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Prints lines of code (no blank lines, comments or tests) and unsafe blocks per part.
pub(crate) fn print() -> Result<()> {
    let root = workspace::root();
    let (mut all_lines, mut all_blocks) = (0, 0);
    println!(
        "{:<28} {:>7} {:>8}",
        "part of the trusted base", "lines", "unsafe"
    );
    let rules = rules::read()?;
    let attackers: Vec<PathBuf> = rules.attackers.iter().map(|path| root.join(path)).collect();
    for part in rules.trusted {
        let path = root.join(&part);
        if !path.exists() {
            continue;
        }
        let (lines, blocks) = count(path, &attackers)?;
        println!("{part:<28} {lines:>7} {blocks:>8}");
        all_lines += lines;
        all_blocks += blocks;
    }
    println!("{:<28} {all_lines:>7} {all_blocks:>8}", "together");
    Ok(())
}

/// Lines and unsafe blocks under a folder, without test files and without what lies in `except`.
fn count(path: PathBuf, except: &[PathBuf]) -> Result<(usize, usize)> {
    let mut files = source::files(&path)?;
    files.retain(|file| !except.iter().any(|folder| file.starts_with(folder)));
    let mut tests = BTreeSet::new();
    let mut texts = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        // A module `m` of a/mod.rs or a/lib.rs lies beside it; one of a/b.rs lies in a/b/.
        let folder = match file.file_stem().and_then(|stem| stem.to_str()) {
            Some("mod" | "lib" | "main") | None => file.with_file_name(""),
            Some(_) => file.with_extension(""),
        };
        tests.extend(
            source::test_modules(&text)
                .into_iter()
                .map(|name| folder.join(name)),
        );
        texts.push((file, text));
    }
    let is_test = |file: &PathBuf| {
        let module = file.with_extension("");
        tests.iter().any(|test| module.starts_with(test))
    };
    let counts = texts
        .iter()
        .filter(|(file, _)| !is_test(file))
        .map(|(_, text)| source::count(text));
    Ok(counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_modules_in_files_of_their_own_are_left_out() {
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
