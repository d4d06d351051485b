//! Checks links of Markdown files: each link into the repository must lead to an existing file,
//! folder or heading, each path in inline code must exist, and so must each function that a page
//! names with its file (`path/a.rs: function`).

use crate::{source, workspace};
use anyhow::{Context, Result, ensure};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The page that may name files that no longer exist.
const HISTORY: &str = "CHANGELOG.md";

/// A link as written, `](target)`, a path in code, or a file with a function.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DocLink {
    /// The line number, starting at 1.
    pub(crate) line: usize,
    pub(crate) target: String,
}

/// Prints every broken link and path. Fails if it finds any.
pub(crate) fn check() -> Result<()> {
    let root = workspace::root();
    let files = source::listed(&["md"])?;
    let names = source::names()?;
    let folders = names.iter().filter_map(|name| name.split_once('/'));
    let folders: BTreeSet<&str> = folders.map(|(folder, _)| folder).collect();
    let mut headings = BTreeMap::new();
    for file in &files {
        headings.insert(file.clone(), anchors(&fs::read_to_string(file)?)?);
    }
    let mut checked = 0;
    let mut broken = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file)?;
        let name = file.strip_prefix(&root).unwrap_or(file);
        let mut note = |link: DocLink, outcome: Result<()>| {
            checked += 1;
            if let Err(why) = outcome {
                let DocLink { line, target } = link;
                broken.push(format!("{}:{line}: `{target}`: {why}", name.display()));
            }
        };
        for link in links(&text)? {
            let outcome = check_target(file, &link.target, &headings);
            note(link, outcome);
        }
        if name != Path::new(HISTORY) {
            for path in paths(&text, &folders)? {
                let outcome = exists(&root.join(&path.target));
                note(path, outcome);
            }
            for function in functions(&text, &folders)? {
                let outcome = check_function(&root, &function.target);
                note(function, outcome);
            }
        }
    }
    for link in &broken {
        eprintln!("links: {link}");
    }
    ensure!(broken.is_empty(), "{} broken links", broken.len());
    println!("links: {checked} in {} files are valid", files.len());
    Ok(())
}

/// Returns the paths in a page's inline code that begin with one of `folders`, relative to the
/// repository's root.
fn paths(text: &str, folders: &BTreeSet<&str>) -> Result<Vec<DocLink>> {
    let path = Regex::new(r"`(([\w.-]+)/[\w./-]*)`")?;
    let mut found = Vec::new();
    for (line, text) in prose(text) {
        for hit in path.captures_iter(text) {
            let target = hit[1].to_owned();
            if folders.contains(&hit[2]) {
                found.push(DocLink { line, target });
            }
        }
    }
    Ok(found)
}

/// Returns the functions that a page names with their file in one of `folders`, also in fenced
/// code: `path/a.rs: function`.
fn functions(text: &str, folders: &BTreeSet<&str>) -> Result<Vec<DocLink>> {
    let function = Regex::new(r"([\w.-]+)/[\w./-]+\.rs: \w+")?;
    let mut found = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        for hit in function.captures_iter(text) {
            let target = hit[0].to_owned();
            if folders.contains(&hit[1]) {
                found.push(DocLink { line, target });
            }
        }
    }
    Ok(found)
}

/// Returns a file's links into the repository, except those in code.
pub(crate) fn links(text: &str) -> Result<Vec<DocLink>> {
    let link = Regex::new(r"\]\(<?([^)>\s]+)>?(?:\s[^)]*)?\)|^\[[^\]]+\]:\s*(\S+)")?;
    let code = Regex::new(r"`[^`]*`")?;
    let mut found = Vec::new();
    for (line, text) in prose(text) {
        let text = code.replace_all(text, "`");
        for hit in link.captures_iter(&text) {
            let target = hit
                .get(1)
                .or(hit.get(2))
                .map_or("", |target| target.as_str());
            if !is_external(target) {
                let target = target.to_owned();
                found.push(DocLink { line, target });
            }
        }
    }
    Ok(found)
}

/// Returns whether a link points outside the repository, because it has a scheme.
fn is_external(target: &str) -> bool {
    target.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphabetic())
    })
}

/// Returns lines outside of fenced code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    let numbered = (1..).zip(text.lines());
    numbered.filter(move |(_, line)| {
        let line = line.trim_start();
        let is_fence = line.starts_with("```") || line.starts_with("~~~");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the path to which a file's link points, without a check that it exists.
pub(crate) fn place(file: &Path, path: &str) -> PathBuf {
    let mut place = file.with_file_name("");
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => drop(place.pop()),
            Component::CurDir => {}
            other => place.push(other),
        }
    }
    place
}

/// Returns the file or folder to which a page's link points.
pub(crate) fn target_of(page: &Path, target: &str) -> PathBuf {
    match target.split('#').next() {
        None | Some("") => page.to_owned(),
        Some(path) => place(page, path),
    }
}

fn exists(place: &Path) -> Result<()> {
    ensure!(place.exists(), "the file does not exist");
    Ok(())
}

/// Checks that the file defines the function in a target of the form `file: function`.
fn check_function(root: &Path, target: &str) -> Result<()> {
    let (path, name) = target.split_once(": ").context("no function follows")?;
    let text = fs::read_to_string(root.join(path)).context("the file cannot be read")?;
    // Only visibility and qualifiers precede the keyword: a comment defines no function.
    let definition = format!(r#"(?m)^\s*(?:[\w"():]+ )*fn {name}\b"#);
    ensure!(
        Regex::new(&definition)?.is_match(&text),
        "the file has no such function"
    );
    Ok(())
}

fn check_target(
    file: &Path,
    target: &str,
    headings: &BTreeMap<PathBuf, BTreeSet<String>>,
) -> Result<()> {
    let place = target_of(file, target);
    exists(&place)?;
    let Some((_, anchor)) = target
        .split_once('#')
        .filter(|(_, anchor)| !anchor.is_empty())
    else {
        return Ok(());
    };
    let there = headings.get(&place).context("only a page has headings")?;
    ensure!(there.contains(anchor), "the page has no such heading");
    Ok(())
}

/// Returns the anchors of a page's headings, as forges and mdBook create them.
fn anchors(text: &str) -> Result<BTreeSet<String>> {
    let link = Regex::new(r"\[([^\]]*)\]\([^)]*\)")?;
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let title = link.replace_all(title.trim(), "$1").to_lowercase();
        let kept = title.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            c => (c.is_alphanumeric() || c == '-' || c == '_').then_some(c),
        });
        let anchor: String = kept.collect();
        // The second of two equal anchors gets a number.
        let numbered = (1..).map(|n| format!("{anchor}-{n}"));
        let mut names = std::iter::once(anchor.clone()).chain(numbered);
        anchors.extend(names.find(|name| !anchors.contains(name)));
    }
    Ok(anchors)
}

/// Returns the title of a page: its first heading.
pub(crate) fn title(text: &str) -> Option<&str> {
    prose(text).find_map(|(_, line)| line.strip_prefix("# "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A [page](x.md)\n\n[one](a.md) and [two](b/c.md#the-end \"t\")\n\
                        `[no](code.md)` [out](https://x.y/z) [mail](mailto:a@b)\n\
                        ```\n[no](fence.md)\n```\n![picture](p.svg)\n[ref]: d.md\n\
                        ## The `end`: of it\n## The `end`: of it\n";

    #[test]
    fn links_are_found_outside_of_code() {
        let found = links(PAGE).unwrap();
        let found: Vec<(usize, &str)> = found.iter().map(|l| (l.line, &l.target[..])).collect();
        let expected = [
            (1, "x.md"),
            (3, "a.md"),
            (3, "b/c.md#the-end"),
            (8, "p.svg"),
            (9, "d.md"),
        ];
        assert_eq!(found, expected);
        assert_eq!(title(PAGE), Some("A [page](x.md)"));
    }

    #[test]
    fn paths_begin_with_a_folder_of_the_repository() {
        let folders = BTreeSet::from(["docs", ".ci"]);
        let page = "`docs/a.md` and `.ci/run`\n\n`src/x.rs`, `docs`, `docs/{a,b}`, docs/b\n\
                    ```\n`docs/c`\n```\n`docs/d/`\n";
        let found = paths(page, &folders).unwrap();
        let found: Vec<(usize, &str)> = found.iter().map(|l| (l.line, &l.target[..])).collect();
        assert_eq!(found, [(1, "docs/a.md"), (1, ".ci/run"), (7, "docs/d/")]);
    }

    #[test]
    fn functions_follow_their_file() {
        let folders = BTreeSet::from(["path"]);
        let page = "`path/a.rs: run`, `path/a.rs`: runs, `src/a.rs: run`\n\
                    ```\n nic  path/b-c/d.rs: take_all\n```\n";
        let found = functions(page, &folders).unwrap();
        let found: Vec<(usize, &str)> = found.iter().map(|l| (l.line, &l.target[..])).collect();
        assert_eq!(
            found,
            [(1, "path/a.rs: run"), (3, "path/b-c/d.rs: take_all")]
        );
    }

    #[test]
    fn a_named_function_is_defined_in_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let text = "//! fn read() {}\nfn run_all() {}\n\
                    impl A {\n    pub(super) const fn take<T>() {}\n\n    async fn wait() {}\n}\n";
        fs::write(folder.path().join("a.rs"), text).unwrap();
        let is_defined = |target: &str| check_function(folder.path(), target).is_ok();
        for good in ["a.rs: run_all", "a.rs: take", "a.rs: wait"] {
            assert!(is_defined(good), "{good}");
        }
        for wrong in ["a.rs: run", "a.rs: read", "a.rs: wait_all", "b.rs: take"] {
            assert!(!is_defined(wrong), "{wrong}");
        }
    }

    #[test]
    fn headings_have_anchors() {
        let anchors: Vec<String> = anchors(PAGE).unwrap().into_iter().collect();
        assert_eq!(anchors, ["a-page", "the-end-of-it", "the-end-of-it-1"]);
    }

    #[test]
    fn a_link_leads_to_a_file_a_folder_or_a_heading() {
        let folder = tempfile::tempdir().unwrap();
        let (page, other) = (
            folder.path().join("d/page.md"),
            folder.path().join("other.md"),
        );
        fs::create_dir(folder.path().join("d")).unwrap();
        fs::write(&page, "").unwrap();
        fs::write(&other, "# Here\n").unwrap();
        let of_other = anchors("# Here\n").unwrap();
        let headings = BTreeMap::from([(other, of_other), (page.clone(), BTreeSet::new())]);
        let leads = |target: &str| check_target(&page, target, &headings).is_ok();
        for good in ["../other.md", "../other.md#here", "..", "../d", "page.md"] {
            assert!(leads(good), "{good}");
        }
        for broken in ["other.md", "../other.md#there", "../e", "#here", "..#here"] {
            assert!(!leads(broken), "{broken}");
        }
    }
}
