//! Files whose paths other programs choose.

use super::process::CodeMapping;
use rustix::fs::{Mode, OFlags, ResolveFlags, fstatfs, openat2};
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// File systems of the kernel, whose regular files may wait for events or have effects.
const OF_KERNEL: [libc::c_long; 4] = [
    libc::PROC_SUPER_MAGIC,
    libc::SYSFS_MAGIC,
    libc::TRACEFS_MAGIC,
    libc::DEBUGFS_MAGIC,
];
/// Suffix that the kernel appends to the path of a deleted file.
const DELETED: &str = " (deleted)";

/// Opens a regular file. Rejects files of other kinds, because opening a FIFO blocks and opening a
/// device may start it, and files of the kernel, such as `/proc/kmsg`.
///
/// # Errors
/// Returns an error if the path does not name a regular file, or the file is not readable.
pub(crate) fn open(path: impl AsRef<Path>, flags: OFlags) -> Result<File> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    regular(rustix::fs::open(path.as_ref(), flags, Mode::empty())?.into())
}

/// Opens a regular file of a process's mount namespace. Symbolic links do not lead out of the
/// process's root.
///
/// # Errors
/// Returns the errors of [`open`].
pub(crate) fn open_of(pid: u32, path: &str, flags: OFlags) -> Result<File> {
    let root_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(format!("/proc/{pid}/root"), root_flags, Mode::empty()) {
        Ok(root) => open_below(root, path, flags),
        // The process has exited, or belongs to another user.
        Err(_) => open(path, flags),
    }
}

/// Opens the file that a process has mapped. Tries the kernel's links to the mapping and to the
/// program before the path, because a process that has changed its root after its start, such as a
/// domain, has no path to its own program.
///
/// # Errors
/// Returns the errors of [`open`].
pub(crate) fn open_mapped(pid: u32, mapping: &CodeMapping) -> Result<File> {
    let CodeMapping {
        start, len, path, ..
    } = mapping;
    let end = start.saturating_add(*len);
    // This link needs the privilege to trace every process.
    let by_range = open_link(&format!("/proc/{pid}/map_files/{start:x}-{end:x}"), path);
    let program = || open_link(&format!("/proc/{pid}/exe"), path);
    let by_path = || open_of(pid, path, OFlags::empty());
    by_range.or_else(|_| program()).or_else(|_| by_path())
}

/// Opens the file behind a link in `/proc`, if it is the file at this path: the process may run
/// another program or have other mappings by now.
fn open_link(link: &str, path: &str) -> Result<File> {
    let file = open(link, OFlags::empty())?;
    let shown = std::fs::read_link(path_of(&file))?;
    match shown.to_str().is_some_and(|shown| are_same(shown, path)) {
        true => Ok(file),
        false => Err(Error::other(format!("{link} is not {path}"))),
    }
}

/// Returns whether two paths can be those of one file. They may begin at different roots, and it
/// may have been deleted after one was read.
fn are_same(shown: &str, path: &str) -> bool {
    let [shown, path] = [shown, path].map(|path| path.strip_suffix(DELETED).unwrap_or(path));
    let are_absolute = [shown, path].iter().all(|path| path.starts_with('/'));
    are_absolute && (shown.ends_with(path) || path.ends_with(shown))
}

fn open_below(root: impl AsFd, path: &str, flags: OFlags) -> Result<File> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    regular(openat2(root, path, flags, Mode::empty(), resolve)?.into())
}

/// Opens the file of an `O_PATH` descriptor for reading.
fn regular(place: File) -> Result<File> {
    if !place.metadata()?.is_file() || OF_KERNEL.contains(&fstatfs(&place)?.f_type) {
        return Err(Error::other("not a regular file"));
    }
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    options.open(path_of(&place))
}

/// Returns a path of an open file, valid as long as it is open.
pub(crate) fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_do_not_lead_out_of_a_root() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, inside) = (dir.path().join("secret"), dir.path().join("root"));
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(&secret, "outside").unwrap();
        std::fs::write(inside.join("own"), "inside").unwrap();
        symlink(&secret, inside.join("absolute")).unwrap();
        symlink("../secret", inside.join("relative")).unwrap();
        symlink("/proc/self/root", inside.join("magic")).unwrap();
        symlink("/own", inside.join("link")).unwrap();
        let root = File::open(&inside).unwrap();
        let read = |path: &str, flags| {
            let file = open_below(&root, path, flags)?;
            std::io::read_to_string(file)
        };
        for path in ["/absolute", "/relative", "/../secret", "/magic"] {
            assert!(read(path, OFlags::empty()).is_err(), "{path}");
        }
        for path in ["/own", "/link", "/../own"] {
            assert_eq!(read(path, OFlags::empty()).unwrap(), "inside", "{path}");
        }
        assert!(read("/link", OFlags::NOFOLLOW).is_err());
    }

    #[test]
    fn files_of_a_process_are_regular() {
        let pid = std::process::id();
        let program = std::env::current_exe().unwrap();
        assert!(open_of(pid, program.to_str().unwrap(), OFlags::empty()).is_ok());
        for path in [
            "/dev/zero",
            "/proc",
            "/nonexistent",
            "/proc/kmsg",
            "/proc/self/mem",
        ] {
            assert!(open_of(pid, path, OFlags::empty()).is_err(), "{path}");
            assert!(open(path, OFlags::empty()).is_err(), "{path}");
        }
    }

    /// Another file may be mapped there by the time the record is read.
    #[test]
    fn links_of_the_kernel_are_compared() {
        let program = std::env::current_exe().unwrap();
        let path = program.to_str().unwrap();
        assert!(open_link("/proc/self/exe", path).is_ok());
        assert!(open_link("/proc/self/exe", "/bin/sh").is_err());
        for (shown, path) in [
            ("/bin/x", "/bin/x"),
            ("/srv/root/bin/x", "/bin/x"),
            ("/bin/x", "/srv/root/bin/x"),
            ("/bin/x (deleted)", "/bin/x"),
            ("/bin/x", "/bin/x (deleted)"),
        ] {
            assert!(are_same(shown, path), "{shown} {path}");
        }
        for (shown, path) in [
            ("/bin/y", "/bin/x"),
            ("/bin/xx", "/bin/x"),
            ("/bin/x", "x"),
            ("/bin/x", ""),
        ] {
            assert!(!are_same(shown, path), "{shown} {path}");
        }
    }
}
