//! The length of lines.

use std::path::Path;

/// Columns of a line.
const COLUMNS_MAX: usize = 100;

/// Returns the lines that are too long. Rows of tables, lines with only an address, and programs'
/// output (`text` fences) may have any length.
pub(super) fn violations(path: &Path, text: &str) -> Vec<String> {
    let prose = path.extension().is_some_and(|extension| extension == "md");
    let mut printed = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if prose && line.trim_start().starts_with("```") {
            printed = !printed && line.trim_start() == "```text";
        }
        let columns = line.chars().count();
        if columns > COLUMNS_MAX && !printed && !is_row(line) && !is_address(line) {
            let place = format!("{}:{}", path.display(), number + 1);
            found.push(format!("{place}: {columns} columns, at most {COLUMNS_MAX}"));
        }
    }
    found
}

/// Returns a line without the marks of a comment or a list.
fn content(line: &str) -> &str {
    line.trim()
        .trim_start_matches(['/', '!', '#', '-', '*', ' '])
}

/// Returns whether a line is a row of a Markdown table, also in a doc comment. Rows cannot be
/// wrapped.
fn is_row(line: &str) -> bool {
    content(line).starts_with('|')
}

fn is_address(line: &str) -> bool {
    // Skips the name of a link definition: `[name]: https://…`.
    let address = match content(line).split_once("]: ") {
        Some((name, address)) if name.starts_with('[') => address,
        _ => content(line),
    };
    address.contains("://") && !address.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, text: &str) -> usize {
        violations(Path::new(name), text).len()
    }

    #[test]
    fn long_lines_are_found() {
        let long = "x".repeat(101);
        assert_eq!(
            violations(Path::new("a.rs"), &format!("\n{long}\n")),
            ["a.rs:2: 101 columns, at most 100"]
        );
        assert_eq!(found("a.md", &"ä".repeat(100)), 0);
        assert_eq!(found("a.md", &format!("```sh\n{long}\n```\n{long}")), 2);
        assert_eq!(found("a.rs", &format!("// ```text\n// {long}")), 1);
    }

    #[test]
    fn tables_addresses_and_output_may_be_long() {
        let long = "x".repeat(101);
        assert_eq!(found("a.md", &format!("| {long} |")), 0);
        assert_eq!(found("a.rs", &format!("/// | {long} |")), 0);
        assert_eq!(found("a.rs", &format!("    // https://{long}")), 0);
        assert_eq!(found("a.md", &format!("[a b]: https://{long}")), 0);
        assert_eq!(found("a.md", &format!("- see https://{long}")), 1);
        assert_eq!(found("a.md", &format!("```text\n{long}\n```\n{long}")), 1);
    }
}
