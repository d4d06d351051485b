//! Finds retired words and phrases, which `words.txt` lists with their replacements.

mod prose;

use crate::{source, workspace};
use anyhow::{Context, Result, ensure};
use regex::{Regex, RegexBuilder};
use std::path::Path;

/// The contents of `words.txt`.
#[derive(Default)]
struct Words {
    retired: Vec<Retired>,
    /// Phrases that no sentence of a comment or document may contain.
    phrases: Vec<Retired>,
    /// Folders below which sentences are not checked yet.
    unchecked: Vec<String>,
    /// Files that may contain retired words.
    skipped: Vec<String>,
}

/// A retired word.
struct Retired {
    pattern: Regex,
    /// The folders in which the word is retired, relative to the workspace's root (empty:
    /// everywhere).
    folders: Vec<String>,
    instead: String,
}

/// Prints every occurrence of a retired word or phrase below `folders` (empty: the whole
/// workspace). Fails if it finds any.
pub(crate) fn check(folders: &[String]) -> Result<()> {
    let root = workspace::root();
    let words = parse(include_str!("../words.txt"))?;
    let all = words.retired.iter().chain(&words.phrases);
    for folder in all.flat_map(|word| &word.folders) {
        ensure!(
            root.join(folder).exists(),
            "words.txt: {folder} does not exist"
        );
    }
    let mut found = Vec::new();
    for file in source::listed(&["rs", "md", "toml"])? {
        let path = file.strip_prefix(&root).unwrap_or(&file);
        let wanted = folders.iter().any(|folder| path.starts_with(folder));
        if !wanted && !folders.is_empty() {
            continue;
        }
        let text = std::fs::read_to_string(&file)?;
        found.extend(violations(&words, path, &text));
    }
    for place in &found {
        eprintln!("words: {place}");
    }
    ensure!(found.is_empty(), "{} uses of retired words", found.len());
    let rules = words.retired.len() + words.phrases.len();
    println!("words: no use of {rules} retired words");
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
        if let Some(folders) = line.strip_prefix("sentences unchecked:") {
            let folders = folders.split_whitespace().map(str::to_owned);
            words.unchecked.extend(folders);
            continue;
        }
        let (line, list) = match line.strip_prefix("sentence: ") {
            Some(line) => (line, &mut words.phrases),
            None => (line, &mut words.retired),
        };
        list.push(retired(line).with_context(|| format!("words.txt, line {}", number + 1))?);
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

/// Returns the lines of a file with retired words.
fn violations(words: &Words, path: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if words.skipped.iter().any(|file| path == Path::new(file)) {
        return found;
    }
    let applies = |word: &&Retired| {
        word.folders.is_empty() || word.folders.iter().any(|folder| path.starts_with(folder))
    };
    let phrases: Vec<&Retired> = words.phrases.iter().filter(applies).collect();
    let unchecked = |folder: &String| path.starts_with(folder);
    if !phrases.is_empty() && !words.unchecked.iter().any(unchecked) {
        for sentence in prose::sentences(path, text) {
            for phrase in &phrases {
                if let Some(place) = phrase.pattern.find(&sentence.text) {
                    let (place, instead) = (place.as_str(), &phrase.instead);
                    let (path, line, text) = (path.display(), sentence.line, &sentence.text);
                    found.push(format!("{path}:{line}: `{place}`: {instead}: {text}"));
                }
            }
        }
    }
    if path
        .extension()
        .is_some_and(|extension| extension == "toml")
    {
        return found;
    }
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

    const WORDS: &str = "# why\nskip: old.md\nlong[ _-]road -> path\n\
         (?-i)\\bFoo\\b @ a b/c -> Bar\nsentence: ^who\\b[^?]*$ -> name the actor\n\
         sentences unchecked: old\n";

    #[test]
    fn retired_words_are_found_where_they_are_retired() {
        let words = parse(WORDS).unwrap();
        let found = |path: &str, text: &str| violations(&words, Path::new(path), text);
        assert_eq!(
            found("x.md", "\nA Long road."),
            ["x.md:2: `Long road`: path"]
        );
        assert_eq!(found("x.rs", "fn long_road(long_road: u8)").len(), 1);
        assert_eq!(found("b/c/x.rs", "Foo foo").len(), 1);
        assert!(found("b/x.rs", "Foo").is_empty());
        assert!(found("a/x.rs", "foo Food").is_empty());
        assert!(found("old.md", "long road").is_empty());
        assert_eq!(
            found("x.rs", "// Who asks?\n// It is. Who\n// waits, `Foo`."),
            ["x.rs:2: `Who waits, code.`: name the actor: Who waits, code."]
        );
        assert!(found("old/x.rs", "// Who waits.").is_empty());
        assert!(found("x.rs", "let who = \"Who waits\";").is_empty());
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_number() {
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
