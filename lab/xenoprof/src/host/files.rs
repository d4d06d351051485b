//! Files whose paths other programs choose.

use super::process::Mapping;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Opens a regular file. Any other file is not opened at all, because opening a FIFO blocks, and
/// opening a device may start it.
///
/// # Errors
/// There is no regular file at the path, or it is not readable.
pub(crate) fn open(path: impl AsRef<Path>, flags: OFlags) -> Result<File> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    regular(rustix::fs::open(path.as_ref(), flags, Mode::empty())?.into())
}

/// Opens a regular file of a process's mount namespace. Symbolic links do not lead out of the
/// process's root.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_of(pid: u32, path: &str, flags: OFlags) -> Result<File> {
    let root_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(format!("/proc/{pid}/root"), root_flags, Mode::empty()) {
        Ok(root) => open_below(root, path, flags),
        // The process has ended, or belongs to another user.
        Err(_) => open(path, flags),
    }
}

/// Opens the file that a process has mapped. A process that has changed its root after its start,
/// such as a domain, has no path to its own program; the kernel has links to both.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_mapped(pid: u32, mapping: &Mapping) -> Result<File> {
    let Mapping {
        start, len, path, ..
    } = mapping;
    let end = start.saturating_add(*len);
    // This link needs the privilege to trace every process.
    let by_range = open(
        format!("/proc/{pid}/map_files/{start:x}-{end:x}"),
        OFlags::empty(),
    );
    let program = || {
        let link = format!("/proc/{pid}/exe");
        let shown = std::fs::read_link(&link)?;
        // The two paths may begin at different roots.
        let shown = shown.to_str().filter(|shown| shown.starts_with('/'));
        let is_it = shown.is_some_and(|shown| shown.ends_with(path) || path.ends_with(shown));
        match is_it {
            true => open(link, OFlags::empty()),
            false => Err(Error::other("not the process's program")),
        }
    };
    let by_path = || open_of(pid, path, OFlags::empty());
    by_range.or_else(|_| program()).or_else(|_| by_path())
}

fn open_below(root: impl AsFd, path: &str, flags: OFlags) -> Result<File> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    regular(openat2(root, path, flags, Mode::empty(), resolve)?.into())
}

/// Opens the file of an `O_PATH` descriptor for reading.
fn regular(place: File) -> Result<File> {
    if !place.metadata()?.is_file() {
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
        for path in ["/dev/zero", "/proc", "/nonexistent"] {
            assert!(open_of(pid, path, OFlags::empty()).is_err(), "{path}");
            assert!(open(path, OFlags::empty()).is_err(), "{path}");
        }
    }
}
