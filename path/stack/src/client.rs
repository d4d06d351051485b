//! Programs that begin by themselves: `tcp-source`, `tcp-client`, `ping`.

use crate::app::{App, Context, endpoint};
use crate::latency::Latency;
use crate::server::socket;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::{icmp, tcp};
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpAddress};
use std::net::{IpAddr, SocketAddr};

/// Transmit buffer of a stream.
const STREAM_BYTES: usize = 1 << 20;
/// Buffers of a client.
const CLIENT_BYTES: usize = 256 << 10;
/// Until a connection that was refused or broken is tried again.
const RETRY_NS: u64 = 200_000_000;

/// A connection that is made when its time has come, and again when it breaks.
#[derive(Debug)]
struct Connection {
    handle: SocketHandle,
    to: SocketAddr,
    next_try_ns: u64,
    connected: bool,
    connects: u64,
    failures: u64,
}

impl Connection {
    fn new(to: SocketAddr, at_ns: u64, handle: SocketHandle) -> Self {
        Self {
            handle,
            to,
            next_try_ns: at_ns,
            connected: false,
            connects: 0,
            failures: 0,
        }
    }

    /// The socket, if it is connected; `true` with it if it was not at the step before.
    fn socket<'s>(
        &mut self,
        context: &'s mut Context<'_>,
    ) -> Option<(&'s mut tcp::Socket<'static>, bool)> {
        let since_start_ns = context.since_start_ns;
        let port = context.port();
        let socket = context.sockets.get_mut::<tcp::Socket<'static>>(self.handle);
        if !socket.is_open() {
            if std::mem::take(&mut self.connected) {
                self.failures += 1;
                self.next_try_ns = self.next_try_ns.max(since_start_ns + RETRY_NS);
            }
            if since_start_ns >= self.next_try_ns {
                self.next_try_ns = since_start_ns + RETRY_NS;
                if socket
                    .connect(context.interface.context(), endpoint(self.to), port)
                    .is_err()
                {
                    self.failures += 1;
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

    /// When to try again.
    fn due_ns(&self) -> Option<u64> {
        (!self.connected).then_some(self.next_try_ns)
    }
}

/// Sends a stream for a time.
#[derive(Debug)]
pub(crate) struct Stream {
    connection: Connection,
    begin_ns: u64,
    length_ns: u64,
    /// From the moment that the connection was first there.
    end_ns: Option<u64>,
    last_ns: u64,
    queued: u64,
    acknowledged: u64,
    done: bool,
}

impl Stream {
    pub(crate) fn new(
        to: SocketAddr,
        after_ns: u64,
        length_ns: u64,
        sockets: &mut SocketSet<'static>,
    ) -> Self {
        let handle = sockets.add(socket(4096, STREAM_BYTES));
        Self {
            connection: Connection::new(to, after_ns, handle),
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
            // What a broken connection had not delivered is lost.
            self.queued = self.acknowledged;
        }
        let end_ns = *self.end_ns.get_or_insert(now_ns + self.length_ns);
        if now_ns < end_ns {
            while socket.can_send() {
                let from = self.queued;
                let wrote = socket.send(|room| {
                    let value = (from >> 16) as u8;
                    room.fill(value);
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

/// Sends requests to an echo, one after the other.
#[derive(Debug)]
pub(crate) struct Requests {
    connection: Connection,
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
            connection: Connection::new(to, after_ns, handle),
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

    /// The next request's bytes: no two requests are alike, nor the parts of one.
    fn write_request(&mut self) {
        let number = self.transactions;
        for (at, byte) in self.request.iter_mut().enumerate() {
            *byte = (at as u64 * 7 + (at as u64 >> 8) * 13 + number) as u8;
        }
        self.sent = 0;
        self.returned = 0;
    }

    /// Takes what has come back; whether it is the whole reply.
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

/// Bytes of an echo request's data, as `ping` sends them.
const PING_DATA: usize = 56;
/// Between two echo requests.
const PING_EVERY_NS: u64 = 100_000_000;

/// Sends echo requests and keeps the round-trip times.
#[derive(Debug)]
pub(crate) struct Ping {
    handle: SocketHandle,
    to: IpAddr,
    count: u32,
    ident: u16,
    next_ns: u64,
    sent: u32,
    received: u64,
    duplicates: u64,
    /// When each request was sent, until its reply came.
    waiting: Vec<Option<u64>>,
    latency: Latency,
}

impl Ping {
    pub(crate) fn new(
        to: IpAddr,
        count: u32,
        after_ns: u64,
        ident: u16,
        sockets: &mut SocketSet<'static>,
    ) -> Self {
        let buffer =
            || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 16], vec![0; 16 * 256]);
        Self {
            handle: sockets.add(icmp::Socket::new(buffer(), buffer())),
            to,
            count,
            ident,
            next_ns: after_ns,
            sent: 0,
            received: 0,
            duplicates: 0,
            waiting: Vec::new(),
            latency: Latency::default(),
        }
    }

    /// An echo request as bytes; none: there is no address to send it from.
    fn request(&self, context: &Context<'_>) -> Option<Vec<u8>> {
        let (ident, seq_no, data) = (self.ident, self.sent as u16, &[0x5a; PING_DATA]);
        let sums = ChecksumCapabilities::default();
        match self.to {
            IpAddr::V4(_) => {
                let repr = Icmpv4Repr::EchoRequest {
                    ident,
                    seq_no,
                    data,
                };
                let mut bytes = vec![0; repr.buffer_len()];
                repr.emit(&mut Icmpv4Packet::new_unchecked(&mut bytes), &sums);
                Some(bytes)
            }
            IpAddr::V6(to) => {
                let repr = Icmpv6Repr::EchoRequest {
                    ident,
                    seq_no,
                    data,
                };
                let mut bytes = vec![0; repr.buffer_len()];
                let from = context.interface.get_source_address_ipv6(&to);
                repr.emit(
                    &from,
                    &to,
                    &mut Icmpv6Packet::new_unchecked(&mut bytes),
                    &sums,
                );
                Some(bytes)
            }
        }
    }

    /// The number in a reply to one of our requests.
    fn reply(&self, bytes: &[u8]) -> Option<u16> {
        // smoltcp has checked the sum before it gave the reply to this socket.
        let sums = ChecksumCapabilities::ignored();
        let (ident, seq_no) = match self.to {
            IpAddr::V4(_) => {
                match Icmpv4Repr::parse(&Icmpv4Packet::new_checked(bytes).ok()?, &sums).ok()? {
                    Icmpv4Repr::EchoReply { ident, seq_no, .. } => (ident, seq_no),
                    _ => return None,
                }
            }
            IpAddr::V6(to) => {
                let packet = Icmpv6Packet::new_checked(bytes).ok()?;
                match Icmpv6Repr::parse(&to, &to, &packet, &sums).ok()? {
                    Icmpv6Repr::EchoReply { ident, seq_no, .. } => (ident, seq_no),
                    _ => return None,
                }
            }
        };
        (ident == self.ident).then_some(seq_no)
    }
}

impl App for Ping {
    fn step(&mut self, context: &mut Context<'_>) {
        let now_ns = context.since_start_ns;
        let request = (now_ns >= self.next_ns && self.sent < self.count)
            .then(|| self.request(context))
            .flatten();
        let socket = context
            .sockets
            .get_mut::<icmp::Socket<'static>>(self.handle);
        // Binding fails only if it is bound already.
        if !socket.is_open() && socket.bind(icmp::Endpoint::Ident(self.ident)).is_err() {
            return;
        }
        if let Some(bytes) = request
            && socket.send_slice(&bytes, IpAddress::from(self.to)).is_ok()
        {
            self.sent += 1;
            self.waiting.push(Some(now_ns));
            self.next_ns = now_ns + PING_EVERY_NS;
        }
        while let Ok((bytes, _)) = socket.recv() {
            let Some(seq_no) = self.reply(bytes) else {
                continue;
            };
            // Numbers repeat after 65536 requests; the newest is meant.
            let newest = self.waiting.iter().rposition(|_| true).unwrap_or(0);
            let back = (newest as u16).wrapping_sub(seq_no);
            let place = newest.checked_sub(usize::from(back));
            match place
                .and_then(|place| self.waiting.get_mut(place))
                .map(Option::take)
            {
                Some(Some(sent_ns)) => {
                    self.received += 1;
                    self.latency.add(now_ns.saturating_sub(sent_ns));
                }
                _ => self.duplicates += 1,
            }
        }
    }

    fn due_ns(&self) -> Option<u64> {
        (self.sent < self.count).then_some(self.next_ns)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = vec![
            ("sent", self.sent.into()),
            ("received", self.received),
            ("duplicates", self.duplicates),
        ];
        all.extend(self.latency.counters());
        all
    }
}
