//! Files that are written completely or not at all: one for each guest, in a folder for each kind.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Prefix of files that are not complete. No guest's name begins with it.
pub const INCOMPLETE_PREFIX: &str = ".";

/// Writes a file of this name. Creates its folder, for its owner only.
///
/// # Errors
///
/// Returns an error if the file cannot be written; an earlier one of this name is then unchanged.
pub fn put(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let new = folder.join(format!("{INCOMPLETE_PREFIX}{name}.{}", std::process::id()));
    let write = || {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(folder)?;
        fs::write(&new, bytes)?;
        fs::rename(&new, folder.join(name))
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}
