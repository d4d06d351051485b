//! Connections of who reads metrics: at most [`CONNECTIONS_MAX`], each with one request of bounded
//! length and a deadline. Nobody is waited for.

use super::gather::Trouble;
use super::request::{self, Asked, REQUEST_MAX};
use super::text::Format;
use crate::access::{self, Peer};
use abi::machine::Access;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, accept_with, recv, send, shutdown};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections at a time; further ones wait.
const CONNECTIONS_MAX: usize = 16;
/// How long a request may take to come, and an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at a listener that cannot be accepted from.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    /// Who may ask, beside root; none: everybody who can connect.
    user: Option<u32>,
}

impl Listener {
    /// One of a path.
    pub(crate) fn local(socket: OwnedFd, user: u32) -> Self {
        let user = Some(user);
        Self { socket, user }
    }

    /// One of a port of the loopback address.
    pub(crate) fn of_anybody(socket: OwnedFd) -> Self {
        let user = None;
        Self { socket, user }
    }

    /// The next connection, if one waits and may ask.
    fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match accept_with(&self.socket, flags) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
            Err(error) => return Err(error),
        };
        let may = self.user.is_none_or(|user| {
            // Groups have rights at the control socket alone.
            let right = |peer| access::of_client(&Access::default(), user, peer);
            Peer::of(&socket).and_then(right).is_some()
        });
        Ok(may.then_some(socket))
    }
}

/// One connection.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    input: Vec<u8>,
    /// The answer, once there is one, and how much of it was sent.
    output: Vec<u8>,
    sent: usize,
    until: Instant,
    is_over: bool,
}

impl Connection {
    fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            until: Instant::now() + PATIENCE,
            is_over: false,
        }
    }

    fn waits_for(&self) -> PollFlags {
        match self.output.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::OUT,
        }
    }

    /// Takes what has come; what is asked for, if that is known now.
    fn receive(&mut self) -> Asked {
        let mut chunk = [0; REQUEST_MAX];
        let room = REQUEST_MAX.saturating_sub(self.input.len());
        let chunk = chunk.get_mut(..room).unwrap_or_default();
        match recv(&self.socket, &mut *chunk, RecvFlags::empty()) {
            Ok((0, _)) => self.is_over = true,
            Ok((n, _)) => {
                self.input
                    .extend_from_slice(chunk.get(..n).unwrap_or_default());
                return request::read(&self.input);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.is_over = true,
        }
        Asked::Unfinished
    }

    /// Begins to send the answer.
    fn answer(&mut self, answer: Vec<u8>) {
        self.input = Vec::new();
        self.output = answer;
        self.until = Instant::now() + PATIENCE;
        self.send();
    }

    /// Sends as much as it takes.
    fn send(&mut self) {
        let rest = self.output.get(self.sent..).unwrap_or_default();
        match send(&self.socket, rest, SendFlags::NOSIGNAL) {
            Ok(n) => self.sent += n,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.is_over = true,
        }
        if self.sent >= self.output.len() {
            let _ = shutdown(&self.socket, Shutdown::Write);
            self.is_over = true;
        }
    }
}

/// What became ready, by its place.
#[derive(Clone, Copy, Debug)]
enum ReadySocket {
    Listener(usize),
    Connection(usize),
}

/// Serves for good, or until the main loop is gone.
pub(crate) fn serve(
    listeners: &[Listener],
    mut text: impl FnMut(Format) -> Result<Arc<str>, Trouble>,
) {
    let mut connections: Vec<Connection> = Vec::new();
    let mut not_before = Instant::now();
    loop {
        let now = Instant::now();
        connections.retain(|connection| !connection.is_over && now < connection.until);
        for ready in wait(listeners, &connections, not_before) {
            match ready {
                ReadySocket::Connection(place) => {
                    if let Some(connection) = connections.get_mut(place)
                        && see_to(connection, &mut text) == Err(Trouble::Gone)
                    {
                        return;
                    }
                }
                ReadySocket::Listener(place) => match listeners.get(place).map(Listener::accept) {
                    Some(Ok(socket)) => connections.extend(socket.map(Connection::new)),
                    // Of descriptors, say: it would be ready again at once.
                    Some(Err(_)) => not_before = Instant::now() + PAUSE,
                    None => {}
                },
            }
        }
    }
}

/// What is ready, at the next deadline at the latest; connections come first. Listeners are looked
/// at from `not_before` on, if there is room for what each of them may bring.
fn wait(
    listeners: &[Listener],
    connections: &[Connection],
    not_before: Instant,
) -> Vec<ReadySocket> {
    let now = Instant::now();
    let connected = connections.iter().enumerate().map(|(place, connection)| {
        let fd: BorrowedFd<'_> = connection.socket.as_fd();
        (ReadySocket::Connection(place), fd, connection.waits_for())
    });
    let mut sources: Vec<_> = connected.collect();
    let has_room = connections.len() + listeners.len() <= CONNECTIONS_MAX;
    if has_room && now >= not_before {
        let listening = listeners.iter().enumerate();
        sources.extend(listening.map(|(place, listener)| {
            let fd = listener.socket.as_fd();
            (ReadySocket::Listener(place), fd, PollFlags::IN)
        }));
    }
    let deadlines = connections.iter().map(|connection| connection.until);
    let deadlines = deadlines.chain((now < not_before).then_some(not_before));
    let next = deadlines.min();
    let timeout_ns = next.map(|at| at.saturating_duration_since(now).as_nanos() as u64);
    link::wait_for(&sources, timeout_ns)
}

/// Takes what a connection has sent, or sends it more.
fn see_to(
    connection: &mut Connection,
    text: &mut impl FnMut(Format) -> Result<Arc<str>, Trouble>,
) -> Result<(), Trouble> {
    if !connection.output.is_empty() {
        connection.send();
        return Ok(());
    }
    let answer = match connection.receive() {
        Asked::Unfinished => return Ok(()),
        Asked::Else { status, why, how } => request::sentence(status, why, how),
        Asked::Metrics { format, how } => match text(format) {
            Ok(text) => request::answer("200 OK", format.content_type(), &text, how),
            Err(Trouble::Gone) => return Err(Trouble::Gone),
            Err(Trouble::Late) => {
                let why = "the core has not answered in time\n";
                request::sentence("503 Service Unavailable", why, how)
            }
            Err(Trouble::Refused(why)) => {
                request::sentence("503 Service Unavailable", &format!("{why}\n"), how)
            }
        },
    };
    connection.answer(answer);
    Ok(())
}
