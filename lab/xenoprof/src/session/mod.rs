//! Coordinated sessions: one profile of several domains, each of which may have a separate profiler
//! (section 4.2 of the Xenoprof paper).
//!
//! | module | contents |
//! |---|---|
//! | [`state`] | the protocol as a pure state machine |
//! | [`message`] | messages, over a socket that preserves their boundaries |
//! | [`listener`] | the socket to which participants connect |
//! | [`ring`] | the buffer that delivers samples to a domain |
//! | `budget` | memory bounds for participants' data |
//! | [`demux`] | delivery of samples to domains |
//! | [`initiator`] | the privileged side: configures, starts, stops, collects |
//! | [`participant`] | `grantway prof participate`: a domain's profiler |
//! | [`outcome`] | the participants' results |
//! | [`saved`] | saved symbols of a passive domain |
//! | [`merge`] | merges the results into one session |
//!
//! **Trust.** The initiator samples every process and trusts no participant. It keeps every sample.
//! A participant receives only copies of its processes' samples, and sends *names* for addresses in
//! them. If it dies, hangs, lies or floods, only these names are lost: the initiator then
//! attributes its samples, and the report states this. A participant that is not root receives only
//! samples of its user's processes, without kernel addresses.

mod budget;
pub mod demux;
pub mod initiator;
pub mod listener;
pub mod merge;
pub mod message;
pub mod outcome;
pub mod participant;
pub mod ring;
pub mod saved;
pub mod state;

use std::path::PathBuf;

/// Error of a session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The peer violated the protocol.
    #[error("the other side sent {0}")]
    Nonsense(&'static str),
    /// Only one session can be recorded at a time.
    #[error("another session is being recorded: {0} answers")]
    Busy(PathBuf),
    /// The location of the socket is unsafe.
    #[error("{0}")]
    Place(&'static str),
    /// The user requests several domains without the privilege.
    #[error(transparent)]
    NotPrivileged(#[from] state::NotPrivileged),
}

impl From<rustix::io::Errno> for SessionError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

/// Returns the initiator's default socket, in the runtime directory, where participants of the same
/// user find it.
///
/// # Errors
/// Returns an error if no runtime directory exists.
pub fn default_socket() -> Result<PathBuf, client::Error> {
    // Not `.sock`: that extension is for instances.
    Ok(client::runtime_dir()?.join("xenoprof.session"))
}
