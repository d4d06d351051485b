//! Counts the instructions of a part of a program with callgrind.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Functions of the C library's allocator and of start-up. Counts exclude their instructions, which
/// depend on addresses and even on the length of the program's path, but include their callers.
const EXCLUDED_FUNCTIONS: [&str; 10] = [
    "_int_",
    "calloc",
    "free",
    "malloc",
    "realloc",
    "std_detect::",
    "sysmalloc",
    "systrim",
    "tcache_",
    "unlink_chunk",
];

/// Returns why this system cannot count instructions, or `None` if it can.
pub(super) fn missing() -> Option<String> {
    let present = Command::new("valgrind").arg("--version").output();
    match present {
        Ok(output) if output.status.success() => None,
        _ => Some("valgrind is not installed: package valgrind".to_owned()),
    }
}

/// Runs a program and returns the number of instructions executed inside the functions that
/// `toggle` names. callgrind writes its files to `folder`.
pub(super) fn collect(
    program: &Path,
    toggle: &str,
    folder: &Path,
    prepare: impl FnOnce(&mut Command),
) -> Result<u64> {
    // Forked children write separate files.
    let file = folder.join("callgrind.%p");
    let mut command = Command::new("valgrind");
    command
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(format!("--toggle-collect={toggle}"))
        .arg(program);
    prepare(&mut command);
    fs::create_dir_all(folder)?;
    let child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .context("valgrind")?;
    let written = folder.join(format!("callgrind.{}", child.id()));
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", said.trim());
    let count = count(&fs::read_to_string(&written)?);
    fs::remove_dir_all(folder)?;
    ensure!(count > 0, "{command:?}: no function {toggle}");
    Ok(count)
}

/// Returns the sum of the functions' own costs in a text in callgrind's format.
fn count(text: &str) -> u64 {
    // Callgrind writes a file's name only at the first use of its number.
    let mut names = BTreeMap::new();
    let mut name_of = |word: &str| -> Option<bool> {
        let (number, name) = word.strip_prefix('(')?.split_once(')')?;
        if !name.is_empty() {
            let name = name.trim();
            let left_out = EXCLUDED_FUNCTIONS
                .iter()
                .any(|start| name.starts_with(start));
            names.insert(number.to_owned(), left_out);
        }
        names.get(number).copied()
    };
    let (mut sum, mut left_out, mut of_call) = (0, false, false);
    for line in text.lines() {
        if let Some(word) = line.strip_prefix("fn=") {
            left_out = name_of(word).unwrap_or(false);
        } else if let Some(word) = line.strip_prefix("cfn=") {
            name_of(word);
        } else if line.starts_with("calls=") {
            of_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost = line.split_whitespace().nth(1);
            let cost: u64 = cost.and_then(|cost| cost.parse().ok()).unwrap_or(0);
            if !left_out && !of_call {
                sum += cost;
            }
            of_call = false;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_the_allocator_are_excluded() {
        let text = "\
version: 1
events: Ir
fl=(1) bench.rs
fn=(1) Bencher<M>::iter
16 100
fi=(2) inlined.rs
+3 20
fe=(1)
cfn=(2) malloc
calls=2 0
* 5000
cfn=(3) Bridge::forward
calls=1 7
-1 70
fn=(2)
1 4000
fn=(3)
7 70
8
totals: 4190
";
        assert_eq!(count(text), 190);
        assert_eq!(count("events: Ir\n"), 0);
    }
}
