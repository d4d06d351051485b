//! Splits comments and Markdown into sentences.

use std::path::Path;

/// A sentence, and the line on which it starts.
#[derive(Debug, PartialEq)]
pub(super) struct Sentence {
    pub(super) line: usize,
    pub(super) text: String,
}

/// Returns the sentences of a file's comments (`.rs`, `.toml`) or prose (`.md`). Skips fenced code,
/// and replaces inline code by `code`. The end of a table cell, a heading or a list item also ends
/// a sentence.
pub(super) fn sentences(path: &Path, text: &str) -> Vec<Sentence> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let mut found = Vec::new();
    let mut paragraph = Paragraph::default();
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        let line = match extension {
            Some("rs") => comment(line, "//"),
            Some("toml") => comment(line, "#"),
            _ => Some(line),
        };
        let Some(line) = line.map(str::trim) else {
            fenced = false;
            paragraph.end(&mut found);
            continue;
        };
        if line.starts_with("```") {
            fenced = !fenced;
            paragraph.end(&mut found);
            continue;
        }
        if fenced {
            continue;
        }
        let item = line.strip_prefix("- ").or_else(|| line.strip_prefix("* "));
        if line.is_empty() || line.starts_with(['#', '|', '>']) || item.is_some() {
            paragraph.end(&mut found);
        }
        if line.starts_with('|') {
            for cell in line.split('|') {
                paragraph.push(number + 1, cell);
                paragraph.end(&mut found);
            }
            continue;
        }
        let heading = line.starts_with('#');
        paragraph.push(
            number + 1,
            item.unwrap_or(line).trim_start_matches(['#', '>', ' ']),
        );
        if heading {
            paragraph.end(&mut found);
        }
    }
    paragraph.end(&mut found);
    found
}

/// Returns the text of the comment that `line` consists of or ends with.
fn comment<'a>(line: &'a str, marker: &str) -> Option<&'a str> {
    let code = line.trim_start();
    let text = match code.strip_prefix(marker) {
        Some(text) => text,
        // The marker needs a space on both sides, because a `//` inside a string is usually part of
        // an address.
        None => line.split_once(&format!(" {marker} "))?.1,
    };
    Some(text.trim_start_matches(['/', '!']))
}

/// Consecutive lines of prose.
#[derive(Default)]
struct Paragraph {
    text: String,
    /// The offset in `text` at which each line starts.
    lines: Vec<(usize, usize)>,
}

impl Paragraph {
    fn push(&mut self, number: usize, line: &str) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.lines.push((self.text.len(), number));
        self.text.push_str(line.trim());
    }

    /// Splits the paragraph into sentences and moves them to `found`.
    fn end(&mut self, found: &mut Vec<Sentence>) {
        let mut start = 0;
        for end in ends(&self.text) {
            let text = &self.text[start..end];
            let line = self.lines.iter().rev().find(|(offset, _)| *offset <= start);
            if let (Some((_, line)), false) = (line, text.trim().is_empty()) {
                found.push(Sentence {
                    line: *line,
                    text: without_code(text.trim()),
                });
            }
            start = end;
        }
        *self = Self::default();
    }
}

/// Returns the offsets after the spaces that separate sentences, and the text's length.
fn ends(text: &str) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut code = false;
    let mut stop = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '`' => code = !code,
            ' ' if stop && !code => ends.push(at + 1),
            _ => {}
        }
        // A closing parenthesis or quotation mark belongs to the sentence before it.
        stop = matches!(letter, '.' | '!' | '?' | ':') || stop && matches!(letter, ')' | '"' | '*');
    }
    ends.push(text.len());
    ends
}

/// Replaces inline code by the word `code`.
fn without_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(at, part)| if at % 2 == 0 { part } else { "code" })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, text: &str) -> Vec<(usize, String)> {
        let found = sentences(Path::new(name), text).into_iter();
        found.map(|found| (found.line, found.text)).collect()
    }

    #[test]
    fn comments_are_split_at_full_stops() {
        let text = "/// One\n/// two. Three\n/// `four. five`?\nfn f() {} // Six\n";
        let expected = [(1, "One two."), (2, "Three code?"), (4, "Six")];
        assert_eq!(
            found("a.rs", text),
            expected.map(|(line, text)| (line, text.into()))
        );
    }

    #[test]
    fn markdown_is_split_at_headings_cells_and_items() {
        let text = "# A\nB.\n```\nC\n```\n| D | E |\n- F\n- G\n  H\n";
        let expected = [
            (1, "A"),
            (2, "B."),
            (6, "D"),
            (6, "E"),
            (7, "F"),
            (8, "G H"),
        ];
        assert_eq!(
            found("a.md", text),
            expected.map(|(line, text)| (line, text.into()))
        );
    }
}
