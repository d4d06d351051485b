//! A domain's process, which the main thread and the domain's worker share.

use crate::device::DomainDevice;
use crate::foreign::ForeignMappings;
use crate::notices::NoticeChannel;
use crate::space::{AddressSpace, PageMap, SpaceError};
use abi::hypercall::ForeignMap;
use abi::{DomId, Slot};
use rustix::io::Errno;
use rustix::process::{PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_send_signal};
use sandbox::{AgentError, NotifyListener, Sandboxed};
use shmem::lock;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A domain's process and its agent.
#[derive(Debug)]
pub(crate) struct Process {
    /// The worker holds this while the agent works, for up to the agent's deadline: the main thread
    /// uses `try_lock` only.
    sandboxed: Mutex<Sandboxed>,
    pub(crate) pid: i32,
    pub(crate) agent_pid: i32,
    /// Readable once the process has exited.
    pub(crate) pidfd: OwnedFd,
    /// Listener for attach calls, for the main thread only, so that these calls do not wait while
    /// the worker drives the agent.
    pub(crate) attach: NotifyListener,
    /// CPU time of domain and agent as last read; it remains available after their exit.
    cpu_ns: [AtomicU64; 2],
    /// Whether the process was killed but did not exit in time.
    pub(crate) lingers: AtomicBool,
}

impl Process {
    pub(crate) fn new(sandboxed: Sandboxed) -> io::Result<Self> {
        Ok(Self {
            pid: sandboxed.pid,
            agent_pid: sandboxed.agent_pid,
            pidfd: sandboxed.pidfd.try_clone()?,
            attach: sandboxed.attach.try_clone()?,
            cpu_ns: Default::default(),
            lingers: AtomicBool::new(false),
            sandboxed: Mutex::new(sandboxed),
        })
    }

    /// Kills the domain's process without waiting for its exit. [`Process::kill_and_wait`] also
    /// kills the agent.
    pub(crate) fn send_kill(&self) {
        // The process may be dead already.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Kills domain and agent, and waits until both have exited, however long the kernel takes.
    /// Afterwards the domain can no longer access granted pages, and the worker can finish the
    /// teardown.
    pub(crate) fn kill_and_wait(&self) {
        let mut sandboxed = lock(&self.sandboxed);
        self.read_cpu(&sandboxed);
        while !sandboxed.kill() {
            self.lingers.store(true, Ordering::Relaxed);
        }
        self.lingers.store(false, Ordering::Relaxed);
    }

    /// Returns how the process exited, if that is known.
    pub(crate) fn exit_description(&self) -> Option<String> {
        self.sandboxed.try_lock().ok()?.exit_description()
    }

    /// Returns the CPU time of domain and agent in nanoseconds. While the worker is busy, returns
    /// the last reading.
    pub(crate) fn cpu(&self) -> [u64; 2] {
        if let Ok(sandboxed) = self.sandboxed.try_lock() {
            self.read_cpu(&sandboxed);
        }
        self.cpu_ns.each_ref().map(|ns| ns.load(Ordering::Relaxed))
    }

    fn read_cpu(&self, sandboxed: &Sandboxed) {
        let now = sandboxed.cpu_ns().unwrap_or_default();
        for (last, now) in self.cpu_ns.iter().zip(now) {
            last.fetch_max(now, Ordering::Relaxed);
        }
    }
}

/// The address space of a process, changed through its agent.
#[derive(Debug)]
pub(crate) struct AgentSpace {
    pub(crate) id: DomId,
    pub(crate) process: Arc<Process>,
    pub(crate) notices: NoticeChannel,
    pub(crate) foreign: ForeignMappings,
}

impl AgentSpace {
    fn call_agent(
        &mut self,
        request: impl FnOnce(&mut sandbox::Agent) -> Result<(), AgentError>,
    ) -> Result<(), SpaceError> {
        request(&mut lock(&self.process.sandboxed).agent).map_err(|error| {
            if error.is_fatal() {
                SpaceError::Lost(error.to_string())
            } else {
                SpaceError::Refused(error.to_string())
            }
        })
    }

    /// Maps the pages of one of the domain's devices into its window.
    pub(crate) fn map_device(&mut self, device: &DomainDevice) -> Result<(), SpaceError> {
        if device.pages.is_empty() {
            return Ok(());
        }
        let pages_fd = device.pages_fd.as_ref().unwrap_or(&device.fd);
        let mapped = self.call_agent(|agent| agent.map_device(pages_fd.as_fd(), &device.pages));
        mapped.map_err(|error| SpaceError::Refused(format!("a device's pages: {error}")).fatal())
    }
}

impl AddressSpace for AgentSpace {
    fn add_memory(
        &mut self,
        memory: u32,
        rw: BorrowedFd<'_>,
        ro: BorrowedFd<'_>,
    ) -> Result<(), SpaceError> {
        self.call_agent(|agent| agent.add_memory(memory, rw, ro))
    }

    fn remove_memory(&mut self, memory: u32) -> Result<(), SpaceError> {
        self.call_agent(|agent| agent.remove_memory(memory))
    }

    fn map(&mut self, maps: &[PageMap]) -> Result<(), SpaceError> {
        self.call_agent(|agent| agent.map(maps))
    }

    fn unmap(&mut self, slots: &[Slot]) -> Result<(), SpaceError> {
        self.call_agent(|agent| agent.unmap(slots))
    }

    fn map_foreign(&mut self, map: &ForeignMap) -> Result<Result<(), Errno>, SpaceError> {
        let number = i32::try_from(map.number).map_err(|_| Errno::BADF);
        let by = &self.process.pidfd;
        let file = number.and_then(|number| pidfd_getfd(by, number, PidfdGetfdFlags::empty()));
        let taken = file.and_then(|file| Ok((self.foreign.take(&file, map)?, file)));
        let (pages, file) = match taken {
            Ok(taken) => taken,
            Err(errno) => return Ok(Err(errno)),
        };
        let mapped = self.call_agent(|agent| agent.map_foreign(file.as_fd(), map.offset, &pages));
        Ok(match mapped {
            Err(SpaceError::Refused(_)) => {
                self.foreign.free(pages);
                Err(Errno::INVAL)
            }
            mapped => return mapped.map(Ok),
        })
    }

    fn unmap_foreign(&mut self, page: u64) -> Result<Result<(), Errno>, SpaceError> {
        let Some(pages) = self.foreign.at(page) else {
            return Ok(Err(Errno::NOENT));
        };
        self.call_agent(|agent| agent.unmap_foreign(&pages))?;
        self.foreign.free(pages);
        Ok(Ok(()))
    }

    fn has_descriptor(&self, number: i32) -> bool {
        let path = format!("/proc/{}/fd/{number}", self.process.pid);
        // An entry that cannot be read counts as present.
        match std::fs::symlink_metadata(path) {
            Err(error) => error.kind() != io::ErrorKind::NotFound,
            Ok(_) => true,
        }
    }

    fn destroy(&mut self, why: &str) {
        // Report the reason before the main thread can notice the exit.
        self.notices.report_kill(self.id, format!("killed: {why}"));
        self.process.send_kill();
        self.process.kill_and_wait();
    }
}
