//! Programs that take connections: `tcp-sink` and `tcp-echo`.

use crate::app::{App, Context};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::time::Duration;

/// Connections that a server takes at once.
const CONNECTIONS: usize = 8;
/// Receive buffer of a connection, and so the most that is under way to it: less than the usual
/// 256 receive buffers of a guest hold, so that a burst to a guest that still sleeps is not lost.
const RX_BYTES: usize = 256 << 10;
/// Transmit buffer of an echo's connection.
const TX_BYTES: usize = 256 << 10;
/// A connection whose peer is silent for so long has none any more.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What becomes of the bytes that come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// They are thrown away.
    Sink,
    /// They go back.
    Echo,
}

/// A server on one port.
#[derive(Debug)]
pub(crate) struct Server {
    kind: Kind,
    port: u16,
    handles: Vec<SocketHandle>,
    /// Which of the connections have been counted.
    open: Vec<bool>,
    connections: u64,
    bytes: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    refused: u64,
}

impl Server {
    pub(crate) fn new(kind: Kind, port: u16, sockets: &mut SocketSet<'static>) -> Self {
        let tx_bytes = if kind == Kind::Echo { TX_BYTES } else { 1024 };
        let handles: Vec<_> = (0..CONNECTIONS)
            .map(|_| sockets.add(socket(RX_BYTES, tx_bytes)))
            .collect();
        Self {
            kind,
            port,
            open: vec![false; handles.len()],
            handles,
            connections: 0,
            bytes: 0,
            first_ns: None,
            last_ns: 0,
            refused: 0,
        }
    }
}

/// A socket as all programs use it.
pub(crate) fn socket(rx_bytes: usize, tx_bytes: usize) -> tcp::Socket<'static> {
    let rx = tcp::SocketBuffer::new(vec![0; rx_bytes]);
    let tx = tcp::SocketBuffer::new(vec![0; tx_bytes]);
    let mut socket = tcp::Socket::new(rx, tx);
    socket.set_congestion_control(tcp::CongestionControl::Cubic);
    socket.set_nagle_enabled(false);
    // Programs answer in the same turn, before anything is sent: the answer carries the
    // acknowledgement, and there is one for all that came in a turn.
    socket.set_ack_delay(None);
    socket.set_timeout(Some(TIMEOUT));
    socket.set_keep_alive(Some(Duration::from_secs(20)));
    socket
}

impl App for Server {
    fn step(&mut self, context: &mut Context<'_>) {
        for (handle, open) in self.handles.iter().zip(&mut self.open) {
            let socket = context.sockets.get_mut::<tcp::Socket<'_>>(*handle);
            if !socket.is_open() {
                *open = false;
                if socket.listen(self.port).is_err() {
                    self.refused += 1;
                }
                continue;
            }
            if !socket.is_active() {
                continue;
            }
            if !*open && socket.may_send() {
                *open = true;
                self.connections += 1;
            }
            let before = self.bytes;
            match self.kind {
                Kind::Sink => self.bytes += throw_away(socket),
                Kind::Echo => self.bytes += send_back(socket),
            }
            if self.bytes != before {
                self.first_ns.get_or_insert(context.since_start_ns);
                self.last_ns = context.since_start_ns;
            }
            if !socket.may_recv() && socket.recv_queue() == 0 && socket.may_send() {
                socket.close();
            }
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("bytes", self.bytes),
            (
                "elapsed_ns",
                self.last_ns - self.first_ns.unwrap_or(self.last_ns),
            ),
            ("connections", self.connections),
            ("refused", self.refused),
        ]
    }
}

/// Empties the receive buffer; how many bytes there were.
fn throw_away(socket: &mut tcp::Socket<'_>) -> u64 {
    let mut total = 0;
    while socket.can_recv() {
        match socket.recv(|bytes| (bytes.len(), bytes.len())) {
            Ok(0) | Err(_) => break,
            Ok(count) => total += count as u64,
        }
    }
    total
}

/// Moves bytes from the receive to the transmit buffer, as far as there is room; how many.
fn send_back(socket: &mut tcp::Socket<'_>) -> u64 {
    let mut total = 0;
    let mut part = [0; 4096];
    while socket.can_recv() && socket.can_send() {
        let room = socket.send_capacity() - socket.send_queue();
        let count = room.min(part.len());
        let Some(part) = part.get_mut(..count) else {
            break;
        };
        let Ok(count) = socket.recv_slice(part) else {
            break;
        };
        if count == 0 || socket.send_slice(part.get(..count).unwrap_or(&[])) != Ok(count) {
            break;
        }
        total += count as u64;
    }
    total
}
