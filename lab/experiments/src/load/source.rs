//! The source: one thread per stream, all on the load's core.

use super::spec::{CHUNK, LoadRole, LoadSpec};
use super::state::LoadState;
use figures::socket;
use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use rustix::net::{SendFlags, send};
use std::fs::File;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(super) fn start(spec: &LoadSpec, state: &Arc<LoadState>) -> anyhow::Result<()> {
    let chunk: Vec<u8> = (0..CHUNK).map(|at| (at * 131) as u8).collect();
    let flows = spec.flows.max(1);
    let bytes_per_s = spec.bytes_per_s.map(|all| all.max(1) as f64 / flows as f64);
    for number in 0..flows {
        let stream = socket::connect(spec.address)?;
        let mut give = match spec.role {
            LoadRole::File => WriteMethod::file(&chunk, stream)?,
            LoadRole::Pushed => WriteMethod::Chunk(chunk.clone(), stream, SendFlags::EOR),
            _ => WriteMethod::Chunk(chunk.clone(), stream, SendFlags::empty()),
        };
        let state = Arc::clone(state);
        let pause = move |bytes: usize| {
            let seconds = bytes_per_s.map(|rate| bytes as f64 / rate);
            seconds.map_or(Duration::ZERO, Duration::from_secs_f64)
        };
        std::thread::Builder::new().spawn(move || {
            loop {
                state.wait();
                // Paced streams take turns.
                let turn = state.give.load(Ordering::Relaxed) * number / flows;
                let mut due = Instant::now() + pause(turn);
                while state.run.load(Ordering::Relaxed) {
                    if bytes_per_s.is_some() {
                        std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    }
                    let most = state.give.load(Ordering::Relaxed).clamp(1, CHUNK);
                    match give.some(most) {
                        Ok(count) if count > 0 => {
                            state.count(count);
                            due += pause(count);
                        }
                        _ => return,
                    }
                }
            }
        })?;
    }
    Ok(())
}

/// Method of writing to a stream.
enum WriteMethod {
    /// Copies from the source's memory. With `EOR`, TCP adds no later byte to the same packet.
    Chunk(Vec<u8>, TcpStream, SendFlags),
    /// Sends a file whose pages the kernel passes to the socket.
    File(File, TcpStream),
}

impl WriteMethod {
    fn file(bytes: &[u8], stream: TcpStream) -> anyhow::Result<Self> {
        let mut file = File::from(memfd_create("stream", MemfdFlags::CLOEXEC)?);
        file.write_all(bytes)?;
        Ok(Self::File(file, stream))
    }

    /// Writes up to `most` bytes, at most those of the source, and returns the number written.
    fn some(&mut self, most: usize) -> std::io::Result<usize> {
        match self {
            Self::Chunk(bytes, stream, flags) => {
                let message = bytes.get(..most).unwrap_or(bytes);
                // As in Rust's standard library, a closed peer causes an error instead of a signal.
                Ok(send(&*stream, message, *flags | SendFlags::NOSIGNAL)?)
            }
            Self::File(file, stream) => Ok(sendfile(&*stream, &*file, Some(&mut 0), most)?),
        }
    }
}
