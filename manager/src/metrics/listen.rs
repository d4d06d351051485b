//! Connections that read metrics: at most [`CONNECTIONS_MAX`] for each listener, each with one
//! request of bounded length and a deadline. The socket serves root and the machine's user.
//! Connections to the port, for which the kernel reports no user, do not use the socket's places.
//!
//! If no place is free, the connection that has waited longest without a complete request yields
//! its place to a new connection at once. A connection that does not read its answer yields after
//! [`UNREAD`].

use super::gather::GatherError;
use super::request::{self, HttpRequest, REQUEST_MAX};
use super::text::MetricFormat;
use crate::access::{self, ClientIdentity};
use abi::machine::Access;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, accept_with, recv, send, shutdown};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections of a listener at a time; further ones wait until one ends or yields.
const CONNECTIONS_MAX: usize = 32;
/// How long a connection may leave its answer unread before it yields to a new connection.
const UNREAD: Duration = Duration::from_millis(100);
/// Time for a request to arrive, and for an answer to be read.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause after a listener's `accept` has failed.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket.
#[derive(Debug)]
pub(crate) struct ScrapeListener {
    socket: OwnedFd,
    /// The user with access, beside root; `None`: everyone who can connect.
    user: Option<u32>,
}

impl ScrapeListener {
    /// Returns the listener of a path.
    pub(crate) fn local(socket: OwnedFd, user: u32) -> Self {
        let user = Some(user);
        Self { socket, user }
    }

    /// Returns the listener of a port of the loopback address.
    pub(crate) fn on_loopback(socket: OwnedFd) -> Self {
        let user = None;
        Self { socket, user }
    }

    /// Returns the next connection with access, if one waits.
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
            ClientIdentity::of(&socket).and_then(right).is_some()
        });
        Ok(may.then_some(socket))
    }
}

/// One connection.
#[derive(Debug)]
struct ScrapeConnection {
    socket: OwnedFd,
    /// The number of its listener.
    listener: usize,
    input: Vec<u8>,
    /// The answer, and the number of bytes sent.
    output: Vec<u8>,
    sent: usize,
    /// Time at which the connection was accepted, or its answer was started.
    since: Instant,
    is_over: bool,
}

impl ScrapeConnection {
    fn new(socket: OwnedFd, listener: usize) -> Self {
        Self {
            socket,
            listener,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            since: Instant::now(),
            is_over: false,
        }
    }

    /// Returns when the connection is closed.
    fn until(&self) -> Instant {
        self.since + PATIENCE
    }

    /// Returns when it yields its place to a new connection.
    fn yields(&self) -> Instant {
        match self.output.is_empty() {
            true => self.since,
            false => self.since + UNREAD,
        }
    }

    fn waits_for(&self) -> PollFlags {
        match self.output.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::OUT,
        }
    }

    /// Reads from the connection. Returns the known part of the request.
    fn receive(&mut self) -> Option<HttpRequest> {
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
        None
    }

    /// Begins to send the answer.
    fn answer(&mut self, answer: Vec<u8>) {
        self.input = Vec::new();
        self.output = answer;
        self.since = Instant::now();
        self.send();
    }

    /// Sends until the socket is full.
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

/// A source that is ready, by its number.
#[derive(Clone, Copy, Debug)]
enum ReadySocket {
    Listener(usize),
    Connection(usize),
}

/// Serves until the main loop ends.
pub(crate) fn serve(
    listeners: &[ScrapeListener],
    mut text: impl FnMut(MetricFormat) -> Result<Arc<str>, GatherError>,
) {
    let mut connections: Vec<ScrapeConnection> = Vec::new();
    let mut not_before = Instant::now();
    loop {
        let now = Instant::now();
        connections.retain(|connection| !connection.is_over && now < connection.until());
        for ready in wait(listeners, &connections, not_before) {
            match ready {
                ReadySocket::Connection(place) => {
                    if let Some(connection) = connections.get_mut(place)
                        && see_to(connection, &mut text) == Err(GatherError::Gone)
                    {
                        return;
                    }
                }
                ReadySocket::Listener(place) => {
                    match listeners.get(place).map(ScrapeListener::accept) {
                        Some(Ok(Some(socket))) => {
                            make_room(&mut connections, place);
                            connections.push(ScrapeConnection::new(socket, place));
                        }
                        Some(Ok(None)) => {}
                        // Out of descriptors, for example: it would be ready again at once.
                        Some(Err(_)) => not_before = Instant::now() + PAUSE,
                        None => {}
                    }
                }
            }
        }
    }
}

/// Returns the connection of a full listener that yields its place first, and when.
fn first_to_yield(connections: &[ScrapeConnection], listener: usize) -> Option<(Instant, usize)> {
    let own = connections.iter().enumerate();
    let own = own.filter(|(_, connection)| connection.listener == listener);
    let is_full = own.clone().count() >= CONNECTIONS_MAX;
    let yields = own.map(|(place, connection)| (connection.yields(), place));
    yields.min().filter(|_| is_full)
}

/// Closes the connection that yields its place to a new one, if no place is free.
fn make_room(connections: &mut Vec<ScrapeConnection>, listener: usize) {
    if let Some((at, place)) = first_to_yield(connections, listener)
        && at <= Instant::now()
    {
        connections.remove(place);
    }
}

/// Waits until a source is ready, at most until the next deadline. Connections come first in the
/// list. A listener is not polled before `not_before`, and only while it can accept a connection.
fn wait(
    listeners: &[ScrapeListener],
    connections: &[ScrapeConnection],
    not_before: Instant,
) -> Vec<ReadySocket> {
    let now = Instant::now();
    let connected = connections.iter().enumerate().map(|(place, connection)| {
        let fd: BorrowedFd<'_> = connection.socket.as_fd();
        (ReadySocket::Connection(place), fd, connection.waits_for())
    });
    let mut sources: Vec<_> = connected.collect();
    let mut deadlines: Vec<Instant> = connections.iter().map(ScrapeConnection::until).collect();
    for (place, listener) in listeners.iter().enumerate() {
        let yields = first_to_yield(connections, place).map(|(at, _)| at);
        let from = yields.map_or(not_before, |at| at.max(not_before));
        if now < from {
            deadlines.push(from);
            continue;
        }
        let fd = listener.socket.as_fd();
        sources.push((ReadySocket::Listener(place), fd, PollFlags::IN));
    }
    let next = deadlines.into_iter().min();
    let timeout_ns = next.map(|at| at.saturating_duration_since(now).as_nanos() as u64);
    link::wait_for(&sources, timeout_ns)
}

/// Reads from a connection, or sends to it.
fn see_to(
    connection: &mut ScrapeConnection,
    text: &mut impl FnMut(MetricFormat) -> Result<Arc<str>, GatherError>,
) -> Result<(), GatherError> {
    if !connection.output.is_empty() {
        connection.send();
        return Ok(());
    }
    let Some(HttpRequest { wants, has_text }) = connection.receive() else {
        return Ok(());
    };
    let answer = match wants.map(|format| (format, text(format))) {
        Err((status, why)) => request::sentence(status, why, has_text),
        Ok((format, Ok(text))) => request::answer("200 OK", format.content_type(), &text, has_text),
        Ok((_, Err(GatherError::Gone))) => return Err(GatherError::Gone),
        Ok((_, Err(GatherError::Late))) => {
            let why = "the core has not answered in time\n";
            request::sentence("503 Service Unavailable", why, has_text)
        }
        Ok((_, Err(GatherError::Refused(why)))) => {
            request::sentence("503 Service Unavailable", &format!("{why}\n"), has_text)
        }
    };
    connection.answer(answer);
    Ok(())
}
