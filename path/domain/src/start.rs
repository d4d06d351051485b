//! From the first instruction to a ready domain.

use crate::call::Calls;
use crate::wait::Waiter;
use abi::layout::info;
use serde::de::DeserializeOwned;
use shmem::home::{Home, NotADomain};

/// Why a domain did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program was started by hand.
    #[error(transparent)]
    NotADomain(#[from] NotADomain),
    /// The start information does not fit this program.
    #[error("the start information is damaged: {0}")]
    Damaged(&'static str),
    /// The configuration is not what this program understands.
    #[error("the domain's configuration: {0}")]
    Config(#[from] serde_json::Error),
    /// A descriptor, a connection or a hypercall was refused.
    #[error("{what}: {why}")]
    Refused {
        /// What was tried.
        what: String,
        /// What the answer was.
        why: std::io::Error,
    },
}

/// A domain that has found its memory, its configuration and its monitor.
#[derive(Debug)]
pub struct Started<C> {
    /// Its memory.
    pub home: Home,
    /// Its hypercalls.
    pub calls: Calls,
    /// Its bed.
    pub waiter: Waiter,
    /// Its configuration.
    pub config: C,
}

/// Finds out who we are and what to do. Called once, first thing in `main`.
///
/// # Errors
/// The program was not started by the monitor, or was told nonsense.
pub fn start<C: DeserializeOwned>() -> Result<Started<C>, StartError> {
    shmem::install_fault_handler();
    let home = shmem::home::take()?;
    let calls = Calls::new(&home).ok_or(StartError::Damaged("no call page"))?;
    let text = home
        .info
        .at(info::CONFIG, home.config_bytes)
        .ok_or(StartError::Damaged("no room for the configuration"))?;
    let mut bytes = vec![0; text.len()];
    text.read(&mut bytes).map_err(|_| StartError::Damaged("no configuration"))?;
    let config = serde_json::from_slice(&bytes)?;
    let fds = shmem::home::descriptors().ok_or(StartError::Damaged("no descriptors"))?;
    let waiter = Waiter::new(fds.epoll, fds.event, home.info.span());
    Ok(Started { home, calls, waiter, config })
}
