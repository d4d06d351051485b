//! The system's journal, as far as a program's standard error is one: how it knows, and how a line
//! says there how much it matters (sd-daemon(3), systemd.exec(5)).

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// What was asked for was not done.
    Error,
    /// Something went wrong, and was seen to.
    Warning,
    /// Something happened.
    Info,
}

impl Level {
    /// It as a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warn",
            Self::Info => "info",
        }
    }

    /// What a line begins with in the journal.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Error => "<3>",
            Self::Warning => "<4>",
            Self::Info => "<6>",
        }
    }
}

/// Whether the value of [`JOURNAL_VAR`](crate::core::JOURNAL_VAR) names the file of this device and
/// inode: one who was started with another standard error has the variable all the same.
#[must_use]
pub fn names(value: &str, device: u64, inode: u64) -> bool {
    let (of_device, of_inode) = value.split_once(':').unwrap_or_default();
    of_device.parse() == Ok(device) && of_inode.parse() == Ok(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_one_file() {
        assert!(names("8:123", 8, 123));
        for value in ["8:124", "9:123", "8", "", ":", "8:123:4", "8:-1"] {
            assert!(!names(value, 8, 123), "{value}");
        }
    }
}
