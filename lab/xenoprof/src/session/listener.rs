//! The initiator's listening socket, in a folder that other users cannot change.
//!
//! The initiator may be root, and the path may lead through other users' folders. So the path is
//! resolved only once: the folder is opened and checked, and the socket is created, tested and
//! removed relative to it. The socket has its final mode from the start, because a second call to
//! set it could change another file.

use super::SessionError;
use super::message::{SessionLink, new_socket};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fchmod, fstat, open, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind, listen};
use rustix::process::{geteuid, umask};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

/// A socket that other users may connect to; removed on drop.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    folder: OwnedFd,
    name: OsString,
}

impl Listener {
    /// Listens at `path`, and replaces the socket of a killed session.
    ///
    /// # Errors
    /// Returns [`SessionError::Busy`] if a process listens there already, [`SessionError::Place`]
    /// if other users could replace the socket, or another kind of file exists there.
    pub fn at(path: &Path) -> Result<Self, SessionError> {
        let name = path.file_name().unwrap_or_default();
        let folder = open_folder(path.parent().unwrap_or(Path::new("")))?;
        // Uses the descriptor, because the path may lead to another folder by now.
        let inside = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string());
        let inside = inside.join(name);
        let socket = new_socket()?;
        if is_taken(&folder, name, &inside)? {
            return Err(SessionError::Busy(path.to_owned()));
        }
        bind_for_all(&socket, &SocketAddrUnix::new(inside)?)?;
        let listener = Self {
            socket,
            folder,
            name: name.to_owned(),
        };
        listen(&listener.socket, 16)?;
        Ok(listener)
    }
}

/// Returns whether a process listens there. If none does, removes this user's socket.
fn is_taken(folder: &OwnedFd, name: &OsStr, inside: &Path) -> Result<bool, SessionError> {
    let there = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        there => there?,
    };
    if FileType::from_raw_mode(there.st_mode) != FileType::Socket || !is_ours(&there) {
        return Err(SessionError::Place("another file exists there"));
    }
    match SessionLink::connect(inside) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            unlinkat(folder, name, AtFlags::empty())?;
            Ok(false)
        }
        _ => Ok(true),
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another process of this user may have removed it already.
        let _gone_already = unlinkat(&self.folder, &self.name, AtFlags::empty());
    }
}

fn is_ours(file: &Stat) -> bool {
    file.st_uid == geteuid().as_raw()
}

/// Opens a folder in which only this user and root can replace files.
fn open_folder(path: &Path) -> Result<OwnedFd, SessionError> {
    let path = match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = open(path, flags, Mode::empty())?;
    let found = fstat(&folder)?;
    if found.st_uid != 0 && !is_ours(&found) {
        return Err(SessionError::Place("its folder belongs to another user"));
    }
    let mode = Mode::from_raw_mode(found.st_mode);
    // In a folder with the sticky bit, only its owner can remove a file.
    if mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX) {
        return Err(SessionError::Place("other users can change its folder"));
    }
    Ok(folder)
}

/// Binds a socket to which every user with access to the folder may connect. The user of a
/// participant determines the data that it receives.
fn bind_for_all(socket: &OwnedFd, address: &SocketAddrUnix) -> io::Result<()> {
    fchmod(socket, Mode::from_raw_mode(0o666))?;
    // The socket's mode depends on the umask, which all threads share, so the bind happens in a
    // thread with a separate umask.
    let bound = std::thread::scope(|scope| {
        let alone = std::thread::Builder::new().spawn_scoped(scope, || {
            // SAFETY: descriptors stay shared. The call unshares root, working directory and umask,
            // which only this thread uses until it exits.
            unsafe { unshare_unsafe(UnshareFlags::FS) }?;
            umask(Mode::empty());
            bind(socket, address)
        })?;
        Ok::<_, io::Error>(alone.join())
    });
    match bound? {
        Ok(done) => Ok(done?),
        Err(_) => Err(io::Error::other(
            "the thread that binds the socket panicked",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn one_session_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = Listener::at(&path).unwrap();
        assert_eq!(mode(&path), 0o666);
        assert!(matches!(Listener::at(&path), Err(SessionError::Busy(_))));
        assert!(path.exists(), "the second listener removes nothing");
        drop(first);
        assert!(!path.exists());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(
            Listener::at(&path).is_ok(),
            "an abandoned socket is replaced"
        );
    }

    #[test]
    fn no_other_file_gets_the_sockets_mode() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("s"), folder.path().join("victim"));
        fs::write(&victim, "secret").unwrap();
        fs::set_permissions(&victim, Permissions::from_mode(0o600)).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if fs::remove_file(&path).is_ok() {
                        // The next round may have bound its socket meanwhile.
                        let _there = symlink(&victim, &path);
                    }
                }
            });
            for _ in 0..2000 {
                // A link in its place is an error; the link's target must not change.
                drop(Listener::at(&path));
                let _none = fs::remove_file(&path);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(mode(&victim), 0o600);
    }

    #[test]
    fn folders_of_other_users_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        for (mode, good) in [
            (0o777, false),
            (0o770, false),
            (0o1777, true),
            (0o755, true),
        ] {
            fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            let done = Listener::at(&path);
            assert_eq!(done.is_ok(), good, "{mode:o}: {done:?}");
        }
    }

    #[test]
    fn foreign_files_are_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        fs::write(&path, "a letter").unwrap();
        assert!(matches!(Listener::at(&path), Err(SessionError::Place(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "a letter");
    }
}
