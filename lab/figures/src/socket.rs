//! TCP sockets of loads.

use crate::provenance::CONGESTION;
use anyhow::Context as _;
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_congestion};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Returns a listening socket. Its connections inherit its congestion control.
///
/// # Errors
/// Returns an error if the address does not become available within a few seconds.
pub fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    // The kernel may still be running duplicate address detection for the address.
    let listener = retry(|| TcpListener::bind(address))
        .with_context(|| format!("cannot listen at {}", address))?;
    set_tcp_congestion(&listener, CONGESTION).context("no congestion control `cubic`")?;
    Ok(listener)
}

/// Returns a connected socket.
///
/// Sets the congestion control before the handshake. If a connection is established with an
/// algorithm that paces packets (BBR, the default of some systems), a kernel timer continues to
/// pace every burst even if the algorithm changes later.
///
/// # Errors
/// Returns an error if no socket answers within a few seconds.
pub fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_tcp_congestion(&socket, CONGESTION).context("no congestion control `cubic`")?;
    set_socket_timeout(&socket, Timeout::Send, Some(Duration::from_secs(1)))?;
    retry(|| Ok(rustix::net::connect(&socket, &address)?))
        .with_context(|| format!("no socket answers at {}", address))?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn retry<T>(mut attempt: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match attempt() {
            Err(error) if Instant::now() > end => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
            done => return done,
        }
    }
}
