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
pub struct SandboxSpec<'a> {
    /// The program: a static ELF.
    pub program: &'a Path,
    /// Its arguments, without argument 0.
    pub args: &'a [&'a str],
    /// The domain's name, which is argument 0 and the name in `ps`.
    pub name: &'a str,
    /// The profile, which selects the filter.
    pub profile: Profile,
    /// The information region, mapped read-write at [`abi::layout::INFO`].
    pub info: &'a Region,
    /// The domain's own page frames, mapped read-write at [`abi::layout::FRAMES`].
    pub frames: &'a Region,
    /// The mailbox, mapped read-write at [`abi::layout::MAILBOX`].
    pub mailbox: BorrowedFd<'a>,
    /// The number of slots of the grant window at [`abi::layout::WINDOW`].
    pub window_slots: u32,
    /// The eventfd, which becomes [`abi::layout::fd::EVENT`].
    pub event: BorrowedFd<'a>,
    /// The epoll set, which becomes [`abi::layout::fd::EPOLL`].
    pub epoll: BorrowedFd<'a>,
    /// The console, which becomes standard output and standard error.
    pub console: BorrowedFd<'a>,
    /// CPUs on which the domain may run, one bit each; all zero: every CPU. The agent runs on its
    /// caller's CPU.
    pub cpus: &'a [u64; CPU_WORDS],
}

/// Error: a domain could not be started. No part of it remains.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The program cannot run as a domain.
    #[error("{program}: {error}")]
    Program {
        /// Its path.
        program: String,
        /// The reason.
        error: io::Error,
    },
    /// The program was built for another version of the monitor.
    #[error("{program}: {}; this monitor starts only version {VERSION}", describe(*version))]
    Version {
        /// Its path.
        program: String,
        /// The version in its file, if any.
        version: Option<u32>,
    },
    /// The specification is invalid.
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

/// Returns a description of a program by the version in its file.
fn describe(version: Option<u32>) -> String {
    version.map_or_else(
        || "not the program of a domain".to_owned(),
        |version| format!("the program of a domain of version {version}"),
    )
}

/// Adds the failed step to an error.
pub(crate) trait StepContext<T> {
    /// Converts an error, and adds the step that failed.
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
