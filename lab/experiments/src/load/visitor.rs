//! The client of a web server: opens connections one after another, each for one request.

use super::spec::LoadSpec;
use super::state::LoadState;
use figures::socket;
use rustix::net::sockopt::set_socket_linger;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Shortest interval between the starts of two connections.
const INTERVAL: Duration = Duration::from_millis(2);

pub(super) fn start(spec: &LoadSpec, state: &Arc<LoadState>) -> anyhow::Result<()> {
    let state = Arc::clone(state);
    let (address, size) = (spec.address, spec.size.max(1));
    std::thread::Builder::new().spawn(move || {
        if let Err(error) = work(address, size, &state) {
            eprintln!("visitor: {error:#}");
        }
    })?;
    Ok(())
}

fn work(address: SocketAddr, size: usize, state: &LoadState) -> anyhow::Result<()> {
    let mut bytes = vec![0u8; size];
    loop {
        state.wait();
        let mut due = Instant::now();
        while state.run.load(Ordering::Relaxed) {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let start = Instant::now();
            visit(address, &mut bytes)?;
            state.round_trip(start.elapsed());
            state.count(size);
            due = start + INTERVAL;
        }
    }
}

/// Opens a connection, sends a request, receives the reply, and closes the connection.
fn visit(address: SocketAddr, bytes: &mut [u8]) -> anyhow::Result<()> {
    let mut stream = socket::connect(address)?;
    stream.write_all(bytes)?;
    stream.read_exact(bytes)?;
    // Otherwise closed connections would occupy all local ports for a minute.
    set_socket_linger(&stream, Some(Duration::ZERO))?;
    Ok(())
}
