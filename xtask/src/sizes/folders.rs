//! Counts lines of code of each folder and each crate.

use crate::source;
use crate::workspace::Crate;
use std::collections::BTreeMap;
use std::path::Path;

/// Counts lines without tests, benchmarks, blank lines and comments. Returns a row for each folder
/// of the workspace, each followed by a row for each of its crates.
pub(super) fn table(code: &[(&Path, &str)], root: &Path, crates: &[Crate]) -> String {
    let mut folders: BTreeMap<&Path, usize> = BTreeMap::new();
    for (path, text) in code {
        let (lines, _) = source::count(text);
        let top = path.iter().next().map_or(*path, Path::new);
        *folders.entry(top).or_default() += lines;
        let within = crates.iter().filter_map(|found| {
            let folder = found.root.strip_prefix(root).ok()?;
            path.starts_with(folder).then_some(folder)
        });
        // A crate may lie in another crate's folder.
        if let Some(folder) = within.max_by_key(|folder| folder.iter().count())
            && folder != top
        {
            *folders.entry(folder).or_default() += lines;
        }
    }
    let mut text = String::new();
    for (folder, lines) in &folders {
        let indent = "  ".repeat(folder.iter().count() - 1);
        let name = format!("{indent}{}", folder.display());
        text += &format!("{name:<24} {lines:>7}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_crates_have_rows() {
        let root = Path::new("/w");
        let a_crate = |folder: &str| Crate {
            name: folder.to_owned(),
            root: root.join(folder),
            targets: Vec::new(),
            inside: Vec::new(),
            outside: Vec::new(),
        };
        let code = [
            (Path::new("path/a/src/lib.rs"), "fn f() {}\n// why\n"),
            (Path::new("path/b/src/lib.rs"), "fn f() {}\n\nfn g() {}\n"),
            (Path::new("tool/src/main.rs"), "fn main() {}\n"),
        ];
        let crates = ["path/a", "path/b", "tool"].map(a_crate);
        let found = table(&code, root, &crates);
        let rows: Vec<Vec<&str>> = (found.lines())
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows,
            [
                ["path", "3"],
                ["path/a", "1"],
                ["path/b", "2"],
                ["tool", "1"]
            ]
        );
    }
}
