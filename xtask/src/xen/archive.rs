//! An initial file system: a cpio archive in the kernel's format `newc`. This module writes the
//! format itself, so that files belong to root regardless of the user.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Mode of a folder.
const FOLDER: u32 = 0o040_755;
/// Mode of an executable file.
const PROGRAM: u32 = 0o100_755;
/// Mode of a symbolic link.
const LINK: u32 = 0o120_777;

/// An archive under construction.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    inode: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    /// Adds a folder and its parents.
    pub(crate) fn folder(&mut self, path: &str) {
        if path.is_empty() || !self.folders.insert(path.to_owned()) {
            return;
        }
        self.add_parents(path);
        self.entry(path, FOLDER, &[]);
    }

    /// Adds an executable file.
    pub(crate) fn file(&mut self, path: &str, contents: &[u8]) {
        self.add_parents(path);
        self.entry(path, PROGRAM, contents);
    }

    /// Adds a symbolic link to `target`.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.add_parents(path);
        self.entry(path, LINK, target.as_bytes());
    }

    /// Adds a copy of a file of this system.
    pub(crate) fn copy(&mut self, path: &str, from: &Path) -> Result<()> {
        let contents = fs::read(from).with_context(|| format!("{}", from.display()))?;
        ensure!(
            u32::try_from(contents.len()).is_ok(),
            "{} is too large",
            from.display()
        );
        self.file(path, &contents);
        Ok(())
    }

    /// Ends the archive and returns it.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn add_parents(&mut self, path: &str) {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, contents: &[u8]) {
        self.inode += 1;
        // The fields are inode, mode, uid, gid, links, time, size, four device numbers, length of
        // the name, and a checksum that this format does not use.
        let fields = [
            self.inode,
            mode,
            0,
            0,
            1,
            0,
            contents.len() as u32,
            0,
            0,
            0,
            0,
            path.len() as u32 + 1,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_precede_their_contents_once() {
        let mut archive = Archive::default();
        archive.file("a/b/one", b"1");
        archive.link("a/b/two", "one");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let at = |name: &str| text.find(&format!("{name}\0")).unwrap();
        assert!(at("a") < at("a/b") && at("a/b") < at("a/b/one") && at("a/b/one") < at("a/b/two"));
        assert_eq!(text.matches("070701").count(), 5);
    }

    #[test]
    fn headers_and_contents_are_aligned() {
        let mut archive = Archive::default();
        archive.file("x", b"12345");
        let bytes = archive.finish();
        // 110 bytes of header, the name with its zero, then the contents at a multiple of 4.
        assert_eq!(bytes.get(112..117), Some(&b"12345"[..]));
        assert_eq!(bytes.get(120..126), Some(&b"070701"[..]));
        assert_eq!(bytes.get(54..62), Some(&b"00000005"[..]), "its size");
    }
}
