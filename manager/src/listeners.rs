//! The clients' sockets and the log's files. The first manager opens them before it accepts clients
//! and drops its rights. The core holds them for later managers, so the next manager serves the
//! clients that wait at a socket.

use crate::args::Args;
use crate::metrics;
use rustix::fs::Mode;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

#[derive(Debug)]
pub(crate) struct Listeners {
    /// The control socket.
    pub(crate) control: UnixListener,
    /// The log and its predecessor; `None`: standard error.
    pub(crate) log: Option<[File; 2]>,
    /// The sockets for metrics.
    pub(crate) metrics: metrics::Sockets,
}

impl Listeners {
    /// Opens the arguments' files and sockets, with access for this user alone. The process must be
    /// single-threaded, because the umask applies to the whole process.
    ///
    /// # Errors
    /// Returns an error if a file or socket cannot be opened. All created sockets are then removed.
    pub(crate) fn new(args: &Args) -> Result<Self, String> {
        let log = args.log.as_deref();
        let log = log.map(|path| open_log(path).map_err(|e| format!("the log {path}: {e}")));
        let log = log.transpose()?;
        let port = |port: u16| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
            let listener = listener.and_then(|l| l.set_nonblocking(true).map(|()| l));
            listener.map_err(|e| format!("the metrics port {port}: {e}"))
        };
        let port = args.metrics_port.map(port).transpose()?;
        let control = bind("the control socket", &args.socket)?;
        let local = args.metrics.as_deref();
        let local = local.map(|path| bind("the socket for metrics", path));
        let local = local.transpose().inspect_err(|_| {
            // The core removes only sockets that it holds.
            let _ = std::fs::remove_file(&args.socket);
        })?;
        let metrics = metrics::Sockets {
            local: local.map(OwnedFd::from),
            port: port.map(OwnedFd::from),
        };
        Ok(Self {
            control,
            log,
            metrics,
        })
    }

    /// Takes over the descriptors that an earlier manager opened from the same arguments. Returns
    /// `None` if one is missing.
    pub(crate) fn from_fds(args: &Args, fds: Vec<OwnedFd>) -> Option<Self> {
        let mut fds = fds.into_iter();
        let mut next = |is_configured: bool| is_configured.then(|| fds.next());
        Some(Self {
            control: next(true)??.into(),
            log: match (next(args.log.is_some()), next(args.log.is_some())) {
                (Some(now), Some(before)) => Some([now?.into(), before?.into()]),
                _ => None,
            },
            metrics: metrics::Sockets {
                local: next(args.metrics.is_some()).flatten(),
                port: next(args.metrics_port.is_some()).flatten(),
            },
        })
    }

    /// Returns all descriptors, in the order of [`Listeners::from_fds`].
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let log = self.log.iter().flatten().map(AsFd::as_fd);
        let metrics = self.metrics.local.iter().chain(&self.metrics.port);
        let metrics = metrics.map(AsFd::as_fd);
        let control = [self.control.as_fd()].into_iter();
        control.chain(log).chain(metrics).collect()
    }
}

/// Removes the sockets that [`Listeners::new`] created.
pub(crate) fn remove(args: &Args) {
    for path in [Some(&args.socket), args.metrics.as_ref()]
        .into_iter()
        .flatten()
    {
        let _ = std::fs::remove_file(path);
    }
}

fn open_log(path: &str) -> io::Result<[File; 2]> {
    let mut options = OpenOptions::new();
    options.create(true).read(true).append(true).mode(0o600);
    let before = format!("{path}.1");
    let [now, before] = [options.open(path)?, options.open(before)?];
    before.set_len(0)?;
    Ok([now, before])
}

/// Creates a socket to which only this user has access.
fn bind(what: &str, path: &Path) -> Result<UnixListener, String> {
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = listener.and_then(|l| l.set_nonblocking(true).map(|()| l));
    listener.map_err(|e| format!("{what} {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn args(folder: &Path) -> Args {
        Args {
            socket: folder.join("socket"),
            log: Some(folder.join("log").display().to_string()),
            metrics: Some(folder.join("metrics")),
            metrics_port: None,
        }
    }

    #[test]
    fn sockets_and_log_belong_to_this_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let args = args(folder.path());
        let opened = Listeners::new(&args).unwrap();
        for name in ["socket", "metrics", "log", "log.1"] {
            let mode = fs::metadata(folder.path().join(name))
                .unwrap()
                .permissions();
            assert_eq!(mode.mode() & 0o777, 0o600, "{name}");
        }
        let copies = opened.fds().into_iter().map(|fd| fd.try_clone_to_owned());
        let held = Listeners::from_fds(&args, copies.map(Result::unwrap).collect()).unwrap();
        let path = |socket: &UnixListener| {
            let address = socket.local_addr().unwrap();
            address.as_pathname().map(Path::to_owned)
        };
        assert_eq!(path(&held.control), Some(args.socket.clone()));
        assert_eq!(path(&held.metrics.local.unwrap().into()), args.metrics);
        assert!(held.log.is_some() && held.metrics.port.is_none());
        assert!(Listeners::from_fds(&args, Vec::new()).is_none());
    }

    #[test]
    fn a_failed_open_is_named_and_leaves_no_socket() {
        let folder = tempfile::tempdir().unwrap();
        let mut args = args(folder.path());
        args.metrics = Some(folder.path().join("none/metrics"));
        let error = Listeners::new(&args).unwrap_err();
        assert!(error.starts_with("the socket for metrics "), "{error}");
        assert!(!args.socket.exists());
        let _other = UnixListener::bind(&args.socket).unwrap();
        let error = Listeners::new(&args).unwrap_err();
        assert!(error.starts_with("the control socket "), "{error}");
        assert!(args.socket.exists(), "another process has created it");
        args.log = Some(folder.path().join("none/log").display().to_string());
        let error = Listeners::new(&args).unwrap_err();
        assert!(error.starts_with("the log "), "{error}");
    }
}
