//! Creation of a domain's process, with which its worker begins. The main thread does not wait for
//! it, because the kernel and the new agent may be slow.

use crate::process::Process;
use crate::spec::StartSpec;
use crate::worker::Worker;
use sandbox::SandboxSpec;
use std::os::fd::AsFd;

impl Worker {
    /// Creates the process and its agent. Returns the process and the features that this system
    /// lacks.
    ///
    /// # Errors
    /// Returns the reason. No part of the process then remains.
    pub(crate) fn spawn(&self, start: StartSpec) -> Result<(Process, Vec<&'static str>), String> {
        let spawned = sandbox::spawn(&SandboxSpec {
            program: &start.program,
            args: &[],
            name: self.spec.name.as_str(),
            profile: (&*self.spec).into(),
            info: &self.memory.info,
            frames: &self.memory.frames,
            mailbox: self.memory.mailbox.fd(),
            window_slots: self.spec.window_slots,
            event: self.port.doorbell(),
            epoll: self.epoll.as_fd(),
            console: start.console.as_fd(),
            cpus: &self.spec.cpus,
        });
        let mut sandboxed = spawned.map_err(|error| error.to_string())?;
        let missing = std::mem::take(&mut sandboxed.missing);
        let process = Process::new(sandboxed);
        let process = process.map_err(|error| format!("keeping its descriptors: {error}"))?;
        Ok((process, missing))
    }
}
