//! The log: one line each, to a file or to standard error.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

/// Where lines go.
#[derive(Debug)]
pub(crate) enum Log {
    /// Appended to a file.
    File(File),
    /// Standard error.
    Stderr,
}

impl Log {
    pub(crate) fn open(path: Option<&str>) -> io::Result<Self> {
        path.map_or(Ok(Self::Stderr), |path| {
            let mut options = OpenOptions::new();
            Ok(Self::File(
                options.create(true).append(true).mode(0o600).open(path)?,
            ))
        })
    }

    /// Writes one line. A log that cannot be written is no reason to end.
    pub(crate) fn line(&mut self, who: &str, text: &str) {
        let line = format!("{who}: {text}\n");
        let _ = match self {
            Self::File(file) => file.write_all(line.as_bytes()),
            Self::Stderr => io::stderr().write_all(line.as_bytes()),
        };
    }
}
