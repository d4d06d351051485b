//! Sockets as every load has them.

use super::{CONGESTION, Spec};
use anyhow::Context as _;
use rustix::net::sockopt::set_tcp_congestion;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A listening socket; connections inherit its congestion control.
pub(super) fn listen(spec: &Spec) -> anyhow::Result<TcpListener> {
    // The address may still be under duplicate address detection.
    let listener = retry(|| TcpListener::bind(spec.address))
        .with_context(|| format!("cannot listen at {}", spec.address))?;
    set_tcp_congestion(&listener, CONGESTION).context("no congestion control `cubic`")?;
    Ok(listener)
}

/// A connected socket.
pub(super) fn connect(spec: &Spec) -> anyhow::Result<TcpStream> {
    // std offers no option before connecting; the handshake itself has no congestion window yet.
    let stream = retry(|| TcpStream::connect_timeout(&spec.address, Duration::from_secs(1)))
        .with_context(|| format!("nobody answers at {}", spec.address))?;
    set_tcp_congestion(&stream, CONGESTION).context("no congestion control `cubic`")?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn retry<T>(mut attempt: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    let end = Instant::now() + Duration::from_secs(8);
    loop {
        match attempt() {
            Err(error) if Instant::now() > end => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
            done => return done,
        }
    }
}
