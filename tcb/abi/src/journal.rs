//! Detection of a standard error that is the system's journal (systemd.exec(5)), and the severity
//! of a line (sd-daemon(3)).

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A request failed.
    Error,
    /// A failure that was handled.
    Warning,
    /// A normal event.
    Info,
}

impl Level {
    /// Returns the severity as a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warn",
            Self::Info => "info",
        }
    }

    /// Returns the prefix of a line in the journal.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Error => "<3>",
            Self::Warning => "<4>",
            Self::Info => "<6>",
        }
    }
}

/// Returns whether the value of [`JOURNAL_VAR`](crate::core::JOURNAL_VAR) identifies the file with
/// this device and inode. The presence of the variable does not suffice, because a program that is
/// started with another standard error inherits it.
#[must_use]
pub fn identifies_file(value: &str, device: u64, inode: u64) -> bool {
    let (of_device, of_inode) = value.split_once(':').unwrap_or_default();
    of_device.parse() == Ok(device) && of_inode.parse() == Ok(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_one_file() {
        assert!(identifies_file("8:123", 8, 123));
        for value in ["8:124", "9:123", "8", "", ":", "8:123:4", "8:-1"] {
            assert!(!identifies_file(value, 8, 123), "{value}");
        }
    }
}
