//! The start of a domain: an unmodified static program, confined before its first instruction.
//!
//! The order matters (a filter is inherited by a fork, and only one filter of a chain may have a
//! listener):
//!
//! 1. a process in new namespaces waits until it is traced, then executes the program;
//! 2. at the stop in `exec`, by injected system calls: stub, argument pages, the domain's own
//!    regions and the reservation of the window are mapped and sealed, surplus descriptors closed;
//! 3. it forks a process that shares its memory: that one, D, becomes the domain, the first one,
//!    A, its agent. As A is the first process of the PID namespace, its end is D's end;
//! 4. D: own user, limits, no capabilities, its filter, whose listener the monitor takes;
//! 5. A: no capabilities, no descriptors, its filter, and off into the stub;
//! 6. D: off to the program's entry, with the registers that `exec` gave it.

use crate::elf::Program;
use crate::sandboxed::Sandboxed;
use crate::spec::{SpawnError, Spec};
use crate::start::Start;
use abi::PAGE;
use abi::layout::{FRAMES_MAX, INFO, MAILBOX, WINDOW_SLOTS_MAX};
use abi::version::VERSION;
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Whether a program can run as a domain of this monitor, as far as its file tells: asked before
/// another one is ended for it.
///
/// # Errors
/// [`SpawnError::Program`], [`SpawnError::Version`].
pub fn check(program: &Path) -> Result<(), SpawnError> {
    open(program).map(drop)
}

fn open(program: &Path) -> Result<(Program, File), SpawnError> {
    let opened = File::open(program).and_then(|file| Ok((Program::read(&file)?, file)));
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

/// Starts a domain and its agent, which may take until the kernel and the agent have answered: one
/// start at a time, others wait. The calling thread must not end meanwhile.
///
/// # Errors
/// Any [`SpawnError`]; then nothing of the domain is left.
pub fn spawn(spec: &Spec<'_>) -> Result<Sandboxed, SpawnError> {
    if spec.window_slots > WINDOW_SLOTS_MAX {
        return Err(SpawnError::Spec("a grant window has at most 1048576 slots"));
    }
    if spec.frames.span().len() > FRAMES_MAX as usize * PAGE
        || spec.info.span().len() > MAILBOX - INFO
    {
        return Err(SpawnError::Spec("a domain has at most 1048576 frames"));
    }
    let (program, file) = open(spec.program)?;
    // A process forked meanwhile by another start would hold descriptors of this one's.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut start = laid_out(spec, &file)?;
    let domain = start.fork()?;
    let port = start.confine_domain(&domain, spec, &program)?;
    start.confine_agent(domain, port, spec)
}

/// Steps 1 and 2. Where the kernel puts a program is random, over a range that may contain ours
/// (16 TiB around 0x5d55_5555_4000 with 32 random bits): one that lies in our way is started anew.
fn laid_out(spec: &Spec<'_>, file: &File) -> Result<Start, SpawnError> {
    const TRIES: usize = 8;
    for _ in 1..TRIES {
        let mut start = Start::exec(spec, file)?;
        match start.lay_out(spec) {
            Err(SpawnError::Step { error, .. }) if error.raw_os_error() == Some(libc::EEXIST) => {}
            result => return result.map(|()| start),
        }
    }
    let mut start = Start::exec(spec, file)?;
    start.lay_out(spec).map(|()| start)
}
