//! Counts the trusted base.

use crate::{rules, source, workspace};
use anyhow::Result;
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
    let texts = source::without_tests(files)?;
    let counts = texts.iter().map(|(_, text)| source::count(text));
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
