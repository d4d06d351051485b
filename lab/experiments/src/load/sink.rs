//! The sink: one thread for all streams.

use super::spec::{LoadSpec, TAKE_MAX};
use super::state::LoadState;
use figures::socket;
use rustix::event::epoll;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const LISTENER: u64 = u64::MAX;

pub(super) fn start(spec: &LoadSpec, state: &Arc<LoadState>) -> anyhow::Result<()> {
    let listener = socket::listen(spec.address)?;
    listener.set_nonblocking(true)?;
    let state = Arc::clone(state);
    std::thread::Builder::new().spawn(move || {
        if let Err(error) = work(&listener, &state) {
            eprintln!("sink: {error}");
        }
    })?;
    Ok(())
}

fn work(listener: &TcpListener, state: &LoadState) -> anyhow::Result<()> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let add = |fd: &dyn std::os::fd::AsFd, key| {
        epoll::add(
            &set,
            fd.as_fd(),
            epoll::EventData::new_u64(key),
            epoll::EventFlags::IN,
        )
    };
    add(listener, LISTENER)?;
    let mut streams: BTreeMap<u64, TcpStream> = BTreeMap::new();
    let mut bytes = vec![0u8; TAKE_MAX];
    let mut events = Vec::with_capacity(64);
    loop {
        match epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        for event in events.drain(..) {
            let key = event.data.u64();
            if key == LISTENER {
                if let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    let key = stream.as_raw_fd() as u64;
                    add(&stream, key)?;
                    streams.insert(key, stream);
                }
                continue;
            }
            let Some(stream) = streams.get_mut(&key) else {
                continue;
            };
            if take(stream, &mut bytes, state).is_err() {
                streams.remove(&key);
            }
        }
    }
}

/// Receives with a buffer of the configured size until [`TAKE_MAX`] bytes are read or none remain,
/// so that small buffers add only `recv` calls and no `poll` calls.
fn take(stream: &mut TcpStream, bytes: &mut [u8], state: &LoadState) -> std::io::Result<()> {
    let size = state.take.load(Ordering::Relaxed).clamp(1, bytes.len());
    let Some(buffer) = bytes.get_mut(..size) else {
        return Ok(());
    };
    let mut left = TAKE_MAX;
    while left > 0 {
        match stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                state.count(count);
                left = left.saturating_sub(count.max(size));
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
