//! Network namespaces: runs code in a namespace, and creates unnamed namespaces.
//!
//! Each thread runs in one namespace, independently of other threads. Work in another namespace
//! runs on a temporary thread, so an error cannot leave the caller in the wrong namespace.

use crate::error::NetError;
use crate::netlink::Netlink;
use rustix::fs::{CWD, Mode, OFlags, fstatfs, openat};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The type of the file system of namespace files.
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// Returns the path of a namespace: names are under `/run/netns`; an absolute path (such as
/// `/proc/PID/ns/net`) is unchanged.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

/// The calling thread's namespace.
pub const OWN: &str = "/proc/thread-self/ns/net";

/// Unique identity of a namespace: device and inode of its file.
pub type Identity = [u64; 2];

/// Returns the identity of the namespace at `path`, or `None` if its file cannot be read.
#[must_use]
pub fn identity(path: impl AsRef<Path>) -> Option<Identity> {
    let file = fs::metadata(path).ok()?;
    Some([file.dev(), file.ino()])
}

/// Runs `work` on a separate thread in the namespace at `path`. Programs that `work` starts run in
/// that namespace, and sockets that it opens belong to that namespace.
///
/// # Errors
/// Returns an error if the namespace cannot be opened or entered. A panic of `work` propagates.
pub fn in_netns<T: Send>(
    path: impl AsRef<Path>,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NetError> {
    let path = path.as_ref();
    let failed = |error| NetError::Namespace {
        path: path.display().to_string(),
        error,
    };
    let file = open(path).map_err(failed)?;
    in_netns_fd(file.as_fd(), work).map_err(failed)
}

/// Function that opens the namespace at a path.
pub type Opener = dyn Fn(&Path) -> io::Result<OwnedFd> + Send + Sync;

static OPENER: OnceLock<Box<Opener>> = OnceLock::new();

/// Sets the function that opens all namespaces except the calling thread's, for a process that may
/// not open them itself. Later calls have no effect.
pub fn open_by(opener: Box<Opener>) {
    let _ = OPENER.set(opener);
}

/// Opens the namespace at `path` for this process.
pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    match OPENER.get() {
        Some(opener) if path != Path::new(OWN) => opener(path),
        _ => open_here(path),
    }
}

/// Opens the namespace at `path`, without the opener. Does not open other types of files, because
/// opening a pipe may block, and opening a device may have side effects.
///
/// # Errors
/// Returns an error if the file at `path` is not a namespace, or this process may not open it.
pub fn open_here(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = openat(CWD, path, flags, Mode::empty())?;
    if fstatfs(&found)?.f_type != NSFS_MAGIC {
        let what = "it is not a namespace file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?.into())
}

/// Runs `work` as [`in_netns`] does, in an open namespace.
///
/// # Errors
/// Returns an error if the namespace cannot be entered, or no thread can be created.
pub fn in_netns_fd<T: Send>(
    netns: BorrowedFd<'_>,
    work: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    on_a_thread(|| {
        move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?;
        Ok(work())
    })
}

/// Runs `work` on a separate thread, or returns an error if none can be created.
fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".to_owned());
        let thread = thread.spawn_scoped(scope, work)?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// An unnamed network namespace. It exists as long as this value, or another reference to it (an
/// interface's descriptor, a process).
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
}

impl Namespace {
    /// Creates a namespace and brings its loopback up. The caller's namespace does not change.
    ///
    /// # Errors
    /// Returns an error without CAP_SYS_ADMIN (see
    /// [`crate::tool_setup::become_root_in_user_namespace`]).
    pub fn new() -> io::Result<Self> {
        on_a_thread(|| {
            unshare_net()?;
            loopback_up()?;
            Ok(Self {
                fd: open(Path::new(OWN))?,
            })
        })
    }

    /// Returns a path through which other processes of the same user can open the namespace while
    /// this value exists.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.fd.as_raw_fd()
        ))
    }

    /// Runs `work` in the namespace: see [`in_netns`].
    ///
    /// # Errors
    /// Returns an error if the namespace cannot be entered.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        in_netns_fd(self.fd.as_fd(), work)
    }
}

/// A namespace that another process created.
impl From<OwnedFd> for Namespace {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Moves the calling thread into a new network namespace. In a single-threaded process, this moves
/// the process.
///
/// # Errors
/// Returns an error without CAP_SYS_ADMIN.
pub fn unshare_net() -> io::Result<()> {
    unshare(UnshareFlags::NEWNET)
}

/// Brings the loopback of the calling thread's namespace up.
///
/// # Errors
/// Returns an error without CAP_NET_ADMIN in the namespace.
pub fn loopback_up() -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    let index = netlink.index("lo")?;
    netlink.set_up(index)
}

pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: `unshare` is unsafe because it can unshare the descriptor table (CLONE_FILES). This
    // crate unshares only namespaces, so descriptors remain valid in all threads.
    unsafe { rustix::thread::unshare_unsafe(flags) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::process::Command;

    const CHILD: &str = "GRANTWAY_TEST_NO_THREADS";

    /// Runs in the process that [`a_missing_thread_is_an_error_not_a_panic`] starts and limits.
    #[test]
    fn child_without_threads() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let pages = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        // A thread's stack exceeds the remaining address space.
        let limit = Rlimit {
            current: Some((pages << 12) + (1 << 20)),
            ..getrlimit(Resource::As)
        };
        setrlimit(Resource::As, limit).unwrap();
        let error = in_netns("/proc/self/ns/net", || ()).unwrap_err();
        assert!(matches!(error, NetError::Namespace { .. }));
        Namespace::new().unwrap_err();
    }

    #[test]
    fn other_files_are_rejected_without_blocking() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let text = dir.path().join("text");
        fs::write(&text, "no namespace").unwrap();
        for path in [&pipe, &text, &dir.path().join("nothing")] {
            let error = in_netns(path, || ()).unwrap_err().to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
    }

    #[test]
    fn a_missing_thread_is_an_error_not_a_panic() {
        let limited = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "netns::tests::child_without_threads"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(limited.status.success(), "{limited:?}");
    }
}
