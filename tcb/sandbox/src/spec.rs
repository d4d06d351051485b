//! The specification of a domain to start, and the errors of a start.

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
    /// Its arguments, without argument 0.
    pub args: &'a [&'a str],
    /// The domain's name: argument 0, as shown by `ps`.
    pub name: &'a str,
    /// Selects the filter.
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
    /// CPUs that the domain may run on, one bit each; all zero: every CPU. (The agent runs on its
    /// caller's CPU.)
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
        /// The reason.
        error: io::Error,
    },
    /// The program was built for another version of the monitor.
    #[error("{program}: {}; this monitor starts only version {VERSION}", said(*version))]
    Version {
        /// Its path.
        program: String,
        /// The version that its file states, if any.
        version: Option<u32>,
    },
    /// The specification is impossible.
    #[error("{0}")]
    Spec(&'static str),
    /// A step failed.
    #[error("{what}: {error}")]
    Step {
        /// The step.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// The agent did not start.
    #[error("agent: {0}")]
    Agent(#[from] AgentError),
}

/// Describes a program by the version in its file.
fn said(version: Option<u32>) -> String {
    version.map_or_else(
        || "not the program of a domain".to_owned(),
        |version| format!("the program of a domain of version {version}"),
    )
}

/// Adds the failed step to an error.
pub(crate) trait StepContext<T> {
    /// Converts an error, adding the step that failed.
    fn during(self, what: &'static str) -> Result<T, SpawnError>;
}

impl<T, E: Into<io::Error>> StepContext<T> for Result<T, E> {
    fn during(self, what: &'static str) -> Result<T, SpawnError> {
        self.map_err(|error| SpawnError::Step {
            what,
            error: error.into(),
        })
    }
}
