//! Errors of requests to the core, netd or a domain.

/// Reason why the core, netd or a domain has not carried out a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CoreError {
    /// The reason.
    pub(crate) why: String,
    /// Whether a later attempt may succeed.
    pub(crate) is_busy: bool,
}

impl CoreError {
    /// Returns the error with the name of its object in front.
    pub(crate) fn of(self, what: &str) -> Self {
        let why = format!("{what}: {}", self.why);
        Self { why, ..self }
    }
}

impl From<String> for CoreError {
    fn from(why: String) -> Self {
        let is_busy = false;
        Self { why, is_busy }
    }
}
