//! Lines beside what the command writes.

use crate::output;
use abi::journal::Level;

/// On standard error, unless the user wants none.
pub(super) struct Note {
    pub(super) quiet: bool,
}

impl Note {
    /// Writes it, a line or several.
    pub(super) fn write(&self, what: &str) {
        if !self.quiet {
            output::report(Level::Warning, "grantway", what);
        }
    }
}
