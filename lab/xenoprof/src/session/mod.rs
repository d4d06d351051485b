//! Coordinated sessions: one profile of several domains, each of which may have a profiler of its
//! own (section 4.2 of Xenoprof's paper).
//!
//! | module | what it does |
//! |---|---|
//! | [`state`] | the protocol as a pure state machine |
//! | [`message`] | what is said, over a socket that keeps messages apart |
//! | [`listener`] | the socket that participants find |
//! | [`ring`] | the buffer through which a domain gets its samples |
//! | `budget` | how much participants may send |
//! | [`demux`] | whose a sample is |
//! | [`initiator`] | the privileged side: configures, starts, stops, collects |
//! | [`participant`] | `grantway prof participate`: a domain's own profiler |
//! | [`outcome`] | what participants gave |
//! | [`saved`] | symbols that were saved for a passive domain |
//! | [`merge`] | an outcome, into one session |
//!
//! **Who trusts whom.** The initiator samples every process and trusts no participant. It keeps
//! every sample itself; a participant gets copies of those of its own processes, and gives *names*
//! for addresses in them. A participant that dies, hangs, lies or floods loses those names: its
//! samples are then attributed on its behalf, and the report says so. A participant that is not
//! root gets samples of its own user's processes only, without addresses of the kernel.

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

/// Why a session is none.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The system says no.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The other side sent what it may not send.
    #[error("the other side sent {0}")]
    Nonsense(&'static str),
    /// Only one session can be recorded at a time.
    #[error("another session is being recorded: {0} answers")]
    Busy(PathBuf),
    /// The socket's place is none.
    #[error("{0}")]
    Place(&'static str),
    /// Several domains, without the privilege.
    #[error(transparent)]
    NotPrivileged(#[from] state::NotPrivileged),
}

impl From<rustix::io::Errno> for SessionError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

/// Where the initiator listens unless it is told otherwise: in the runtime directory, so that
/// participants of the same user find it.
///
/// # Errors
/// If there is no runtime directory.
pub fn default_socket() -> Result<PathBuf, client::Error> {
    // Not `.sock`: those are instances.
    Ok(client::runtime_dir()?.join("xenoprof.session"))
}
