//! The start of a domain: an unmodified static program, confined before its first instruction.
//!
//! The order matters, because a forked process inherits filters, and only one filter of a chain may
//! have a listener:
//!
//! 1. a process in new namespaces waits until it is traced, and then executes the program;
//! 2. while it is stopped in `exec`, injected system calls map and seal the stub, the argument
//!    pages and the domain's regions, reserve the window, and close all other descriptors;
//! 3. it forks a process that shares its memory. The new process, D, becomes the domain, and the
//!    first one, A, its agent. A is the first process of the PID namespace, so D dies with it;
//! 4. D receives a separate user and limits, drops its capabilities, and installs its filter, whose
//!    listener the monitor takes;
//! 5. A drops its capabilities and descriptors, installs its filter, and continues in the stub;
//! 6. D continues at the program's entry, with the registers that `exec` set.

use crate::elf::ElfProgram;
use crate::sandboxed::Sandboxed;
use crate::spec::{SandboxSpec, SpawnError};
use crate::start::StartingProcess;
use abi::PAGE;
use abi::layout::{FRAMES_MAX, INFO, MAILBOX, WINDOW_SLOTS_MAX};
use abi::version::VERSION;
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Checks whether a program's file can run as a domain of this monitor. The monitor does this
/// before it kills a running domain to replace it.
///
/// # Errors
/// Returns [`SpawnError::Program`] or [`SpawnError::Version`].
pub fn check(program: &Path) -> Result<(), SpawnError> {
    open(program).map(drop)
}

fn open(program: &Path) -> Result<(ElfProgram, File), SpawnError> {
    let opened = File::open(program).and_then(|file| Ok((ElfProgram::read(&file)?, file)));
    let (found, file) = opened.map_err(|error| SpawnError::Program {
        program: program.display().to_string(),
        error,
    })?;
    match found.version() {
        Some(VERSION) => Ok((found, file)),
        version => Err(SpawnError::Version {
            program: program.display().to_string(),
            version,
        }),
    }
}

/// Starts a domain and its agent. May wait for the kernel and the agent. Starts are serialized. The
/// calling thread must not exit meanwhile.
///
/// # Errors
/// Returns any [`SpawnError`]; in this case, no part of the domain remains.
pub fn spawn(spec: &SandboxSpec<'_>) -> Result<Sandboxed, SpawnError> {
    if spec.window_slots > WINDOW_SLOTS_MAX {
        return Err(SpawnError::Spec("a grant window has at most 1048576 slots"));
    }
    if spec.frames.span().len() > FRAMES_MAX as usize * PAGE
        || spec.info.span().len() > MAILBOX - INFO
    {
        return Err(SpawnError::Spec("a domain has at most 1048576 frames"));
    }
    let (program, file) = open(spec.program)?;
    // Without this lock, a process that is forked for another start would inherit this start's
    // descriptors.
    static STARTING: Mutex<()> = Mutex::new(());
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut start = exec_and_lay_out(spec, &file)?;
    let domain = start.fork()?;
    let port = start.confine_domain(&domain, spec, &program)?;
    start.confine_agent(domain, port, spec)
}

/// Executes steps 1 and 2. The kernel loads a program at a random address of a range that may
/// contain a domain's fixed ranges (16 TiB around 0x5d55_5555_4000 with 32 random bits). A process
/// that occupies these ranges is replaced by a new one.
fn exec_and_lay_out(spec: &SandboxSpec<'_>, file: &File) -> Result<StartingProcess, SpawnError> {
    const TRIES: usize = 8;
    for _ in 1..TRIES {
        let mut start = StartingProcess::exec(spec, file)?;
        match start.lay_out(spec) {
            Err(SpawnError::Step { error, .. }) if error.raw_os_error() == Some(libc::EEXIST) => {}
            result => return result.map(|()| start),
        }
    }
    let mut start = StartingProcess::exec(spec, file)?;
    start.lay_out(spec).map(|()| start)
}
