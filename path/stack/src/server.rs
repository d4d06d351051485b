//! Programs that accept connections: `tcp-sink` and `tcp-echo`.

use crate::app::{App, Context};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::time::Duration;

/// Maximum number of concurrent connections.
const CONNECTIONS: usize = 8;
/// Size of a connection's receive buffer in bytes, which limits the bytes in flight. It is smaller
/// than the total of a guest's default 256 receive buffers, so that a burst to a sleeping guest is
/// not lost.
const RX_BYTES: usize = 256 << 10;
/// Size of the transmit buffer of an echo server's connection in bytes.
const TX_BYTES: usize = 256 << 10;
/// Timeout of a connection with a silent peer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Treatment of received bytes by a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    /// Discards them.
    Sink,
    /// Sends them back.
    Echo,
}

/// A server on one port.
#[derive(Debug)]
pub(crate) struct StreamServer {
    kind: ServerKind,
    port: u16,
    handles: Vec<SocketHandle>,
    /// For each connection, whether it was already counted.
    open: Vec<bool>,
    connections: u64,
    bytes: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    refused: u64,
}

impl StreamServer {
    pub(crate) fn new(kind: ServerKind, port: u16, sockets: &mut SocketSet<'static>) -> Self {
        let tx_bytes = if kind == ServerKind::Echo {
            TX_BYTES
        } else {
            1024
        };
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

/// Creates a socket with the settings that all programs use.
pub(crate) fn socket(rx_bytes: usize, tx_bytes: usize) -> tcp::Socket<'static> {
    let rx = tcp::SocketBuffer::new(vec![0; rx_bytes]);
    let tx = tcp::SocketBuffer::new(vec![0; tx_bytes]);
    let mut socket = tcp::Socket::new(rx, tx);
    socket.set_congestion_control(tcp::CongestionControl::Cubic);
    socket.set_nagle_enabled(false);
    // Programs reply in the same turn, before frames are sent. So the reply carries one
    // acknowledgement for all segments of the turn.
    socket.set_ack_delay(None);
    socket.set_timeout(Some(TIMEOUT));
    socket.set_keep_alive(Some(Duration::from_secs(20)));
    socket
}

impl App for StreamServer {
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
                ServerKind::Sink => self.bytes += discard(socket),
                ServerKind::Echo => self.bytes += echo(socket),
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

/// Discards the contents of the receive buffer, and returns the number of bytes.
fn discard(socket: &mut tcp::Socket<'_>) -> u64 {
    let mut total = 0;
    while socket.can_recv() {
        match socket.recv(|bytes| (bytes.len(), bytes.len())) {
            Ok(0) | Err(_) => break,
            Ok(count) => total += count as u64,
        }
    }
    total
}

/// Moves bytes from the receive buffer to the transmit buffer until the latter is full, and returns
/// their number.
fn echo(socket: &mut tcp::Socket<'_>) -> u64 {
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
