//! The sockets that others connect to, made for this user alone: for requests, and for metrics.
//! Clients are the manager's: a new one finds them waiting where the one before has left them.

use crate::args::Args;
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

/// The sockets that clients come to: the manager listens there.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) control: ControlSocket,
    /// Where metrics are read.
    pub(crate) metrics: Option<ControlSocket>,
    /// The same, at a port of the loopback address.
    pub(crate) metrics_port: Option<TcpListener>,
}

impl Sockets {
    /// Binds them.
    ///
    /// # Errors
    /// Which one cannot be bound, and why.
    pub(crate) fn bind(args: &Args) -> Result<Self, String> {
        let local = |what: &str, path: &Path| {
            ControlSocket::bind(path).map_err(|e| format!("{what} {}: {e}", path.display()))
        };
        let port = |port: u16| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
            let listener = listener.and_then(|l| l.set_nonblocking(true).map(|()| l));
            listener.map_err(|e| format!("the port for metrics {port}: {e}"))
        };
        let metrics = args.metrics.as_deref();
        let metrics = metrics.map(|path| local("the socket for metrics", path));
        Ok(Self {
            control: local("the control socket", &args.socket)?,
            metrics: metrics.transpose()?,
            metrics_port: args.metrics_port.map(port).transpose()?,
        })
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
