//! Connections to the API server, with TLS or without, whose reads and writes have deadlines.

use rustix::net::sockopt;
use rustls::{ClientConnection, StreamOwned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Limit of the time to connect to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Silence after which the kernel probes the peer, and the interval of its probes. If the peer
/// answers none of [`PROBES`], the connection ends.
const KEEP_ALIVE: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(5)];
const PROBES: u32 = 3;

/// The deadlines of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum time between two received bytes.
    pub(crate) silence: Duration,
    /// Maximum duration of the whole request.
    pub(crate) whole: Duration,
}

/// A socket with deadlines.
#[derive(Debug)]
pub(crate) struct TimedSocket {
    socket: TcpStream,
    silence: Duration,
    end: Instant,
}

impl TimedSocket {
    /// Connects to the first address that answers.
    pub(crate) fn connect(host: &str, port: u16, limits: Limits) -> io::Result<Self> {
        let end = Instant::now() + limits.whole;
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT.min(limits.whole)) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    sockopt::set_socket_keepalive(&socket, true)?;
                    sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE[0])?;
                    sockopt::set_tcp_keepintvl(&socket, KEEP_ALIVE[1])?;
                    sockopt::set_tcp_keepcnt(&socket, PROBES)?;
                    let silence = limits.silence;
                    return Ok(Self {
                        socket,
                        silence,
                        end,
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Returns the time that the next read or write may take.
    fn remaining(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(late()),
            false => Ok(Some(left.min(self.silence))),
        }
    }
}

impl Read for TimedSocket {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.remaining()?)?;
        self.socket.read(to).map_err(named)
    }
}

impl Write for TimedSocket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.remaining()?)?;
        self.socket.write(from).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn late() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "the server does not answer in time")
}

fn named(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => late(),
        _ => error,
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) enum ApiConnection {
    /// Without TLS.
    Plain(TimedSocket),
    /// With TLS.
    Tls(Box<StreamOwned<ClientConnection, TimedSocket>>),
}

impl Read for ApiConnection {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(to),
            Self::Tls(stream) => stream.read(to).map_err(|error| match error.kind() {
                // The library's message explains TLS.
                ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "the connection ended"),
                _ => error,
            }),
        }
    }
}

impl Write for ApiConnection {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(from),
            Self::Tls(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
