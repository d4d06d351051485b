//! The client of request and response: one request outstanding.

use super::{Shared, Spec};
use figures::socket;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

pub(super) fn start(spec: &Spec, shared: &Arc<Shared>) -> anyhow::Result<()> {
    let stream = socket::connect(spec.address)?;
    let shared = Arc::clone(shared);
    let size = spec.size.max(1);
    std::thread::Builder::new().spawn(move || {
        if let Err(error) = work(stream, size, &shared) {
            eprintln!("client: {error}");
        }
    })?;
    Ok(())
}

fn work(mut stream: TcpStream, size: usize, shared: &Shared) -> std::io::Result<()> {
    let mut bytes = vec![0u8; size];
    loop {
        shared.wait();
        while shared.run.load(Ordering::Relaxed) {
            let start = Instant::now();
            stream.write_all(&bytes)?;
            stream.read_exact(&mut bytes)?;
            shared.round_trip(start.elapsed());
            shared.count(size);
        }
    }
}
