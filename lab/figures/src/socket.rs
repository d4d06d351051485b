//! TCP sockets as every load has them.

use crate::provenance::CONGESTION;
use anyhow::Context as _;
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_congestion};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A listening socket; connections inherit its congestion control.
///
/// # Errors
/// If the address cannot be had for some seconds.
pub fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    // The address may still be under duplicate address detection.
    let listener = retry(|| TcpListener::bind(address))
        .with_context(|| format!("cannot listen at {}", address))?;
    set_tcp_congestion(&listener, CONGESTION).context("no congestion control `cubic`")?;
    Ok(listener)
}

/// A connected socket.
///
/// The congestion control is chosen before the handshake: a connection that was established with
/// one that paces (BBR, the default of some systems) is paced for good, by a timer of the kernel's
/// for every burst, also if it changes to one that does not.
///
/// # Errors
/// If no socket answers for some seconds.
pub fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_tcp_congestion(&socket, CONGESTION).context("no congestion control `cubic`")?;
    set_socket_timeout(&socket, Timeout::Send, Some(Duration::from_secs(1)))?;
    retry(|| Ok(rustix::net::connect(&socket, &address)?))
        .with_context(|| format!("nobody answers at {}", address))?;
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
