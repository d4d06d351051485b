//! What a page shows: values, and text that cannot break out of it.

use figures::report::Figure;

/// One value of ours, and the paper's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell<'a> {
    /// What was measured.
    pub(super) config: String,
    /// The paper's configuration that it stands for.
    pub(super) theirs: &'a str,
    pub(super) metric: String,
    pub(super) ours: Option<&'a Figure>,
    pub(super) paper: Option<f64>,
}

/// Text as it may stand in a page and in an attribute.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_of_the_page() {
        assert_eq!(escape("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
    }
}
