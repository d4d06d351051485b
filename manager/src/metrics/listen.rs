//! Connections that read metrics: at most [`CONNECTIONS_MAX`] for each listener, each with one
//! request of bounded length and a deadline. The socket serves root and the machine's user. The
//! kernel reports no user for connections to the port, so the two listeners have separate limits.
//!
//! At the limit, a new connection immediately evicts the connection that has waited longest without
//! a complete request. A connection that does not read its answer can be evicted after
//! [`UNREAD_TIMEOUT`].

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

/// Maximum number of concurrent connections of a listener. Further connections wait until one is
/// closed or evicted.
const CONNECTIONS_MAX: usize = 32;
/// Time after which a connection with an unread answer can be evicted.
const UNREAD_TIMEOUT: Duration = Duration::from_millis(100);
/// Time limit for the receipt of a request, and for the delivery of an answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a listener's `accept` has failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket.
#[derive(Debug)]
pub(crate) struct ScrapeListener {
    socket: OwnedFd,
    /// The user with access, in addition to root. `None` grants access to every client.
    user: Option<u32>,
}

impl ScrapeListener {
    /// Returns a listener for a user and root, or for every client.
    pub(crate) fn new(socket: OwnedFd, user: Option<u32>) -> Self {
        Self { socket, user }
    }

    /// Accepts the next connection. Returns `None` if no connection waits or if its user has no
    /// access.
    fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match accept_with(&self.socket, flags) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
            Err(error) => return Err(error),
        };
        let may = self.user.is_none_or(|user| {
            // Groups have rights only at the control socket.
            let right = |peer| access::right_of_client(&Access::default(), user, peer);
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
    /// The answer, followed by the number of sent bytes.
    output: Vec<u8>,
    sent: usize,
    /// Time at which the connection was accepted, or at which its answer began.
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

    /// Returns the time at which the connection is closed.
    fn deadline(&self) -> Instant {
        self.since + CONNECTION_TIMEOUT
    }

    /// Returns the time from which a new connection may evict this one.
    fn evictable_from(&self) -> Instant {
        match self.output.is_empty() {
            true => self.since,
            false => self.since + UNREAD_TIMEOUT,
        }
    }

    fn waits_for(&self) -> PollFlags {
        match self.output.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::OUT,
        }
    }

    /// Reads from the connection. Returns the request once it is complete or invalid.
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

    /// Starts to send the answer.
    fn answer(&mut self, answer: Vec<u8>) {
        self.input = Vec::new();
        self.output = answer;
        self.since = Instant::now();
        self.send();
    }

    /// Sends as much of the answer as the socket accepts.
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

/// A socket that is ready, by its index.
#[derive(Clone, Copy, Debug)]
enum ReadySocket {
    Listener(usize),
    Connection(usize),
}

/// Serves until the main loop exits.
pub(crate) fn serve(
    listeners: &[ScrapeListener],
    mut text: impl FnMut(MetricFormat) -> Result<Arc<str>, GatherError>,
) {
    let mut connections: Vec<ScrapeConnection> = Vec::new();
    let mut not_before = Instant::now();
    loop {
        let now = Instant::now();
        connections.retain(|connection| !connection.is_over && now < connection.deadline());
        for ready in wait(listeners, &connections, not_before) {
            match ready {
                ReadySocket::Connection(place) => {
                    if let Some(connection) = connections.get_mut(place)
                        && serve_connection(connection, &mut text) == Err(GatherError::Closed)
                    {
                        return;
                    }
                }
                ReadySocket::Listener(place) => {
                    match listeners.get(place).map(ScrapeListener::accept) {
                        Some(Ok(Some(socket))) => {
                            evict(&mut connections, place);
                            connections.push(ScrapeConnection::new(socket, place));
                        }
                        Some(Ok(None)) => {}
                        // If the process is out of descriptors, for example, the listener remains
                        // ready.
                        Some(Err(_)) => not_before = Instant::now() + ACCEPT_PAUSE,
                        None => {}
                    }
                }
            }
        }
    }
}

/// Returns the connection that can be evicted first, with the time, if the listener is at its
/// limit.
fn next_eviction(connections: &[ScrapeConnection], listener: usize) -> Option<(Instant, usize)> {
    let own = connections.iter().enumerate();
    let own = own.filter(|(_, connection)| connection.listener == listener);
    let is_full = own.clone().count() >= CONNECTIONS_MAX;
    let evictable_from = own.map(|(place, connection)| (connection.evictable_from(), place));
    evictable_from.min().filter(|_| is_full)
}

/// Evicts a connection if the listener is at its limit.
fn evict(connections: &mut Vec<ScrapeConnection>, listener: usize) {
    if let Some((at, place)) = next_eviction(connections, listener)
        && at <= Instant::now()
    {
        connections.remove(place);
    }
}

/// Waits until a socket is ready, at most until the next deadline. Connections precede listeners in
/// the list. Polls a listener from `not_before` on, and only while it can accept a connection.
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
    let mut deadlines: Vec<Instant> = connections.iter().map(ScrapeConnection::deadline).collect();
    for (place, listener) in listeners.iter().enumerate() {
        let evictable_from = next_eviction(connections, place).map(|(at, _)| at);
        let from = evictable_from.map_or(not_before, |at| at.max(not_before));
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

/// Receives from a connection, or sends the answer to it.
fn serve_connection(
    connection: &mut ScrapeConnection,
    text: &mut impl FnMut(MetricFormat) -> Result<Arc<str>, GatherError>,
) -> Result<(), GatherError> {
    if !connection.output.is_empty() {
        connection.send();
        return Ok(());
    }
    let Some(HttpRequest { format, has_text }) = connection.receive() else {
        return Ok(());
    };
    let answer = match format.map(|format| (format, text(format))) {
        Err((status, why)) => request::text_response(status, why, has_text),
        Ok((format, Ok(text))) => {
            request::response("200 OK", format.content_type(), &text, has_text)
        }
        Ok((_, Err(GatherError::Closed))) => return Err(GatherError::Closed),
        Ok((_, Err(GatherError::TimedOut))) => {
            let why = "the manager has not answered in time\n";
            request::text_response("503 Service Unavailable", why, has_text)
        }
        Ok((_, Err(GatherError::Refused(why)))) => {
            request::text_response("503 Service Unavailable", &format!("{why}\n"), has_text)
        }
    };
    connection.answer(answer);
    Ok(())
}
