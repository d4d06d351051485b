//! What lies in the file system for others.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether a folder can be changed by nobody but this user.
pub(crate) fn is_ours(folder: &Path) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    let own = rustix::process::geteuid().as_raw();
    fs::metadata(folder).is_ok_and(|meta| meta.uid() == own && meta.mode() & OTHERS_WRITE == 0)
}

/// A file by its path, its device and its inode.
pub(crate) type Named = (String, Option<(u64, u64)>);

/// What lies at a path now.
pub(crate) fn named(path: &str) -> Named {
    let meta = fs::symlink_metadata(path).ok();
    (path.to_owned(), meta.map(|meta| (meta.dev(), meta.ino())))
}

/// Removes it, if it is what lies there still.
pub(crate) fn remove(file: &Named) {
    if file.1.is_some() && named(&file.0) == *file {
        let _ = fs::remove_file(&file.0);
    }
}
