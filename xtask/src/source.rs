//! Finds source files, and examines Rust code line by line, which works because `rustfmt` makes its
//! form predictable.

use crate::workspace;
use anyhow::Result;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns every Rust file under a file or folder, sorted, without build output.
pub(crate) fn files(root: &Path) -> Result<Vec<PathBuf>> {
    // A crate in a subfolder is counted separately.
    let enters = |folder: &Path| !folder.ends_with("target") && !folder.join("Cargo.toml").exists();
    let mut found = walk(root, enters)?;
    found.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    Ok(found)
}

/// Returns every file and symbolic link under a file or folder, sorted, without the folders that
/// `enters` rejects.
pub(crate) fn walk(root: &Path, enters: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut next = vec![root.to_path_buf()];
    while let Some(path) = next.pop() {
        if path.is_symlink() || !path.is_dir() {
            found.push(path);
        } else if path == root || enters(&path) {
            for entry in fs::read_dir(&path)? {
                next.push(entry?.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the paths of the repository's files relative to its root. Includes new files, but no
/// ignored ones. A removed file may still be listed.
pub(crate) fn names() -> Result<Vec<String>> {
    let list = ["ls-files", "-z", "--cached", "--others"];
    let mut git = Command::new("git");
    git.args(list).arg("--exclude-standard");
    let names = workspace::output(git.current_dir(workspace::root()))?;
    Ok(names.split_terminator('\0').map(str::to_owned).collect())
}

/// Returns the files of the repository with these endings.
pub(crate) fn listed(endings: &[&str]) -> Result<Vec<PathBuf>> {
    let root = workspace::root();
    let wanted = |name: &String| {
        let ending = |ending: &&str| match name.strip_suffix(*ending) {
            Some(rest) => rest.is_empty() || rest.ends_with('.'),
            None => false,
        };
        endings.iter().any(ending)
    };
    let mut found: Vec<PathBuf> = (names()?.into_iter().filter(wanted))
        .map(|name| root.join(name))
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    found.dedup();
    Ok(found)
}

/// Returns the paths and texts of files, without files that are modules for tests only.
pub(crate) fn without_tests(files: Vec<PathBuf>) -> Result<Vec<(PathBuf, String)>> {
    let mut tests = BTreeSet::new();
    let mut texts = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file)?;
        // The file of a module of a/mod.rs or a/lib.rs is in a/; that of a module of a/b.rs is in
        // a/b/.
        let folder = match file.file_stem().and_then(|stem| stem.to_str()) {
            Some("mod" | "lib" | "main") | None => file.with_file_name(""),
            Some(_) => file.with_extension(""),
        };
        let modules = test_modules(&text).into_iter();
        tests.extend(modules.map(|name| folder.join(name)));
        texts.push((file, text));
    }
    texts.retain(|(file, _)| {
        let module = file.with_extension("");
        !tests.iter().any(|test| module.starts_with(test))
    });
    Ok(texts)
}

/// Returns whether a line has code.
pub(crate) fn is_code(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with("//")
}

/// Returns whether a line has an attribute that lifts the workspace's ban on `unsafe`.
pub(crate) fn allows_unsafe(line: &str) -> bool {
    let line = line.trim_start();
    let names_it = line
        .split("//")
        .next()
        .is_some_and(|code| code.contains("unsafe_code"));
    let forbids = ["#![forbid(", "#[forbid(", "#![deny(", "#[deny("];
    // The second form is an attribute over several lines.
    names_it
        && (line.starts_with('#') && !forbids.iter().any(|start| line.starts_with(start))
            || line.starts_with("unsafe_code"))
}

/// Returns the number of unsafe blocks, functions, implementations and other unsafe items that a
/// line opens.
pub(crate) fn unsafe_blocks(line: &str) -> usize {
    let code = line.split("//").next().unwrap_or_default();
    let quoted = |at: usize| code[..at].matches('"').count() % 2 == 1;
    code.match_indices("unsafe ")
        .filter(|&(at, word)| {
            let rest = &code[at + word.len()..];
            let opens = ["{", "fn", "impl", "extern", "trait"];
            !quoted(at) && opens.iter().any(|start| rest.starts_with(start))
        })
        .count()
}

/// Returns the lines and unsafe blocks of a file's code, without its tests.
pub(crate) fn count(text: &str) -> (usize, usize) {
    let (mut lines, mut blocks) = (0, 0);
    let mut rest = text.lines();
    while let Some(line) = rest.next() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            skip_item(&mut rest);
        } else if is_code(line) {
            lines += 1;
            blocks += unsafe_blocks(line);
        }
    }
    (lines, blocks)
}

/// Skips the item to which an attribute belongs. The item ends at a line that ends with `;` or `}`,
/// or at a closing bracket with the indentation of the line that opened it.
fn skip_item<'a>(lines: &mut impl Iterator<Item = &'a str>) {
    let mut indentation = None;
    for line in lines {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        match indentation {
            None if trimmed.ends_with(['{', '(', '[']) => indentation = Some(indent),
            None if trimmed.ends_with([';', '}']) => return,
            Some(opened) if indent == opened && trimmed.starts_with(['}', ')', ']']) => return,
            _ => {}
        }
    }
}

/// Returns the names of the modules in separate files that a file declares for tests only.
pub(crate) fn test_modules(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let name = |pair: &[&str]| {
        let module = pair[1]
            .trim_start_matches("pub(crate) ")
            .strip_prefix("mod ")?;
        let tests = pair[0] == "#[cfg(test)]" || pair[0].starts_with("#[cfg(all(test, ");
        tests.then(|| module.strip_suffix(';').map(str::to_owned))?
    };
    lines.windows(2).filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_comments_and_blank_lines_are_not_counted() {
        let text = "\
//! A comment.

use x; // code
#[cfg(test)]
mod tests;
#[cfg(test)]
use y::{
    z,
};
unsafe fn f() {
    // SAFETY: none.
    unsafe { g() }
}
#[cfg(test)]
mod inline {
    fn t() {
        unsafe { g() }
    }
}
const LAST: u8 = 1;
";
        assert_eq!(count(text), (5, 2));
        assert_eq!(test_modules(text), ["tests"]);
        let model = "#[cfg(all(test, loom))]\nmod model;\n#[cfg(all(loom))]\nmod other;\n";
        assert_eq!(test_modules(model), ["model"]);
    }

    #[test]
    fn unsafe_in_words_is_not_unsafe_in_code() {
        assert_eq!(unsafe_blocks("    unsafe { f(unsafe { g() }) }"), 2);
        assert_eq!(unsafe_blocks("pub(crate) unsafe fn f() {"), 1);
        assert_eq!(unsafe_blocks("let s = \"unsafe { }\";"), 0);
        assert_eq!(unsafe_blocks("f(); // unsafe { }"), 0);
    }

    #[test]
    fn only_an_attribute_lifts_the_ban() {
        for line in [
            "#![allow(unsafe_code)]",
            "  #[expect(unsafe_code)]",
            "    unsafe_code,",
        ] {
            assert!(allows_unsafe(line), "{line}");
        }
        for line in [
            "#![forbid(unsafe_code)]",
            "// #![allow(unsafe_code)]",
            "f(\"unsafe_code\")",
        ] {
            assert!(!allows_unsafe(line), "{line}");
        }
    }
}
