//! Signals that end the monitor in an orderly way.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::os::unix::net::UnixStream;

/// Returns a pipe that becomes readable when this process should end.
pub(crate) fn pipe() -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, theirs.try_clone()?)?;
    }
    Ok(ours)
}
