//! Messages of `run`, in addition to the command's output.

use crate::output;
use abi::journal::Level;

/// Writes messages to standard error, unless the user has disabled them.
pub(super) struct Messages {
    pub(super) quiet: bool,
}

impl Messages {
    /// Writes one or more lines.
    pub(super) fn write(&self, what: &str) {
        if !self.quiet {
            output::report(Level::Warning, "grantway", what);
        }
    }
}
