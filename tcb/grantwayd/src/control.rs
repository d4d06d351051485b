//! Files of the core that other programs access.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns whether only this user can change a folder.
pub(crate) fn is_ours(folder: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::metadata(folder).is_ok_and(|meta| meta.uid() == own && meta.mode() & 0o022 == 0)
}

/// A path, with the device and inode of its file.
pub(crate) type SocketFile = (String, Option<(u64, u64)>);

/// Returns a path with the identity of the file that it names now.
pub(crate) fn identify(path: &str) -> SocketFile {
    let meta = fs::symlink_metadata(path).ok();
    (path.to_owned(), meta.map(|meta| (meta.dev(), meta.ino())))
}

/// Removes a socket if the path still names the same file. Also removes the machine's note of
/// changes to the host (`client::write_note`), which netd has undone.
pub(crate) fn remove(file: &SocketFile) {
    if file.1.is_some() && identify(&file.0) == *file {
        let _ = fs::remove_file(&file.0);
        let _ = fs::remove_file(Path::new(&file.0).with_extension("host"));
    }
}
