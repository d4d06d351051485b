//! Start-up of a domain.

use crate::call::Calls;
use crate::platform::Platform;
use crate::processes::Processes;
use crate::wait::Waiter;
use serde::de::DeserializeOwned;
use shmem::domain_memory::{DomainMemory, NotADomain};
use std::cell::RefCell;
use std::convert::Infallible;
use std::io::Write;
use std::process::ExitCode;
use std::rc::Rc;

/// Reason why a domain cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program was started manually.
    #[error(transparent)]
    NotADomain(#[from] NotADomain),
    /// The start information does not match this program.
    #[error("the start information is invalid: {0}")]
    BadStartInfo(&'static str),
    /// The configuration is invalid for this program.
    #[error("the domain's configuration: {0}")]
    Config(#[from] serde_json::Error),
    /// A descriptor, a connection or a hypercall was rejected.
    #[error("{what}: {why}")]
    Refused {
        /// The attempted operation.
        what: String,
        /// The reason.
        why: std::io::Error,
    },
}

/// A started domain: its memory, its configuration and its system.
#[derive(Debug)]
pub struct Started<C, W = Waiter> {
    /// Memory of the domain.
    pub domain_memory: DomainMemory,
    /// The system on which the domain runs.
    pub platform: Rc<dyn Platform>,
    /// The domain's hypercalls, for grants.
    pub calls: Rc<RefCell<Calls>>,
    /// The domain's implementation of waiting.
    pub waiter: W,
    /// Configuration of the domain.
    pub config: C,
}

/// Reads the domain's identity and configuration. `main` must call this once, before anything else.
///
/// # Errors
/// Returns an error if the monitor did not start the program, or its start information is invalid.
pub fn start<C: DeserializeOwned>() -> Result<Started<C>, StartError> {
    shmem::install_fault_handler();
    let domain_memory = shmem::domain_memory::take()?;
    let calls = Calls::new(&domain_memory).ok_or(StartError::BadStartInfo("no call page"))?;
    let text = domain_memory.config();
    if text.len() != domain_memory.config_bytes {
        return Err(StartError::BadStartInfo("no room for the configuration"));
    }
    let mut bytes = vec![0; text.len()];
    text.read(&mut bytes)
        .map_err(|_| StartError::BadStartInfo("no configuration"))?;
    let config = serde_json::from_slice(&bytes)?;
    let fds =
        shmem::domain_memory::descriptors().ok_or(StartError::BadStartInfo("no descriptors"))?;
    let epoll = Rc::new(fds.epoll);
    let waiter = Waiter::new(Rc::clone(&epoll), fds.event, domain_memory.info.span());
    let calls = Rc::new(RefCell::new(calls));
    let platform = Processes::new(Rc::clone(&calls), domain_memory.window);
    let platform = Rc::new(platform.with_foreign(domain_memory.foreign, epoll));
    Ok(Started {
        domain_memory,
        platform,
        calls,
        waiter,
        config,
    })
}

/// Implements `main` of a domain's program: starts the domain, runs it, and reports errors.
///
/// A panic exits the process immediately, because a domain may not send itself a signal, as `abort`
/// does.
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

/// Prints a line on the domain's console. If the console is full, the line is lost: a domain does
/// not wait for the reader, and `eprintln!` would panic.
pub fn print_line(line: std::fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Exit status of a domain after a panic.
const EXIT_PANIC: i32 = 70;

/// Returns the error of a rejected operation.
pub fn rejected_error(what: &str, why: impl Into<std::io::Error>) -> StartError {
    StartError::Refused {
        what: what.to_owned(),
        why: why.into(),
    }
}
