//! The state file, which outlives this process: the manager's data for the manager of the next
//! core.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes the whole file, or leaves it unchanged on error. Removes the file if `bytes` is empty.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
    }
    let new = path.with_extension("state-new");
    let mut file = OpenOptions::new();
    file.write(true).create(true).truncate(true).mode(0o600);
    let written = file.open(&new).and_then(|mut file| file.write_all(bytes));
    let written = written.and_then(|()| fs::rename(&new, path));
    written.inspect_err(|_| drop(fs::remove_file(&new)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_file_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.state");
        let read = || fs::read(&path).ok();
        write(&path, b"").unwrap();
        assert_eq!(read(), None);
        for text in [&b"one"[..], b"another"] {
            write(&path, text).unwrap();
            assert_eq!(read().as_deref(), Some(text));
        }
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        // A failed write does not change the previous file.
        let new = path.with_extension("state-new");
        fs::create_dir(&new).unwrap();
        assert!(write(&path, b"third").is_err());
        assert_eq!(read().as_deref(), Some(&b"another"[..]));
        fs::remove_dir(&new).unwrap();
        write(&path, b"").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(write(&dir.path().join("no/folder"), b"x").is_err());
    }
}
