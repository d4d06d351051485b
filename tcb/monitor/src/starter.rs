//! The first act of a domain's worker: its process is made. That takes as long as the kernel and
//! the new agent take to answer, so the main thread only says what is to be started.

use crate::event::Port;
use crate::memory::Memory;
use crate::process::Process;
use crate::spec::{DomainSpec, Start};
use sandbox::Spec;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// What a process is made from.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) start: Start,
    pub(crate) spec: Arc<DomainSpec>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) port: Arc<Port>,
    pub(crate) epoll: Arc<OwnedFd>,
}

impl Plan {
    /// Makes process and agent; also what this system could not provide.
    ///
    /// # Errors
    /// Why not, in words; nothing of it is left.
    pub(crate) fn spawn(self) -> Result<(Process, Vec<&'static str>), String> {
        let spawned = sandbox::spawn(&Spec {
            program: &self.start.program,
            args: &[],
            name: &self.spec.name,
            profile: self.spec.program.into(),
            info: self.memory.info(),
            frames: self.memory.frames(),
            mailbox: self.memory.mailbox(),
            window_slots: self.spec.window_slots,
            event: self.port.doorbell(),
            epoll: self.epoll.as_fd(),
            console: self.start.console.as_fd(),
            cpus: &self.spec.cpus,
            uid: self.start.uid,
        });
        let mut sandboxed = spawned.map_err(|error| match sandbox::probe() {
            Ok(()) => error.to_string(),
            Err(why) => format!("{error} ({why})"),
        })?;
        let missing = std::mem::take(&mut sandboxed.missing);
        let process = Process::new(sandboxed);
        let process = process.map_err(|error| format!("keeping its descriptors: {error}"))?;
        Ok((process, missing))
    }
}
