//! The client of request and response, with one outstanding request.

use super::spec::LoadSpec;
use super::state::LoadState;
use figures::socket;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

pub(super) fn start(spec: &LoadSpec, state: &Arc<LoadState>) -> anyhow::Result<()> {
    let stream = socket::connect(spec.address)?;
    let state = Arc::clone(state);
    let size = spec.size.max(1);
    std::thread::Builder::new().spawn(move || {
        if let Err(error) = work(stream, size, &state) {
            eprintln!("client: {error}");
        }
    })?;
    Ok(())
}

fn work(mut stream: TcpStream, size: usize, state: &LoadState) -> std::io::Result<()> {
    let mut bytes = vec![0u8; size];
    loop {
        state.wait();
        while state.run.load(Ordering::Relaxed) {
            let start = Instant::now();
            stream.write_all(&bytes)?;
            stream.read_exact(&mut bytes)?;
            state.round_trip(start.elapsed());
            state.count(size);
        }
    }
}
