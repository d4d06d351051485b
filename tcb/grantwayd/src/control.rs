//! The sockets that others connect to, made for this user alone: for requests, and for metrics.
//! Clients are the manager's: a new one finds them waiting where the one before has left them.

use rustix::fs::Mode;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// The socket that a client connects to. Removed when dropped.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode, so that only our own socket is removed.
    identity: (u64, u64),
}

impl ControlSocket {
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

    /// The listening socket.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Where metrics are read. Who connects to the port may be any user of this system.
#[derive(Debug, Default)]
pub(crate) struct MetricsSockets {
    pub(crate) local: Option<ControlSocket>,
    pub(crate) port: Option<TcpListener>,
}

impl MetricsSockets {
    /// Makes those that are asked for; which could not be made is said.
    pub(crate) fn bind(path: Option<&Path>, port: Option<u16>) -> Result<Self, String> {
        let local = path.map(|path| {
            let failed = |e| format!("the socket for metrics {}: {e}", path.display());
            ControlSocket::bind(path).map_err(failed)
        });
        let port = port.map(|port| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
            let listener = listener.and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(listener)
            });
            listener.map_err(|e| format!("the port for metrics {port}: {e}"))
        });
        Ok(Self {
            local: local.transpose()?,
            port: port.transpose()?,
        })
    }

    /// Those that there are: the path's, then the port's.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let local = self.local.as_ref().map(ControlSocket::fd);
        local.into_iter().chain(self.port.as_ref().map(AsFd::as_fd))
    }
}

/// Whether a folder can be changed by nobody but this user.
pub(crate) fn is_ours(folder: &Path) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    let own = rustix::process::geteuid().as_raw();
    fs::metadata(folder).is_ok_and(|meta| meta.uid() == own && meta.mode() & OTHERS_WRITE == 0)
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.identity);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}
