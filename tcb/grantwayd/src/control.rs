//! What lies in the file system for others.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether a folder can be changed by nobody but this user.
pub(crate) fn is_ours(folder: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::metadata(folder).is_ok_and(|meta| meta.uid() == own && meta.mode() & 0o022 == 0)
}

/// A file by its path, its device and its inode.
pub(crate) type Named = (String, Option<(u64, u64)>);

/// What lies at a path now.
pub(crate) fn named(path: &str) -> Named {
    let meta = fs::symlink_metadata(path).ok();
    (path.to_owned(), meta.map(|meta| (meta.dev(), meta.ino())))
}

/// Removes a socket that still is the one that was named, and the machine's note of what it changed
/// of the host (`client::write_note`), which netd has taken back.
pub(crate) fn remove(file: &Named) {
    if file.1.is_some() && named(&file.0) == *file {
        let _ = fs::remove_file(&file.0);
        let _ = fs::remove_file(Path::new(&file.0).with_extension("host"));
    }
}
