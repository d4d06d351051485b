//! Why something was not done.

/// Why something that was asked of the core, or of a domain, was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Why.
    pub(crate) why: String,
    /// Whether it may go later.
    pub(crate) is_busy: bool,
}

impl Refusal {
    /// The same, of something that is named.
    pub(crate) fn of(self, what: &str) -> Self {
        let why = format!("{what}: {}", self.why);
        Self { why, ..self }
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        let is_busy = false;
        Self { why, is_busy }
    }
}
