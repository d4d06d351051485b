//! Removes control characters from text of other programs before a terminal, a table or a picture
//! shows it.
//!
//! A domain chooses the names of its counters, the lines of its console, its error messages and the
//! symbols of its program. Unchanged, these could move the cursor, rename the window, type in place
//! of the user, or imitate a message of this program.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Replacement for a removed character.
const REPLACEMENT: &str = "\u{fffd}";

/// Returns whether a terminal or a picture would interpret the character instead of drawing it.
/// These are control characters, line separators, and characters that change the direction of the
/// text around them.
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
        text.replace(is_bad, REPLACEMENT).into()
    } else {
        text.into()
    }
}

/// Cleans a text that is shown within a line.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    without(text, is_active)
}

/// Cleans a text of several lines.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    without(text, |c| is_active(c) && c != '\n' && c != '\t')
}

/// Cleans JSON text for a terminal: escapes every character that it would interpret, and keeps the
/// values.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    // In JSON these characters occur only within strings; newlines separate lines of JSON.
    let is_bad = |c: char| is_active(c) && c != '\n';
    if !text.contains(is_bad) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_bad(c) {
            // All of them are in the basic multilingual plane, so four digits suffice.
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
    fn no_terminal_control_code_is_left() {
        let r = REPLACEMENT;
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
            assert_eq!(line(&c.to_string()), REPLACEMENT);
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
