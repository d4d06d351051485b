//! Finds import cycles between the files of a crate.
//!
//! A file depends on another if it names an item that is defined there: in an import, in a path in
//! its code, or through a re-export. A module does not depend on its children because it declares
//! them or re-exports their items. It depends on a child if its own code names the child's items.

mod cycles;
mod resolve;
#[cfg(test)]
mod tests;
mod tree;
mod uses;

use anyhow::Result;
use std::path::{Path, PathBuf};
use tree::Tree;
use uses::Dependencies;

/// Maximum number of names shown for a dependency between two files.
const NAMES_SHOWN: usize = 3;

/// Returns the files of the crate whose root is `file`, without its tests.
pub(crate) fn files(file: &Path) -> Result<Vec<(PathBuf, syn::File)>> {
    let files = Tree::read(file)?.files.into_iter();
    Ok(files.map(|file| (file.path, file.syntax)).collect())
}

/// Describes every cycle of the crate whose root is `file`.
pub(crate) fn cycles_of_crate(name: &str, file: &Path) -> Result<Vec<String>> {
    let tree = Tree::read(file)?;
    let dependencies = uses::dependencies(&tree);
    let mut graph = cycles::Graph::new();
    for &(from, to) in dependencies.keys() {
        graph.entry(from).or_default().insert(to);
    }
    let folder = file.parent().unwrap_or(file);
    let show = |file: usize| {
        let path = &tree.files[file].path;
        path.strip_prefix(folder)
            .unwrap_or(path)
            .display()
            .to_string()
    };
    let mut found = Vec::new();
    for group in cycles::groups(&graph) {
        let ways = cycles::shortest(&graph, &group);
        if group.len() > 2 {
            let files: Vec<String> = group.iter().map(|&file| show(file)).collect();
            let files = files.join(" ");
            let count = group.len();
            found.push(format!(
                "{count} files of {name} depend on each other: {files}"
            ));
        }
        for way in ways {
            found.push(format!(
                "cycle in {name}: {}",
                describe(&way, &dependencies, &show)
            ));
        }
    }
    Ok(found)
}

/// Describes a cycle. In `a.rs:3 (B) -> b.rs:7 (A) -> a.rs`, line 3 of a.rs names B, which b.rs
/// defines.
fn describe(way: &[usize], dependencies: &Dependencies, show: &dyn Fn(usize) -> String) -> String {
    let mut text = String::new();
    for (at, &from) in way.iter().enumerate() {
        let to = way[(at + 1) % way.len()];
        let names = &dependencies[&(from, to)];
        let line = names.first().map_or(0, |(line, _)| *line);
        let mut shown: Vec<&str> = Vec::new();
        for (_, name) in names {
            if !shown.contains(&name.as_str()) {
                shown.push(name);
            }
        }
        let more = shown.len().saturating_sub(NAMES_SHOWN);
        shown.truncate(NAMES_SHOWN);
        let mut shown = shown.join(", ");
        if more > 0 {
            shown += &format!(", {more} more");
        }
        text += &format!("{}:{line} ({shown}) -> ", show(from));
    }
    text + &show(way[0])
}
