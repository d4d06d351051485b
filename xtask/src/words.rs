//! Finds retired words: `words.txt` lists them with what is written instead.

use crate::{source, workspace};
use anyhow::{Context, Result, ensure};
use regex::{Regex, RegexBuilder};
use std::path::Path;

/// What `words.txt` says.
#[derive(Default)]
struct Words {
    retired: Vec<Retired>,
    /// Files that may hold all of them.
    skipped: Vec<String>,
}

/// A word that is not written any more.
struct Retired {
    pattern: Regex,
    /// Where it is retired, from the workspace's root; none: everywhere.
    folders: Vec<String>,
    instead: String,
}

/// Prints every place of a retired word and fails if there is one.
pub(crate) fn check() -> Result<()> {
    let root = workspace::root();
    let words = parse(include_str!("../words.txt"))?;
    for folder in words.retired.iter().flat_map(|word| &word.folders) {
        ensure!(
            root.join(folder).exists(),
            "words.txt: there is no {folder}"
        );
    }
    let mut found = Vec::new();
    for file in source::listed(&["rs", "md"])? {
        let text = std::fs::read_to_string(&file)?;
        let path = file.strip_prefix(&root).unwrap_or(&file);
        found.extend(places(&words, path, &text));
    }
    for place in &found {
        eprintln!("words: {place}");
    }
    ensure!(found.is_empty(), "{} places of retired words", found.len());
    println!("words: none of {} retired ones", words.retired.len());
    Ok(())
}

fn parse(text: &str) -> Result<Words> {
    let mut words = Words::default();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(files) = line.strip_prefix("skip:") {
            let files = files.split_whitespace().map(str::to_owned);
            words.skipped.extend(files);
            continue;
        }
        let retired = retired(line).with_context(|| format!("words.txt, line {}", number + 1))?;
        words.retired.push(retired);
    }
    Ok(words)
}

fn retired(line: &str) -> Result<Retired> {
    let (what, instead) = line.split_once(" -> ").context("nothing instead")?;
    let (pattern, folders) = what.split_once(" @ ").unwrap_or((what, ""));
    Ok(Retired {
        pattern: RegexBuilder::new(pattern.trim())
            .case_insensitive(true)
            .build()?,
        folders: folders.split_whitespace().map(str::to_owned).collect(),
        instead: instead.trim().to_owned(),
    })
}

/// The lines of a file that hold retired words.
fn places(words: &Words, path: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if words.skipped.iter().any(|file| path == Path::new(file)) {
        return found;
    }
    let applies = |word: &&Retired| {
        word.folders.is_empty() || word.folders.iter().any(|folder| path.starts_with(folder))
    };
    let retired: Vec<&Retired> = words.retired.iter().filter(applies).collect();
    for (number, line) in text.lines().enumerate() {
        for word in &retired {
            if let Some(place) = word.pattern.find(line) {
                let (place, instead) = (place.as_str(), &word.instead);
                let path = path.display();
                let number = number + 1;
                found.push(format!("{path}:{number}: `{place}`: {instead}"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str =
        "# why\nskip: old.md\nlong[ _-]road -> path\n(?-i)\\bFoo\\b @ a b/c -> Bar\n";

    #[test]
    fn retired_words_are_found_where_they_are_retired() {
        let words = parse(WORDS).unwrap();
        let found = |path: &str, text: &str| places(&words, Path::new(path), text);
        assert_eq!(
            found("x.md", "\nA Long road."),
            ["x.md:2: `Long road`: path"]
        );
        assert_eq!(found("x.rs", "fn long_road(long_road: u8)").len(), 1);
        assert_eq!(found("b/c/x.rs", "Foo foo").len(), 1);
        assert!(found("b/x.rs", "Foo").is_empty());
        assert!(found("a/x.rs", "foo Food").is_empty());
        assert!(found("old.md", "long road").is_empty());
    }

    #[test]
    fn nonsense_is_refused_with_its_line() {
        for text in ["\nfoo", "\n( -> x"] {
            let error = parse(text).err().unwrap();
            assert!(format!("{error:#}").contains("line 2"), "{error:#}");
        }
    }

    #[test]
    fn the_words_can_be_read() {
        assert!(
            !parse(include_str!("../words.txt"))
                .unwrap()
                .retired
                .is_empty()
        );
    }
}
