//! Serves the socket: one request for each connection, each with a deadline and a bounded length.

use crate::driver::RemoteDriver;
use crate::http::{BODY_MAX, HEAD_MAX, ParsedRequest, answer, parse};
use crate::response::handle_call;
use serde_json::json;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of concurrent connections. Further connections wait.
const CONNECTIONS_MAX: usize = 64;
/// Time for a request to arrive, and for an answer to be read.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause while no connection can be accepted.
const PAUSE: Duration = Duration::from_millis(20);

/// Serves requests until the process exits.
///
/// # Errors
///
/// Returns an error if the listening socket is invalid.
pub fn serve(listener: &UnixListener, driver: &Arc<RemoteDriver>) -> io::Result<()> {
    let places = Arc::new(());
    loop {
        // The loop holds one reference, each connection another.
        while Arc::strong_count(&places) > CONNECTIONS_MAX {
            thread::sleep(PAUSE);
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
            // The next attempt would fail immediately, for example without free descriptors.
            Err(_) => {
                thread::sleep(PAUSE);
                continue;
            }
        };
        let (driver, place) = (Arc::clone(driver), Arc::clone(&places));
        let served = move || {
            // A caller that has disconnected needs no answer.
            let _disconnected = serve_one(stream, &driver);
            drop(place);
        };
        // Without a thread, the connection is closed.
        let _refused = thread::Builder::new().spawn(served);
    }
}

fn serve_one(mut stream: UnixStream, driver: &Arc<RemoteDriver>) -> io::Result<()> {
    let bytes = received(&mut stream)?;
    let bytes = match parse(&bytes) {
        ParsedRequest::Unfinished => return Ok(()),
        ParsedRequest::Rejected { status, why } => {
            answer(status, &json!({ "Err": why }).to_string())
        }
        ParsedRequest::Call { name, body } => match handle_call(driver, name, body) {
            Some(said) => answer("200 OK", &said.to_string()),
            None => answer(
                "404 Not Found",
                &json!({ "Err": "unknown call" }).to_string(),
            ),
        },
    };
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    stream.write_all(&bytes)
}

/// Reads until the request is complete or wrong, its sender closes the connection, or the deadline
/// passes.
fn received(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let end = Instant::now() + REQUEST_TIMEOUT;
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 16 << 10];
    while parse(&bytes) == ParsedRequest::Unfinished && bytes.len() <= HEAD_MAX + BODY_MAX {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk)? {
            0 => break,
            n => bytes.extend_from_slice(chunk.get(..n).unwrap_or_default()),
        }
    }
    Ok(bytes)
}
