//! Lines beside what the command writes.

use figures::clean;
use std::io::Write;

/// On standard error, unless the user wants none.
pub(super) struct Note {
    pub(super) quiet: bool,
}

impl Note {
    /// Writes a line.
    pub(super) fn write(&self, what: &str) {
        if !self.quiet {
            // Nobody is left to tell if this fails.
            let _ = writeln!(std::io::stderr(), "grantway: {}", clean::line(what));
        }
    }
}
