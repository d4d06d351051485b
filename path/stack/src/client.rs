//! Programs that open TCP connections: `tcp-source`, `tcp-client`.

use crate::app::{App, Context, endpoint};
use crate::file::FileStream;
use crate::latency::Latency;
use crate::server::socket;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use std::net::SocketAddr;

/// Size of a stream's transmit buffer in bytes.
const STREAM_BYTES: usize = 1 << 20;
/// Size of each of a client's buffers in bytes.
const CLIENT_BYTES: usize = 256 << 10;
/// Delay in nanoseconds before a refused or broken connection is retried.
const RETRY_NS: u64 = 200_000_000;

/// A connection that is opened at its start time, and reopened when it breaks.
#[derive(Debug)]
struct StreamConnection {
    handle: SocketHandle,
    to: SocketAddr,
    next_try_ns: u64,
    connected: bool,
    connects: u64,
    failures: u64,
    /// The file to send, if any.
    file: Option<FileStream>,
}

impl StreamConnection {
    fn new(to: SocketAddr, at_ns: u64, handle: SocketHandle) -> Self {
        Self {
            handle,
            to,
            next_try_ns: at_ns,
            connected: false,
            connects: 0,
            failures: 0,
            file: None,
        }
    }

    /// Returns the socket if it is connected, and whether it has become connected since the
    /// previous step.
    fn socket<'s>(
        &mut self,
        context: &'s mut Context<'_>,
    ) -> Option<(&'s mut tcp::Socket<'static>, bool)> {
        let since_start_ns = context.since_start_ns;
        let port = context.allocate_port();
        let socket = context.sockets.get_mut::<tcp::Socket<'static>>(self.handle);
        if !socket.is_open() {
            if std::mem::take(&mut self.connected) {
                self.failures += 1;
                self.next_try_ns = self.next_try_ns.max(since_start_ns + RETRY_NS);
            }
            if since_start_ns >= self.next_try_ns {
                self.next_try_ns = since_start_ns + RETRY_NS;
                let to = endpoint(self.to);
                match socket.connect(context.interface.context(), to, port) {
                    Ok(()) => {
                        if let Some(file) = &self.file {
                            file.connect(port);
                        }
                    }
                    Err(_) => self.failures += 1,
                }
            }
            return None;
        }
        if !socket.may_send() {
            return None;
        }
        let new = !std::mem::replace(&mut self.connected, true);
        self.connects += u64::from(new);
        Some((socket, new))
    }

    /// Returns the time of the next retry.
    fn due_ns(&self) -> Option<u64> {
        (!self.connected).then_some(self.next_try_ns)
    }
}

/// A program that sends a stream for a limited time.
#[derive(Debug)]
pub(crate) struct Stream {
    connection: StreamConnection,
    begin_ns: u64,
    length_ns: u64,
    /// Duration of the stream in nanoseconds, from the first connection.
    end_ns: Option<u64>,
    last_ns: u64,
    /// The file to send, if any; otherwise the stream sends zeros.
    file: Option<FileStream>,
    queued: u64,
    acknowledged: u64,
    done: bool,
}

impl Stream {
    pub(crate) fn new(
        to: SocketAddr,
        after_ns: u64,
        length_ns: u64,
        file: Option<FileStream>,
        sockets: &mut SocketSet<'static>,
    ) -> Self {
        let handle = sockets.add(socket(4096, STREAM_BYTES));
        Self {
            connection: StreamConnection {
                file: file.clone(),
                ..StreamConnection::new(to, after_ns, handle)
            },
            file,
            begin_ns: after_ns,
            length_ns,
            end_ns: None,
            last_ns: 0,
            queued: 0,
            acknowledged: 0,
            done: false,
        }
    }
}

impl App for Stream {
    fn step(&mut self, context: &mut Context<'_>) {
        let now_ns = context.since_start_ns;
        if self.done || now_ns < self.begin_ns {
            return;
        }
        let Some((socket, new)) = self.connection.socket(context) else {
            return;
        };
        if new {
            // Bytes that a broken connection has not delivered are lost.
            self.queued = self.acknowledged;
        }
        let end_ns = *self.end_ns.get_or_insert(now_ns + self.length_ns);
        if now_ns < end_ns {
            while socket.can_send() {
                let (from, file) = (self.queued, &self.file);
                let wrote = socket.send(|room| {
                    let value = (from >> 16) as u8;
                    // Their contents do not matter, because the bytes of a file are sent in place.
                    if file.is_none() {
                        room.fill(value);
                    }
                    (room.len(), room.len())
                });
                match wrote {
                    Ok(0) | Err(_) => break,
                    Ok(count) => self.queued += count as u64,
                }
            }
        }
        let acknowledged = self.queued - (socket.send_queue() as u64).min(self.queued);
        if acknowledged != self.acknowledged {
            self.acknowledged = acknowledged;
            self.last_ns = now_ns;
        }
        if now_ns >= end_ns && socket.send_queue() == 0 {
            socket.close();
            self.done = true;
        }
    }

    fn due_ns(&self) -> Option<u64> {
        if self.done {
            return None;
        }
        let retry = self.connection.due_ns();
        let end = self.end_ns.filter(|end_ns| self.last_ns < *end_ns);
        retry.into_iter().chain(end).min()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let began = self
            .end_ns
            .map_or(self.last_ns, |end_ns| end_ns - self.length_ns);
        vec![
            ("bytes", self.acknowledged),
            ("elapsed_ns", self.last_ns.saturating_sub(began)),
            ("connections", self.connection.connects),
            ("failures", self.connection.failures),
            ("done", self.done.into()),
        ]
    }
}

/// A program that sends requests to an echo server, one after the other.
#[derive(Debug)]
pub(crate) struct Requests {
    connection: StreamConnection,
    begin_ns: u64,
    length_ns: u64,
    end_ns: Option<u64>,
    last_ns: u64,
    request: Vec<u8>,
    sent: usize,
    returned: usize,
    asked_ns: u64,
    transactions: u64,
    mismatches: u64,
    latency: Latency,
    done: bool,
}

impl Requests {
    pub(crate) fn new(
        to: SocketAddr,
        size: u32,
        after_ns: u64,
        length_ns: u64,
        sockets: &mut SocketSet<'static>,
    ) -> Self {
        let handle = sockets.add(socket(CLIENT_BYTES, CLIENT_BYTES));
        Self {
            connection: StreamConnection::new(to, after_ns, handle),
            begin_ns: after_ns,
            length_ns,
            end_ns: None,
            last_ns: 0,
            request: vec![0; size.max(1) as usize],
            sent: 0,
            returned: 0,
            asked_ns: 0,
            transactions: 0,
            mismatches: 0,
            latency: Latency::default(),
            done: false,
        }
    }

    /// Writes the bytes of the next request. Different requests, and different parts of a request,
    /// have different bytes.
    fn write_request(&mut self) {
        let number = self.transactions;
        for (at, byte) in self.request.iter_mut().enumerate() {
            *byte = (at as u64 * 7 + (at as u64 >> 8) * 13 + number) as u8;
        }
        self.sent = 0;
        self.returned = 0;
    }

    /// Takes received bytes, and returns whether the reply is complete.
    fn take_reply(&mut self, socket: &mut tcp::Socket<'_>) -> bool {
        while self.returned < self.sent {
            let rest = self.request.get(self.returned..self.sent).unwrap_or(&[]);
            let taken = socket.recv(|bytes| {
                let count = bytes.len().min(rest.len());
                (count, (count, bytes.get(..count) == rest.get(..count)))
            });
            match taken {
                Ok((0, _)) | Err(_) => break,
                Ok((count, same)) => {
                    self.returned += count;
                    self.mismatches += u64::from(!same);
                }
            }
        }
        self.returned == self.request.len()
    }
}

impl App for Requests {
    fn step(&mut self, context: &mut Context<'_>) {
        let now_ns = context.since_start_ns;
        if self.done || now_ns < self.begin_ns {
            return;
        }
        let Some((socket, new)) = self.connection.socket(context) else {
            return;
        };
        let end_ns = *self.end_ns.get_or_insert(now_ns + self.length_ns);
        if new {
            self.write_request();
            self.asked_ns = now_ns;
        }
        if self.take_reply(socket) {
            self.transactions += 1;
            self.last_ns = now_ns;
            self.latency.add(now_ns.saturating_sub(self.asked_ns));
            if now_ns >= end_ns {
                socket.close();
                self.done = true;
                return;
            }
            self.write_request();
            self.asked_ns = now_ns;
        }
        let rest = self.request.get(self.sent..).unwrap_or(&[]);
        if !rest.is_empty()
            && let Ok(count) = socket.send_slice(rest)
        {
            self.sent += count;
        }
    }

    fn due_ns(&self) -> Option<u64> {
        if self.done {
            None
        } else {
            self.connection.due_ns()
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let began = self
            .end_ns
            .map_or(self.last_ns, |end_ns| end_ns - self.length_ns);
        let mut all = vec![
            ("transactions", self.transactions),
            ("bytes", self.transactions * self.request.len() as u64),
            ("elapsed_ns", self.last_ns.saturating_sub(began)),
            ("mismatches", self.mismatches),
            ("connections", self.connection.connects),
            ("failures", self.connection.failures),
            ("done", self.done.into()),
        ];
        all.extend(self.latency.counters());
        all
    }
}
