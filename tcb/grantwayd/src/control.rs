//! The control socket: who may connect to it.

use rustix::fs::Mode;
use rustix::net::sockopt::socket_peercred;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The socket that a client connects to. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode, so that only our own socket is removed.
    identity: (u64, u64),
}

impl Socket {
    /// Makes the socket, for this user alone.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        // The process has one thread yet: no other thread makes files under this mask.
        let before = rustix::process::umask(Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        rustix::process::umask(before);
        let listener = listener?;
        listener.set_nonblocking(true)?;
        let meta = fs::symlink_metadata(path)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            identity: (meta.dev(), meta.ino()),
        })
    }

    /// Readable while a client waits.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The next client that may speak to us, if one waits: the same user, or root.
    pub(crate) fn accept(&self) -> Option<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().ok()?;
            let peer = socket_peercred(&stream).map(|peer| peer.uid);
            let own = rustix::process::geteuid();
            if peer.is_ok_and(|uid| uid == own || uid.is_root())
                && stream.set_nonblocking(true).is_ok()
            {
                return Some(stream);
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.identity);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}
