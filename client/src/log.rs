//! The monitor's log, as far as who starts the monitor has to do with it.

use crate::Error;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens an empty log, which the monitor itself writes to, too.
pub(crate) fn open_log(log: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(log)
        .and_then(|file| file.set_len(0).map(|()| file))
        .map_err(|e| Error::io(format!("open the log {}", log.display()), e))
}

/// The last line of the log at `path`: see [`last_words`].
pub(crate) fn last_words_at(path: &Path) -> String {
    File::open(path).map(last_words).unwrap_or_default()
}

/// The last line of a log, after ": ", as it ends a sentence; empty if there is none, or none that
/// can be read.
#[must_use]
pub fn last_words(mut log: impl Read) -> String {
    let mut text = Vec::new();
    // What was read before an error is something.
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
    fn the_last_line_with_words_is_the_last_one() {
        assert_eq!(last_words(&b"first\n  the last \n\n \n"[..]), ": the last");
        assert_eq!(last_words(&b"\xff"[..]), ": \u{fffd}");
        for none in [&b""[..], b"\n \n"] {
            assert_eq!(last_words(none), "");
        }
        assert_eq!(last_words_at(Path::new("/no/such/log")), "");
    }
}
