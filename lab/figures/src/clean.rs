//! Texts of others before a terminal, a table or a picture shows them.
//!
//! A domain chooses the names of its counters, the lines of its console, the words of its errors
//! and the symbols of its program. Unchanged, these could move the reader's cursor, rename the
//! window, answer in the reader's place, or look like a line of ours.

use std::borrow::Cow;
use std::fmt::Write as _;

/// What stands for a character that is taken out.
const INSTEAD: &str = "\u{fffd}";

/// Whether a terminal or a picture would do something else with it than draw it: control
/// characters, line separators, and what changes the direction of the text around it.
fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{2028}' | '\u{2029}' | '\u{061c}' | '\u{200e}' | '\u{200f}'
        )
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

fn without(text: &str, is_bad: impl Fn(char) -> bool + Copy) -> Cow<'_, str> {
    if text.contains(is_bad) {
        text.replace(is_bad, INSTEAD).into()
    } else {
        text.into()
    }
}

/// A text that is shown within a line.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    without(text, is_active)
}

/// A text of several lines.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    without(text, |c| is_active(c) && c != '\n' && c != '\t')
}

/// JSON as it was written, for a terminal: the same values, every such character as an escape.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    // In JSON they occur within texts only; lines of JSON are set apart.
    let is_bad = |c: char| is_active(c) && c != '\n';
    if !text.contains(is_bad) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_bad(c) {
            // All of them are of the basic plane: four digits.
            let _ = write!(escaped, "\\u{:04x}", u32::from(c));
        } else {
            escaped.push(c);
        }
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\x1b]0;owned\x07\u{9b}2J\u{202e}\u{2028}ü\r\n\tz";

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        let r = INSTEAD;
        assert_eq!(
            line(HOSTILE),
            format!("a{r}]0;owned{r}{r}2J{r}{r}ü{r}{r}{r}z")
        );
        assert_eq!(
            lines(HOSTILE),
            format!("a{r}]0;owned{r}{r}2J{r}{r}ü{r}\n\tz")
        );
        assert!(matches!(line("drops.no_buffer 50 % ü"), Cow::Borrowed(_)));
        for c in (0..=0x10_ffff)
            .filter_map(char::from_u32)
            .filter(|c| c.is_control())
        {
            assert_eq!(line(&c.to_string()), INSTEAD);
        }
    }

    #[test]
    fn json_keeps_its_values() {
        let value = serde_json::json!({ HOSTILE: [HOSTILE] });
        let text = format!("{value}\n");
        let shown = json(&text);
        assert!(
            shown.chars().all(|c| c == '\n' || !is_active(c)),
            "{shown:?}"
        );
        let again: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(again, value);
    }
}
