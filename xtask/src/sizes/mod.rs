//! Checks the size of functions, files, lines and pages, and that type names are unique in their
//! crate.

mod columns;
mod folders;
mod functions;
mod types;

use crate::{source, workspace};
use anyhow::{Result, ensure};
use std::path::Path;

/// Pages that users read as a whole, and their limits in bytes.
const PAGES: [(&str, usize); 2] = [("README.md", 7000), ("ARCHITECTURE.md", 12_000)];

/// Prints the lines of code of each folder, then every violation. Fails if it finds any.
pub(crate) fn check() -> Result<()> {
    let root = workspace::root();
    let crates = workspace::crates()?;
    let code = source::without_tests(source::listed(&["rs"])?)?;
    let code: Vec<(&Path, &str)> = (code.iter())
        .map(|(path, text)| (path.strip_prefix(&root).unwrap_or(path), text.as_str()))
        .filter(|(path, _)| !is_test_or_bench(path))
        .collect();
    print!("{}", folders::table(&code, &root, &crates));

    let mut violations = Vec::new();
    for (path, text) in &code {
        violations.extend(functions::violations(path, text)?);
    }
    for found in &crates {
        violations.extend(types::violations(&root, found)?);
    }
    for file in source::listed(&["rs", "md", "toml", "sh", ".ci/run"])? {
        let text = std::fs::read_to_string(&file)?;
        let path = file.strip_prefix(&root).unwrap_or(&file);
        violations.extend(columns::violations(path, &text));
    }
    for (page, most) in PAGES {
        let bytes = std::fs::metadata(root.join(page))?.len();
        if bytes > most as u64 {
            violations.push(format!("{page}: {bytes} bytes, at most {most}"));
        }
    }
    for breach in &violations {
        eprintln!("sizes: {breach}");
    }
    ensure!(
        violations.is_empty(),
        "{} violations of sizes",
        violations.len()
    );
    println!("sizes: {} files of code are within the limits", code.len());
    Ok(())
}

/// Returns whether a file is a test or benchmark, by its folder or name.
fn is_test_or_bench(path: &Path) -> bool {
    let in_folder = |name: &str| path.iter().any(|part| part == name);
    in_folder("tests") || in_folder("benches") || path.ends_with("tests.rs")
}
