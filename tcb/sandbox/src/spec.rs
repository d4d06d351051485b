//! What a domain to start is made of, and why a start fails.

use crate::agent::AgentError;
use crate::policy::Profile;
use abi::core::CPU_WORDS;
use abi::version::VERSION;
use shmem::Region;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// A domain to start.
#[derive(Clone, Copy, Debug)]
pub struct Spec<'a> {
    /// The program: a static ELF.
    pub program: &'a Path,
    /// Its arguments, without its own name.
    pub args: &'a [&'a str],
    /// The domain's name: argument 0, and what `ps` shows.
    pub name: &'a str,
    /// Chooses the filter.
    pub profile: Profile,
    /// The information region, mapped read-write at [`abi::layout::INFO`].
    pub info: &'a Region,
    /// The domain's own page frames, mapped read-write at [`abi::layout::FRAMES`].
    pub frames: &'a Region,
    /// The mailbox, mapped read-write at [`abi::layout::MAILBOX`].
    pub mailbox: BorrowedFd<'a>,
    /// Slots of the grant window at [`abi::layout::WINDOW`].
    pub window_slots: u32,
    /// Becomes [`abi::layout::fd::EVENT`].
    pub event: BorrowedFd<'a>,
    /// Becomes [`abi::layout::fd::EPOLL`].
    pub epoll: BorrowedFd<'a>,
    /// Becomes standard output and standard error.
    pub console: BorrowedFd<'a>,
    /// CPUs that the domain may run on, a bit each; none: all. (The agent runs wherever it is
    /// called from.)
    pub cpus: &'a [u64; CPU_WORDS],
}

/// Why a domain could not be started. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The program cannot be run as a domain.
    #[error("{program}: {error}")]
    Program {
        /// Its path.
        program: String,
        /// Why not.
        error: io::Error,
    },
    /// The program was built for another version of the monitor.
    #[error("{program}: {}; this monitor starts those of version {VERSION}", said(*version))]
    Version {
        /// Its path.
        program: String,
        /// The version that its file tells, if it does.
        version: Option<u32>,
    },
    /// The specification asks for something impossible.
    #[error("{0}")]
    Spec(&'static str),
    /// A step failed.
    #[error("{what}: {error}")]
    Step {
        /// What was being done.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
    /// The agent did not come up.
    #[error("agent: {0}")]
    Agent(#[from] AgentError),
}

/// What a program's file says of it.
fn said(version: Option<u32>) -> String {
    version.map_or_else(
        || "not the program of a domain".to_owned(),
        |version| format!("the program of a domain of version {version}"),
    )
}

/// Says what was being done when something failed.
pub(crate) trait During<T> {
    /// The error, with what was being done.
    fn during(self, what: &'static str) -> Result<T, SpawnError>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, what: &'static str) -> Result<T, SpawnError> {
        self.map_err(|error| SpawnError::Step {
            what,
            error: error.into(),
        })
    }
}
