//! The monitor's log, for the process that starts the monitor.

use crate::Error;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens an empty log, to which the monitor itself also writes.
pub(crate) fn open_log(log: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(log)
        .and_then(|file| file.set_len(0).map(|()| file))
        .map_err(|e| Error::io(format!("open the log {}", log.display()), e))
}

/// Returns the last line of the log at `path`: see [`last_log_line`].
pub(crate) fn last_log_line_at(path: &Path) -> String {
    File::open(path).map(last_log_line).unwrap_or_default()
}

/// Returns the last line of a log, preceded by ": ", to end a sentence; empty if the log has no
/// line or cannot be read.
#[must_use]
pub fn last_log_line(mut log: impl Read) -> String {
    let mut text = Vec::new();
    // Ignores a read error, because the text before it is still useful.
    let _ = log.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    match text.lines().rfind(|line| !line.trim().is_empty()) {
        Some(line) => format!(": {}", line.trim()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_lines_are_not_the_last_line() {
        assert_eq!(
            last_log_line(&b"first\n  the last \n\n \n"[..]),
            ": the last"
        );
        assert_eq!(last_log_line(&b"\xff"[..]), ": \u{fffd}");
        for none in [&b""[..], b"\n \n"] {
            assert_eq!(last_log_line(none), "");
        }
        assert_eq!(last_log_line_at(Path::new("/no/such/log")), "");
    }
}
