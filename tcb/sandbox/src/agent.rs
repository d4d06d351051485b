//! The agent, which maps all pages into a domain's grant window and unmaps them.
//!
//! The agent's process shares only the domain's address space. It runs the stub ([`crate::stub`]),
//! which requests work by a system call that the agent's filter forwards to the monitor. The
//! monitor writes records into the argument pages, which the domain can read but not write, and
//! answers with the number of records. The stub returns the results of the system calls in
//! registers, which the kernel copies. So the domain can forge neither an operation nor its result.
//! Only the agent's table contains descriptors of other domains' memory.

use crate::notify::{NotifyListener, PendingCall};
use crate::process;
use crate::runs::{self, DeviceMap, PageMap, Run};
use crate::stub::{RECORD_BYTES, StubRecord};
use abi::Slot;
use abi::layout::{FOREIGN, PAGE, WINDOW};
use shmem::Region;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The number of an agent's argument pages.
pub(crate) const ARGS_PAGES: usize = 8;
/// Records per batch.
const RECORDS: usize = ARGS_PAGES * PAGE / RECORD_BYTES;
/// The agent's first descriptor number for memories. Lower numbers are unused.
const FIRST_NUMBER: u32 = 8;

/// Failure of a batch.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The agent missed the deadline. Its changes are unknown, so the domain must be killed.
    #[error("the agent did not answer in time")]
    TimedOut,
    /// The agent and its domain are dead, or an earlier batch failed fatally.
    #[error("the agent has ended")]
    Exited,
    /// The kernel refused an operation, and the whole batch was undone.
    #[error("the kernel refused: {0}")]
    Refused(io::Error),
    /// The kernel refused to unmap pages. Some may still be mapped, so the domain must be killed.
    #[error("pages could not be unmapped: {0}")]
    UnmapFailed(io::Error),
    /// The memory does not exist, or its number is already in use.
    #[error("memory {0} does not exist, or its number is in use")]
    Memory(u32),
    /// The slot is outside of the window, or occurs twice in the batch. Nothing has changed.
    #[error("slot {0} is outside of the window, or occurs twice")]
    Slot(Slot),
    /// The memory has no page with this number. Nothing has changed.
    #[error("the memory has no page {0}")]
    Frame(u32),
    /// A descriptor could not be passed to the agent: the agent has too many memories, or the
    /// descriptor is not one of a memory.
    #[error("the memory cannot be passed to the agent: {0}")]
    HandOver(io::Error),
}

impl AgentError {
    /// Returns whether the domain must be killed, because the pages that it can access are unknown.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::TimedOut | Self::Exited | Self::UnmapFailed(_))
    }
}

/// The number of deadlines after which the monitor gives up an agent that only waits for a CPU, or
/// for a page fault of its domain while the domain lacks a CPU. In these cases the machine is
/// overloaded, and killing the domain would not help.
const DEADLINES_MAX: u32 = 20;

/// A memory's descriptors in the agent's table, and its length.
#[derive(Clone, Copy, Debug)]
struct AgentMemory {
    /// The number of the read-write descriptor. The next number is that of the read-only one.
    number: u32,
    frames: u64,
}

impl StubRecord {
    /// Returns a record that maps a run of the memory whose descriptors begin at `number`.
    fn map(run: &Run, number: u32) -> Self {
        let (number, prot) = if run.first.writable {
            (number, libc::PROT_READ | libc::PROT_WRITE)
        } else {
            (number + 1, libc::PROT_READ)
        };
        // MAP_POPULATE prevents a page fault at the domain's first access.
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
        let offset = u64::from(run.first.frame) * PAGE as u64;
        let slot = run.first.slot.0;
        let slots = slot..slot + run.pages;
        Self::mmap(WINDOW, &slots, prot, flags, u64::from(number), offset)
    }

    /// Returns a record that maps a file, starting at `offset`, at pages of the range for foreign
    /// memory. The mapping is not populated, because the shim does not access most of a virtual
    /// machine's memory.
    fn map_foreign(pages: &Range<u32>, number: u32, offset: u64) -> Self {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        Self::mmap(FOREIGN, pages, prot, flags, number.into(), offset)
    }

    /// Returns a record that replaces the mapping of a run by the reservation.
    fn unmap(run: &Run) -> Self {
        let slot = run.first.slot.0;
        Self::reserve(WINDOW, &(slot..slot + run.pages))
    }

    /// Returns a record that replaces the mapping of pages by a reservation. A single call does
    /// this, so that no other mapping can be placed in the range meanwhile.
    fn reserve(base: usize, pages: &Range<u32>) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        Self::mmap(base, pages, libc::PROT_NONE, flags, u64::MAX, 0)
    }

    fn mmap(base: usize, pages: &Range<u32>, prot: i32, flags: i32, fd: u64, offset: u64) -> Self {
        let addr = base as u64 + u64::from(pages.start) * PAGE as u64;
        let bytes = pages.len() as u64 * PAGE as u64;
        Self {
            nr: libc::SYS_mmap,
            args: [addr, bytes, prot as u64, flags as u64, fd, offset],
            expected: addr as i64,
        }
    }

    fn close(number: u32) -> Self {
        Self {
            nr: libc::SYS_close,
            args: [u64::from(number), 0, 0, 0, 0, 0],
            expected: 0,
        }
    }
}

/// The monitor's handle to a domain's agent. Any thread may use it, but only one at a time.
#[derive(Debug)]
pub struct Agent {
    listener: NotifyListener,
    args: Region,
    /// The call in which the agent waits. `None` if the agent missed a deadline, failed to unmap
    /// pages, or has exited; it then receives no more work.
    pending_call: Option<u64>,
    /// The agent's process id.
    pid: i32,
    window_slots: u32,
    deadline: Duration,
    memories: BTreeMap<u32, AgentMemory>,
    free: Vec<u32>,
    next_number: u32,
}

impl Agent {
    /// The default deadline of a batch. Time for which the agent waits for a CPU or in the kernel
    /// does not count, up to 20 times the deadline.
    pub const DEADLINE: Duration = Duration::from_millis(100);

    /// Creates the handle to an agent that runs in its stub, and waits for the agent's first call.
    pub(crate) fn start(
        listener: NotifyListener,
        args: Region,
        pid: i32,
        window_slots: u32,
    ) -> Result<Self, AgentError> {
        let mut agent = Self {
            listener,
            args,
            pending_call: None,
            pid,
            window_slots,
            deadline: Self::DEADLINE,
            memories: BTreeMap::new(),
            free: Vec::new(),
            next_number: FIRST_NUMBER,
        };
        // The first call may be delayed by other processes on a busy machine.
        agent.receive(10 * Self::DEADLINE)?;
        Ok(agent)
    }

    /// Closes an inherited descriptor of the agent.
    pub(crate) fn close(&mut self, number: u32) -> Result<(), AgentError> {
        self.execute_required(&[StubRecord::close(number)])
    }

    /// Sets the deadline of later batches.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Registers a memory under `index`, with a read-write descriptor and a read-only one, for
    /// which the kernel permits no writable mapping.
    ///
    /// # Errors
    /// Returns [`AgentError::Memory`] if the index is in use, [`AgentError::HandOver`], or a fatal
    /// error.
    pub fn add_memory(
        &mut self,
        index: u32,
        rw: BorrowedFd<'_>,
        ro: BorrowedFd<'_>,
    ) -> Result<(), AgentError> {
        if self.memories.contains_key(&index) {
            return Err(AgentError::Memory(index));
        }
        self.current_call()?;
        let stat = rustix::fs::fstat(rw).map_err(|e| AgentError::HandOver(e.into()))?;
        let frames = u64::try_from(stat.st_size).unwrap_or(0) / PAGE as u64;
        let number = self.number();
        for (fd, at) in [(rw, number), (ro, number + 1)] {
            // If the second descriptor cannot be passed, the next memory with this number replaces
            // the first descriptor.
            self.put(fd, at).inspect_err(|_| self.free.push(number))?;
        }
        self.memories.insert(index, AgentMemory { number, frames });
        Ok(())
    }

    /// Allocates two adjacent numbers of the agent's table, and returns the first.
    fn number(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next_number += 2;
            self.next_number - 2
        })
    }

    /// Passes a descriptor to the agent, under the number `at`.
    fn put(&mut self, fd: BorrowedFd<'_>, at: u32) -> Result<(), AgentError> {
        let id = self.current_call()?;
        let put = self.listener.add_descriptor(id, fd, at, false);
        put.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) => self.fail(&error),
            _ => AgentError::HandOver(error),
        })
    }

    /// Maps pages of one of the domain's devices permanently, for reading and writing. The agent
    /// keeps no descriptor of the device.
    ///
    /// # Errors
    /// Returns any [`AgentError`]; unless it is fatal, the slots are empty afterwards.
    pub fn map_device(
        &mut self,
        device: BorrowedFd<'_>,
        maps: &[DeviceMap],
    ) -> Result<(), AgentError> {
        let runs: Vec<Run> = maps.iter().map(Run::of_device).collect();
        self.check_slots(&runs)?;
        let maps = |number| {
            runs.iter()
                .map(|run| StubRecord::map(run, number))
                .collect()
        };
        let undo: Vec<StubRecord> = runs.iter().map(StubRecord::unmap).collect();
        self.map_through(device, maps, &undo)
    }

    /// Maps a file, starting at `offset`, at pages of the range for foreign memory, for reading and
    /// writing. The agent keeps no descriptor of the file.
    ///
    /// # Errors
    /// Returns any [`AgentError`]; unless it is fatal, the pages are unmapped afterwards.
    pub fn map_foreign(
        &mut self,
        file: BorrowedFd<'_>,
        offset: u64,
        pages: &Range<u32>,
    ) -> Result<(), AgentError> {
        let map = |number| vec![StubRecord::map_foreign(pages, number, offset)];
        self.map_through(file, map, &[StubRecord::reserve(FOREIGN, pages)])
    }

    /// Unmaps foreign memory; `pages` must be the range of one mapping. Each batch unmaps up to 1
    /// GiB, and has the usual deadline.
    ///
    /// # Errors
    /// Returns any [`AgentError`].
    pub fn unmap_foreign(&mut self, pages: &Range<u32>) -> Result<(), AgentError> {
        const GIB: u32 = (1 << 30) / PAGE as u32;
        let mut rest = pages.clone();
        while !rest.is_empty() {
            let end = rest.end.min((rest.start / GIB + 1) * GIB);
            self.execute_required(&[StubRecord::reserve(FOREIGN, &(rest.start..end))])?;
            rest.start = end;
        }
        Ok(())
    }

    /// Passes a descriptor to the agent, executes the records that map its file, and closes the
    /// agent's copy.
    fn map_through(
        &mut self,
        fd: BorrowedFd<'_>,
        records: impl FnOnce(u32) -> Vec<StubRecord>,
        undo: &[StubRecord],
    ) -> Result<(), AgentError> {
        let number = self.number();
        let put = self.put(fd, number);
        put.inspect_err(|_| self.free.push(number))?;
        let mapped = self.execute(&records(number))?;
        self.close(number)?;
        self.free.push(number);
        if let Err((_, errno)) = mapped {
            self.execute_required(undo)?;
            return Err(AgentError::Refused(errno));
        }
        Ok(())
    }

    /// Removes a memory. Pages of the memory that are mapped stay mapped, so the caller must unmap
    /// them first.
    ///
    /// # Errors
    /// Returns [`AgentError::Memory`] if it does not exist, or a fatal error.
    pub fn remove_memory(&mut self, index: u32) -> Result<(), AgentError> {
        let memory = self
            .memories
            .remove(&index)
            .ok_or(AgentError::Memory(index))?;
        self.free.push(memory.number);
        self.execute_required(&[memory.number, memory.number + 1].map(StubRecord::close))
    }

    /// Maps pages, all or none, in place of the slots' previous pages.
    ///
    /// # Errors
    /// Returns any [`AgentError`]. Unless it is fatal, no slot has a new page afterwards; a
    /// rejected batch leaves the slots that it has changed empty.
    pub fn map(&mut self, maps: &[PageMap]) -> Result<(), AgentError> {
        self.current_call()?;
        let runs = runs::of_maps(maps.iter().copied()).map_err(AgentError::Slot)?;
        self.check_slots(&runs)?;
        let records: Result<Vec<StubRecord>, _> =
            runs.iter().map(|run| self.map_record(run)).collect();
        if let Err((at, errno)) = self.execute(&records?)? {
            // The failed run may already have lost its reservation, so it is also undone.
            self.unmap_runs(runs.get(..=at).unwrap_or(&runs))?;
            return Err(AgentError::Refused(errno));
        }
        Ok(())
    }

    /// Returns the record that maps a run of a memory's pages, if the memory has these pages.
    fn map_record(&self, run: &Run) -> Result<StubRecord, AgentError> {
        let PageMap { memory, frame, .. } = run.first;
        let known = self.memories.get(&memory);
        let known = known.ok_or(AgentError::Memory(memory))?;
        if u64::from(frame) + u64::from(run.pages) > known.frames {
            return Err(AgentError::Frame(u64::from(frame).max(known.frames) as u32));
        }
        Ok(StubRecord::map(run, known.number))
    }

    /// Unmaps the pages in these slots. When this returns, no instruction of the domain can access
    /// them, because the kernel has flushed the translations on every CPU.
    ///
    /// # Errors
    /// Returns any [`AgentError`]. An empty slot is not an error.
    pub fn unmap(&mut self, slots: &[Slot]) -> Result<(), AgentError> {
        self.current_call()?;
        let runs = runs::of_slots(slots).map_err(AgentError::Slot)?;
        self.check_slots(&runs)?;
        self.unmap_runs(&runs)
    }

    fn unmap_runs(&mut self, runs: &[Run]) -> Result<(), AgentError> {
        let records: Vec<StubRecord> = runs.iter().map(StubRecord::unmap).collect();
        self.execute_required(&records)
    }

    fn check_slots(&self, runs: &[Run]) -> Result<(), AgentError> {
        for run in runs {
            let slot = run.first.slot.0;
            if u64::from(slot) + u64::from(run.pages) > u64::from(self.window_slots) {
                return Err(AgentError::Slot(Slot(slot.max(self.window_slots))));
            }
        }
        Ok(())
    }

    fn current_call(&self) -> Result<u64, AgentError> {
        self.pending_call.ok_or(AgentError::Exited)
    }

    /// Makes the agent execute records that unmap pages or close descriptors. A failure is fatal.
    fn execute_required(&mut self, records: &[StubRecord]) -> Result<(), AgentError> {
        self.execute(records)?.map_err(|(_, errno)| {
            self.pending_call = None;
            AgentError::UnmapFailed(errno)
        })
    }

    /// Makes the agent execute records, in batches that fit the argument pages. The inner error is
    /// the number of records executed before one returned an unexpected result, and that result.
    fn execute(
        &mut self,
        records: &[StubRecord],
    ) -> Result<Result<(), (usize, io::Error)>, AgentError> {
        for (n, batch) in records.chunks(RECORDS).enumerate() {
            let id = self.current_call()?;
            for (at, record) in batch.iter().enumerate() {
                record.write(self.args.span(), at * RECORD_BYTES);
            }
            let sent = self.listener.answer(id, batch.len() as i64, 0);
            sent.map_err(|error| self.fail(&error))?;
            let [done, result, ..] = self.receive(self.deadline)?.args;
            let done = usize::try_from(done).unwrap_or(usize::MAX);
            if done < batch.len() {
                let errno = i32::try_from((result as i64).wrapping_neg()).unwrap_or(libc::EIO);
                let error = io::Error::from_raw_os_error(errno);
                return Ok(Err((n * RECORDS + done, error)));
            }
        }
        Ok(Ok(()))
    }

    fn receive(&mut self, within: Duration) -> Result<PendingCall, AgentError> {
        self.pending_call = None;
        let (mut wait, mut used_ns) = (within, None);
        for _ in 0..=DEADLINES_MAX {
            match self.listener.receive(wait) {
                Ok(Some(call)) => {
                    self.pending_call = Some(call.id);
                    return Ok(call);
                }
                Ok(None) if wait.is_zero() => break,
                Ok(None) => {}
                Err(error) => return Err(self.fail(&error)),
            }
            // If the agent is stopped, or had a CPU for half of the time, the delay is the agent's
            // fault.
            let now_ns = process::cpu_ns(self.pid);
            let worked = used_ns.replace(now_ns).is_some_and(|before: Option<u64>| {
                let worked_ns = now_ns
                    .zip(before)
                    .map(|(now, before)| now.saturating_sub(before));
                worked_ns.is_none_or(|ns| u128::from(ns) > within.as_nanos() / 2)
            });
            if worked || !matches!(process::state(self.pid), Some('R' | 'D')) {
                // An agent that has just received a CPU and answered is also not runnable, so check
                // once more.
                wait = Duration::ZERO;
            }
        }
        Err(AgentError::TimedOut)
    }

    fn fail(&mut self, error: &io::Error) -> AgentError {
        self.pending_call = None;
        match error.raw_os_error() {
            Some(libc::ENOENT) => AgentError::Exited,
            _ => AgentError::TimedOut,
        }
    }
}
