//! Builds the repository's pages as a book: `book.toml`, and mdBook
//! (<https://rust-lang.github.io/mdBook>).
//!
//! mdBook needs all pages below one folder, but those of this repository are beside the code.
//! Therefore this command copies them, with the files to which they link, to the same paths below
//! `target/book/src`. The paths determine the table of contents. The copy renames each `README.md`
//! to `index.md`, because mdBook creates `index.html` from a `README.md` but does not change links
//! to it.

use crate::links::{links, place, target_of, title};
use crate::{source, workspace};
use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The parts of the book: the title and the pages of each. A page belongs to the first part that
/// matches.
const PARTS: &[(&str, &[&str])] = &[
    ("", &["README.md", "docs/README.md"]),
    ("Use", &["docs/*.md", "edge/xen/README.md"]),
    (
        "Measurements",
        &[
            "docs/experiments/*.md",
            "docs/case-study/*.md",
            "lab/experiments/*.md",
        ],
    ),
    (
        "Promises",
        &["SPECIFICATION.md", "THREAT-MODEL.md", "specs/*.md"],
    ),
    (
        "How it is built",
        &["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"],
    ),
    (
        "Decisions",
        &["docs/decisions/README.md", "docs/decisions/*.md"],
    ),
    ("Crates", &["*"]),
];

/// Copies the pages, runs mdBook, and checks the book's links.
pub(crate) fn build() -> Result<()> {
    let root = workspace::root();
    let src = root.join("target/book/src");
    let pages = prepare(&root, &src)?;
    let made = Command::new("mdbook")
        .arg("build")
        .current_dir(&root)
        .status();
    match made {
        Ok(status) => ensure!(status.success(), "mdbook has failed"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
            "mdbook is not installed: `cargo install --locked mdbook`; its pages are in {}",
            src.display()
        ),
        Err(error) => return Err(error).context("cannot run mdbook"),
    }
    let html = root.join("target/book/html");
    check_html(&html)?;
    println!("book: {pages} pages, {}", html.join("index.html").display());
    Ok(())
}

/// Copies the pages and the files to which they link. Returns the number of pages.
fn prepare(root: &Path, src: &Path) -> Result<usize> {
    if src.exists() {
        fs::remove_dir_all(src).with_context(|| format!("cannot empty {}", src.display()))?;
    }
    let mut pages: BTreeSet<PathBuf> = source::listed(&["md"])?.into_iter().collect();
    let mut folders = BTreeSet::new();
    for page in pages.clone() {
        let text = fs::read_to_string(&page)?;
        for link in links(&text)? {
            let there = target_of(&page, &link.target);
            if there.is_dir() {
                folders.insert(there);
            } else if there.extension().is_none_or(|end| end != "md") {
                copy(&there, root, src)?;
            }
        }
        write(&page, root, src, &with_book_links(&page, &text)?)?;
    }
    for folder in folders {
        let page = folder.join("README.md");
        if pages.insert(page.clone()) {
            write(&page, root, src, &listing(&folder, root, src)?)?;
        }
    }
    let names: Vec<&str> = pages
        .iter()
        .filter_map(|page| page.strip_prefix(root).ok()?.to_str())
        .collect();
    fs::write(src.join("SUMMARY.md"), summary(src, &names)?)?;
    Ok(names.len())
}

fn copy(file: &Path, root: &Path, src: &Path) -> Result<()> {
    write_bytes(file, root, src, &fs::read(file)?)
}

fn write(file: &Path, root: &Path, src: &Path, text: &str) -> Result<()> {
    write_bytes(file, root, src, text.as_bytes())
}

fn write_bytes(file: &Path, root: &Path, src: &Path, bytes: &[u8]) -> Result<()> {
    let to = src.join(book_path(file.strip_prefix(root)?));
    fs::create_dir_all(to.with_file_name(""))?;
    fs::write(&to, bytes).with_context(|| format!("cannot write {}", to.display()))
}

/// Returns the path of a file in the book.
fn book_path(file: &Path) -> PathBuf {
    match file.ends_with("README.md") {
        true => file.with_file_name("index.md"),
        false => file.to_owned(),
    }
}

/// Returns a page's text with its links changed to paths in the book. A link to a folder becomes a
/// link to the folder's page.
fn with_book_links(page: &Path, text: &str) -> Result<String> {
    let link = Regex::new(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")?;
    let to_page = |hit: &regex::Captures<'_>| {
        let (target, anchor) = (&hit[1], hit.get(2).map_or("", |anchor| anchor.as_str()));
        let there = place(page, target);
        let target = match (there.is_dir(), target.strip_suffix("README.md")) {
            (true, _) => format!("{}/index.md", target.trim_end_matches('/')),
            (false, Some(folder)) if there.is_file() => format!("{folder}index.md"),
            _ => target.to_owned(),
        };
        format!("]({target}{anchor})")
    };
    Ok(link.replace_all(text, to_page).into_owned())
}

/// Returns a page for a folder without a README, which lists its files, and copies these files.
fn listing(folder: &Path, root: &Path, src: &Path) -> Result<String> {
    let name = folder.strip_prefix(root)?.display();
    let mut text = format!("# {name}\n\n");
    let all = source::listed(&["toml", "jsonl", "md", "txt", "rs"])?;
    for file in all.iter().filter(|file| file.parent() == Some(folder)) {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let place = book_path(Path::new(&*name));
        writeln!(text, "- [{name}]({})", place.display())?;
        if file.extension().is_none_or(|end| end != "md") {
            copy(file, root, src)?;
        }
    }
    Ok(text)
}

/// Returns the table of contents, with the pages' titles.
fn summary(src: &Path, pages: &[&str]) -> Result<String> {
    let mut left: BTreeSet<&str> = pages.iter().copied().collect();
    let mut text = "# Summary\n".to_owned();
    for (part, patterns) in PARTS {
        if !part.is_empty() {
            write!(text, "\n# {part}\n")?;
        }
        text.push('\n');
        for pattern in *patterns {
            let fits: Vec<&str> = left
                .iter()
                .copied()
                .filter(|page| matches_pattern(page, pattern))
                .collect();
            for page in fits {
                left.remove(page);
                let place = book_path(Path::new(page));
                let words = fs::read_to_string(src.join(&place))?;
                let place = place.display();
                let title = title(&words).with_context(|| format!("{page} has no title"))?;
                let title = title.replace(['[', ']', '`'], "");
                match part.is_empty() {
                    true => writeln!(text, "[{title}]({place})")?,
                    false => writeln!(text, "- [{title}]({place})")?,
                }
            }
        }
    }
    Ok(text)
}

/// Returns whether `page` matches `pattern`: `*` matches every page, `folder/*.md` the pages in a
/// folder.
fn matches_pattern(page: &str, pattern: &str) -> bool {
    match pattern.strip_suffix("*.md") {
        Some(folder) => page
            .strip_prefix(folder)
            .is_some_and(|name| !name.contains('/')),
        None => pattern == "*" || page == pattern,
    }
}

/// Fails if a page of the book links to a missing file.
fn check_html(html: &Path) -> Result<()> {
    let link = Regex::new("(?:href|src)=\"([^\"#?]+)[\"#?]")?;
    let mut broken = BTreeSet::new();
    for path in source::walk(html, |_| true)? {
        if path.extension().is_none_or(|end| end != "html") || path.ends_with("404.html") {
            continue;
        }
        for hit in link.captures_iter(&fs::read_to_string(&path)?) {
            let target = &hit[1];
            if !target.contains(':') && !place(&path, target).exists() {
                broken.insert(format!("{}: {target}", path.display()));
            }
        }
    }
    broken.iter().for_each(|link| eprintln!("book: {link}"));
    ensure!(
        broken.is_empty(),
        "{} broken links in the book",
        broken.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every page is in the table of contents once, and the book has the files that pages link to.
    #[test]
    fn the_book_contains_every_page_and_linked_file() {
        let folder = tempfile::tempdir().unwrap();
        let src = folder.path().join("src");
        let count = prepare(&workspace::root(), &src).unwrap();
        let summary = fs::read_to_string(src.join("SUMMARY.md")).unwrap();
        let listed = links(&summary).unwrap();
        assert_eq!(listed.len(), count);
        assert!(count > 50, "{count}");
        for entry in listed {
            let page = src.join(&entry.target);
            let text = fs::read_to_string(&page).unwrap();
            for link in links(&text).unwrap() {
                let there = target_of(&page, &link.target);
                assert!(there.is_file(), "{}: {}", page.display(), link.target);
            }
        }
        let first = summary.lines().find(|line| line.starts_with('[')).unwrap();
        assert_eq!(first, "[Grantway](index.md)");
        for part in ["# Use", "# Decisions", "# Crates"] {
            assert!(summary.contains(part), "{summary}");
        }
    }

    #[test]
    fn broken_links_of_the_book_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("a.html");
        fs::write(
            &page,
            "<a href=\"b.html#x\">b</a><a href=\"https://x.y\">c</a>",
        )
        .unwrap();
        let error = check_html(folder.path()).unwrap_err().to_string();
        assert!(error.contains("1 broken link"), "{error}");
        fs::write(folder.path().join("b.html"), "").unwrap();
        check_html(folder.path()).unwrap();
    }
}
