//! Contents of a page: values and escaped text.

use figures::report::Figure;

/// One of our values, with the paper's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell<'a> {
    /// Our configuration.
    pub(super) config: String,
    /// The paper's configuration that it reproduces.
    pub(super) theirs: &'a str,
    pub(super) metric: String,
    pub(super) ours: Option<&'a Figure>,
    /// The paper's value of the whole configuration.
    pub(super) paper: Option<f64>,
    /// The paper's points of its configuration on the item's axis: position and value.
    pub(super) points: Vec<(f64, f64)>,
    /// True if ratios use this value from the paper.
    pub(super) used_in_ratios: bool,
}

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueSource {
    Ours,
    Paper,
}

impl ValueSource {
    /// Returns the name in an attribute.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Paper => "paper",
        }
    }

    /// Returns the name for users.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Paper => "the paper's",
        }
    }
}

/// Escapes text for use in a page and in attributes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(letter),
        }
    }
    out
}

/// Returns escaped text, with text between backticks set as code.
pub(super) fn prose(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut parts = text.split('`');
    while let Some(plain) = parts.next() {
        out.push_str(&escape(plain));
        if let Some(code) = parts.next() {
            out.push_str("<code>");
            out.push_str(&escape(code));
            out.push_str("</code>");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        assert_eq!(escape("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
    }

    #[test]
    fn text_between_backticks_is_code() {
        let set = prose("`oi-linux` is <one>; `tick50`");
        let code = "<code>oi-linux</code> is &lt;one&gt;; <code>tick50</code>";
        assert_eq!(set, code);
    }
}
