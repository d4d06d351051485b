//! The agent: the only way in which a page enters or leaves a domain's grant window.
//!
//! The agent process shares the domain's address space and nothing else. It runs the stub
//! ([`crate::stub`]), which asks for work by a system call that its filter hands to us; we write
//! records into the argument pages (which the domain can read but not write) and answer with
//! their number. What each system call returned comes back in registers that the kernel copied.
//! So the domain can neither forge an operation nor its result, and descriptors of other domains'
//! memory exist in the agent's table alone.

use crate::notify::{Call, Listener};
use crate::process;
use crate::runs::{self, DeviceMap, PageMap, Run};
use crate::stub::{RECORD_BYTES, Record};
use abi::Slot;
use abi::layout::{PAGE, WINDOW};
use shmem::Region;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Argument pages of an agent.
pub(crate) const ARGS_PAGES: usize = 8;
/// Records of a batch.
const RECORDS: usize = ARGS_PAGES * PAGE / RECORD_BYTES;
/// The agent's descriptor numbers for memories begin here; it has none below in use.
const FIRST_NUMBER: u32 = 8;

/// Why a batch was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The agent did not answer by the deadline. What it did meanwhile is unknown: kill the domain.
    #[error("the agent did not answer in time")]
    Late,
    /// The agent has ended, and with it the domain; or it was given up before.
    #[error("the agent is gone")]
    Gone,
    /// The kernel refused one operation and the whole batch was undone: nothing changed.
    #[error("the kernel refused: {0}")]
    Refused(io::Error),
    /// The kernel refused an operation that takes pages away. Pages may be left: kill the domain.
    #[error("pages could not be taken away: {0}")]
    Stuck(io::Error),
    /// No memory was added under this number, or one was already.
    #[error("no such memory, or one is there already: {0}")]
    Memory(u32),
    /// No such slot in this window, or it occurs twice in one batch. Nothing was changed.
    #[error("no such slot, or given twice: {0}")]
    Slot(Slot),
    /// The memory has no such page. Nothing was changed.
    #[error("no such page: {0}")]
    Frame(u32),
    /// A descriptor could not be handed over: too many memories, or not a memory at all.
    #[error("the memory cannot be handed over: {0}")]
    HandOver(io::Error),
}

impl AgentError {
    /// Whether the domain must be killed: what it can still reach is not known.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Late | Self::Gone | Self::Stuck(_))
    }
}

/// How many deadlines an agent gets that only has to wait for a CPU, or for its domain to get one
/// in the middle of a fault: the machine is late then, and killing the domain would not help it.
const PATIENCE: u32 = 20;

/// A memory's descriptors in the agent's table, and its length.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// Number of the read-write one; the read-only one's is one more.
    number: u32,
    frames: u64,
}

impl Record {
    /// Of the memory whose descriptors lie at `number`.
    fn map(run: &Run, number: u32) -> Self {
        let (number, prot) = if run.first.writable {
            (number, libc::PROT_READ | libc::PROT_WRITE)
        } else {
            (number + 1, libc::PROT_READ)
        };
        // Populated: the domain's first touch takes no fault.
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
        let offset = u64::from(run.first.frame) * PAGE as u64;
        Self::mmap(run, prot, flags, u64::from(number), offset)
    }

    /// The reservation back over the run. One call that replaces: there is no moment at which
    /// no other mapping may lie in the range.
    fn unmap(run: &Run) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        Self::mmap(run, libc::PROT_NONE, flags, u64::MAX, 0)
    }

    fn mmap(run: &Run, prot: i32, flags: i32, fd: u64, offset: u64) -> Self {
        let addr = WINDOW as u64 + u64::from(run.first.slot.0) * PAGE as u64;
        let bytes = u64::from(run.pages) * PAGE as u64;
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

/// The monitor's handle of a domain's agent. One thread uses it at a time; which one may change.
#[derive(Debug)]
pub struct Agent {
    listener: Listener,
    args: Region,
    /// The call that it waits in. None: it missed a deadline, could not take pages away, or is
    /// gone: nothing is asked of it any more.
    waits_in: Option<u64>,
    /// Its process.
    pid: i32,
    window_slots: u32,
    deadline: Duration,
    memories: BTreeMap<u32, Memory>,
    free: Vec<u32>,
    next_number: u32,
}

impl Agent {
    /// How long an agent may take for one batch unless told otherwise. Time in which it has to
    /// wait for a CPU or in the kernel does not count (up to 20 times as long).
    pub const DEADLINE: Duration = Duration::from_millis(100);

    /// Takes over an agent that runs in its stub: waits for its first call.
    pub(crate) fn start(
        listener: Listener,
        args: Region,
        pid: i32,
        window_slots: u32,
    ) -> Result<Self, AgentError> {
        let mut agent = Self {
            listener,
            args,
            waits_in: None,
            pid,
            window_slots,
            deadline: Self::DEADLINE,
            memories: BTreeMap::new(),
            free: Vec::new(),
            next_number: FIRST_NUMBER,
        };
        // Its first breath may have to wait for other processes on a busy machine.
        agent.receive(10 * Self::DEADLINE)?;
        Ok(agent)
    }

    /// Closes a descriptor in the agent that it was not meant to keep.
    pub(crate) fn close(&mut self, number: u32) -> Result<(), AgentError> {
        self.must(&[Record::close(number)])
    }

    /// Changes the deadline of the calls to come.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Makes a memory known under `index`: its descriptor, and one opened read-only, from which
    /// the kernel itself would refuse a writable mapping.
    ///
    /// # Errors
    /// [`AgentError::Memory`] if the index is taken; [`AgentError::HandOver`]; the fatal ones.
    pub fn add_memory(
        &mut self,
        index: u32,
        rw: BorrowedFd<'_>,
        ro: BorrowedFd<'_>,
    ) -> Result<(), AgentError> {
        if self.memories.contains_key(&index) {
            return Err(AgentError::Memory(index));
        }
        self.waiting()?;
        let stat = rustix::fs::fstat(rw).map_err(|e| AgentError::HandOver(e.into()))?;
        let frames = u64::try_from(stat.st_size).unwrap_or(0) / PAGE as u64;
        let number = self.number();
        for (fd, at) in [(rw, number), (ro, number + 1)] {
            // Half of a pair that stays behind is replaced by the number's next user.
            self.put(fd, at).inspect_err(|_| self.free.push(number))?;
        }
        self.memories.insert(index, Memory { number, frames });
        Ok(())
    }

    /// Two numbers in the agent's table that nothing lies at.
    fn number(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next_number += 2;
            self.next_number - 2
        })
    }

    /// Hands the agent a descriptor.
    fn put(&mut self, fd: BorrowedFd<'_>, at: u32) -> Result<(), AgentError> {
        let id = self.waiting()?;
        let put = self.listener.put(id, fd, at, false);
        put.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) => self.lost(&error),
            _ => AgentError::HandOver(error),
        })
    }

    /// Maps pages of a device that is the domain's own, for reading and writing and for good. The
    /// agent keeps no descriptor of it.
    ///
    /// # Errors
    /// Any [`AgentError`]; unless it is fatal, none of the slots shows anything afterwards.
    pub fn map_device(
        &mut self,
        device: BorrowedFd<'_>,
        maps: &[DeviceMap],
    ) -> Result<(), AgentError> {
        let runs: Vec<Run> = maps.iter().map(Run::of_device).collect();
        self.check_slots(&runs)?;
        let number = self.number();
        let put = self.put(device, number);
        put.inspect_err(|_| self.free.push(number))?;
        let records: Vec<Record> = runs.iter().map(|run| Record::map(run, number)).collect();
        let mapped = self.go(&records)?;
        self.close(number)?;
        self.free.push(number);
        if let Err((_, errno)) = mapped {
            self.unmap_runs(&runs)?;
            return Err(AgentError::Refused(errno));
        }
        Ok(())
    }

    /// Forgets a memory. Pages of it that are still mapped stay: unmap them first.
    ///
    /// # Errors
    /// [`AgentError::Memory`] if there is none; the fatal ones.
    pub fn remove_memory(&mut self, index: u32) -> Result<(), AgentError> {
        let memory = self
            .memories
            .remove(&index)
            .ok_or(AgentError::Memory(index))?;
        self.free.push(memory.number);
        self.must(&[memory.number, memory.number + 1].map(Record::close))
    }

    /// Maps pages, all or none. Whatever the slots showed before is replaced.
    ///
    /// # Errors
    /// Any [`AgentError`]; unless it is fatal, none of the slots shows a page afterwards that it
    /// did not show before (a refused batch leaves the slots that it touched empty).
    pub fn map(&mut self, maps: &[PageMap]) -> Result<(), AgentError> {
        self.waiting()?;
        let runs = runs::of_maps(maps.iter().copied()).map_err(AgentError::Slot)?;
        self.check_slots(&runs)?;
        let records: Result<Vec<Record>, _> = runs.iter().map(|run| self.map_record(run)).collect();
        if let Err((at, errno)) = self.go(&records?)? {
            // The run that failed may have lost its reservation already: it is undone, too.
            self.unmap_runs(runs.get(..=at).unwrap_or(&runs))?;
            return Err(AgentError::Refused(errno));
        }
        Ok(())
    }

    /// What maps a run of a memory's pages, if it has so many.
    fn map_record(&self, run: &Run) -> Result<Record, AgentError> {
        let PageMap { memory, frame, .. } = run.first;
        let known = self.memories.get(&memory);
        let known = known.ok_or(AgentError::Memory(memory))?;
        if u64::from(frame) + u64::from(run.pages) > known.frames {
            return Err(AgentError::Frame(u64::from(frame).max(known.frames) as u32));
        }
        Ok(Record::map(run, known.number))
    }

    /// Takes the pages in these slots away. When it returns, no instruction of the domain can
    /// reach them: the kernel has flushed the translation on every CPU.
    ///
    /// # Errors
    /// Any [`AgentError`]. A slot that holds nothing is not an error.
    pub fn unmap(&mut self, slots: &[Slot]) -> Result<(), AgentError> {
        self.waiting()?;
        let runs = runs::of_slots(slots).map_err(AgentError::Slot)?;
        self.check_slots(&runs)?;
        self.unmap_runs(&runs)
    }

    fn unmap_runs(&mut self, runs: &[Run]) -> Result<(), AgentError> {
        let records: Vec<Record> = runs.iter().map(Record::unmap).collect();
        self.must(&records)
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

    fn waiting(&self) -> Result<u64, AgentError> {
        self.waits_in.ok_or(AgentError::Gone)
    }

    /// Lets the agent carry out what takes something away.
    fn must(&mut self, records: &[Record]) -> Result<(), AgentError> {
        self.go(records)?.map_err(|(_, errno)| {
            self.waits_in = None;
            AgentError::Stuck(errno)
        })
    }

    /// Lets the agent carry out records, as many at once as the argument pages hold. The inner
    /// error: how many were done before one returned something else than expected, and what that
    /// was.
    fn go(&mut self, records: &[Record]) -> Result<Result<(), (usize, io::Error)>, AgentError> {
        for (n, batch) in records.chunks(RECORDS).enumerate() {
            let id = self.waiting()?;
            for (at, record) in batch.iter().enumerate() {
                record.write(self.args.span(), at * RECORD_BYTES);
            }
            let sent = self.listener.answer(id, batch.len() as i64, 0);
            sent.map_err(|error| self.lost(&error))?;
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

    fn receive(&mut self, within: Duration) -> Result<Call, AgentError> {
        self.waits_in = None;
        let (mut wait, mut used_ns) = (within, None);
        for _ in 0..=PATIENCE {
            match self.listener.receive(wait) {
                Ok(Some(call)) => {
                    self.waits_in = Some(call.id);
                    return Ok(call);
                }
                Ok(None) if wait.is_zero() => break,
                Ok(None) => {}
                Err(error) => return Err(self.lost(&error)),
            }
            // Stopped, or it had a CPU for half of the time: then it is the agent.
            let now_ns = process::cpu_ns(self.pid);
            let worked = used_ns.replace(now_ns).is_some_and(|before: Option<u64>| {
                let worked_ns = now_ns
                    .zip(before)
                    .map(|(now, before)| now.saturating_sub(before));
                worked_ns.is_none_or(|ns| u128::from(ns) > within.as_nanos() / 2)
            });
            if worked || !matches!(process::state(self.pid), Some('R' | 'D')) {
                // One that got its CPU just now is not runnable any more because it has answered.
                wait = Duration::ZERO;
            }
        }
        Err(AgentError::Late)
    }

    fn lost(&mut self, error: &io::Error) -> AgentError {
        self.waits_in = None;
        match error.raw_os_error() {
            Some(libc::ENOENT) => AgentError::Gone,
            _ => AgentError::Late,
        }
    }
}
