//! A front end of a back end in another process.

use super::front::FrontEnd;
use super::session::Session;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Timeout for a reply, seconds.
const TIMEOUT_S: i64 = 10;
/// The requests that have a reply: features, protocol features, ring base, queues, configuration.
const ANSWERED: [u32; 5] = [1, 15, 11, 17, 24];

/// A virtual machine whose back end listens on a socket, or connects to one.
#[derive(Debug)]
pub struct Remote {
    /// The virtual machine.
    pub front: FrontEnd,
    path: PathBuf,
}

impl Remote {
    /// Returns a virtual machine with `pairs` queue pairs, whose rings have `size` entries.
    #[must_use]
    pub fn new(path: &Path, pairs: usize, size: u16) -> Self {
        Self {
            front: FrontEnd::new(pairs, size).0,
            path: path.to_owned(),
        }
    }

    /// Connects or reconnects, and resumes the rings where they stopped. Returns false if the back
    /// end exits meanwhile.
    ///
    /// # Errors
    /// Returns an error if the socket has no listener.
    pub fn connect(&mut self, features: u64) -> io::Result<bool> {
        self.start_on(UnixStream::connect(&self.path)?, features)
    }

    /// Like [`Remote::connect`], but waits for a connection of the back end to `listener`.
    ///
    /// # Errors
    /// Returns an error if the socket does not listen.
    pub fn accept(&mut self, listener: &UnixListener, features: u64) -> io::Result<bool> {
        let (socket, _) = listener.accept()?;
        self.start_on(socket, features)
    }

    fn start_on(&mut self, socket: UnixStream, features: u64) -> io::Result<bool> {
        socket.set_nonblocking(true)?;
        self.front.socket = socket.into();
        let is_started = self.start(features).is_some();
        // The back end answers the last request only after it has served all others.
        Ok(is_started && self.number(17, 0).is_some())
    }
}

impl Session for Remote {
    fn front(&mut self) -> &mut FrontEnd {
        &mut self.front
    }

    fn request(&mut self, request: u32, payload: &[u8], fds: &[OwnedFd]) -> Option<Vec<u8>> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        if !self.front.send(request, 0, payload, &fds) || !ANSWERED.contains(&request) {
            return None;
        }
        let patience = Timespec {
            tv_sec: TIMEOUT_S,
            tv_nsec: 0,
        };
        let mut socket = [PollFd::new(&self.front.socket, PollFlags::IN)];
        poll(&mut socket, Some(&patience)).ok()?;
        self.front.reply()
    }
}
