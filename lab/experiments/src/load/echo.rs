//! The server of request and response: one thread per connection, all on the load's core.

use super::spec::LoadSpec;
use super::state::LoadState;
use figures::socket;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

pub(super) fn start(spec: &LoadSpec, state: &Arc<LoadState>) -> anyhow::Result<()> {
    let listener = socket::listen(spec.address)?;
    let state = Arc::clone(state);
    let size = spec.size.max(1);
    std::thread::Builder::new().spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = Arc::clone(&state);
            // The thread exits when its connection ends.
            let _detached = std::thread::spawn(move || serve(stream, size, &state));
        }
    })?;
    Ok(())
}

fn serve(mut stream: TcpStream, size: usize, state: &LoadState) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = vec![0u8; size];
    loop {
        stream.read_exact(&mut bytes)?;
        stream.write_all(&bytes)?;
        state.count(size);
    }
}
