//! From the first instruction to a ready domain.

use crate::call::Calls;
use crate::platform::Platform;
use crate::processes::Processes;
use crate::wait::Waiter;
use serde::de::DeserializeOwned;
use shmem::home::{Home, NotADomain};
use std::cell::RefCell;
use std::convert::Infallible;
use std::io::Write;
use std::process::ExitCode;
use std::rc::Rc;

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

/// A domain that has found its memory, its configuration and its system.
#[derive(Debug)]
pub struct Started<C, W = Waiter> {
    /// Its memory.
    pub home: Home,
    /// The system that it runs on.
    pub platform: Rc<dyn Platform>,
    /// Its hypercalls, for grants.
    pub calls: Rc<RefCell<Calls>>,
    /// How it waits.
    pub waiter: W,
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
    let text = home.config();
    if text.len() != home.config_bytes {
        return Err(StartError::Damaged("no room for the configuration"));
    }
    let mut bytes = vec![0; text.len()];
    text.read(&mut bytes)
        .map_err(|_| StartError::Damaged("no configuration"))?;
    let config = serde_json::from_slice(&bytes)?;
    let fds = shmem::home::descriptors().ok_or(StartError::Damaged("no descriptors"))?;
    let waiter = Waiter::new(fds.epoll, fds.event, home.info.span());
    let calls = Rc::new(RefCell::new(calls));
    let platform = Rc::new(Processes::new(Rc::clone(&calls), home.window));
    Ok(Started {
        home,
        platform,
        calls,
        waiter,
        config,
    })
}

/// What the `main` of a domain's program is: start, run, and say why if it could not.
///
/// A panic ends the process at once: a domain has no right to signal itself, as `abort` would.
pub fn main<C: DeserializeOwned>(
    run: impl FnOnce(Started<C>) -> Result<Infallible, StartError>,
) -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        print_line(format_args!("{panic}"));
        std::process::exit(EXIT_PANIC);
    }));
    match start().and_then(run) {
        Ok(never) => match never {},
        Err(error) => {
            print_line(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line on the domain's console. One that is full loses it: a domain does not wait for who
/// reads, and `eprintln!` would panic.
pub fn print_line(line: std::fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Exit status of a domain with a bug.
const EXIT_PANIC: i32 = 70;

/// What was refused, and why.
pub fn refused(what: &str, why: impl Into<std::io::Error>) -> StartError {
    StartError::Refused {
        what: what.to_owned(),
        why: why.into(),
    }
}
