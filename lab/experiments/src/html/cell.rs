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
    /// The paper's value of this very configuration.
    pub(super) paper: Option<f64>,
    /// What the paper has of its configuration on the item's axis: where, and the value.
    pub(super) points: Vec<(f64, f64)>,
    /// Whether the paper's value is the one that ratios are made of.
    pub(super) judged: bool,
}

/// Whose value something shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Ours,
    Paper,
}

impl Who {
    /// In an attribute.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Paper => "paper",
        }
    }

    /// For people.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Paper => "the paper's",
        }
    }
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
