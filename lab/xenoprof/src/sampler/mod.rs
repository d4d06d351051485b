//! The sampler: one per host kernel, with one ring per CPU.
//!
//! The kernel writes samples and side-band records (new processes, names, mappings, exits) into the
//! rings; one reader empties them. The rings may split the side-band records and samples of one
//! process, so records are sorted by time before they are used. The kernel's call chains end where
//! code lacks frame pointers; copies of the stacks complete them.

pub(crate) mod elf;
pub mod parse;
mod unwind;

use crate::event::Event;
use crate::model::Tier;
use elf::Foreign;
use parse::{Parsed, PerfRecord};
use perf_event::data::endian::Native;
use perf_event::data::parse::ParseConfig;
use perf_event::{Builder, Clock, SampleFlag, Sampler as Ring};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;
use unwind::{REGISTERS, Unwinder, UserStack};

/// The kernel's number for a sample among records.
const SAMPLE: u32 = 9;
/// Maximum frames of a call stack, including both its kernel and its user part.
const STACK_MAX: u16 = 127;

/// Processes to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every process and the kernel. Needs privilege.
    Machine,
    /// User code of this thread and of processes that it starts later.
    Own,
}

impl Scope {
    /// Returns the bytes of a ring: half a second of samples at 1 kHz, or the maximum that an
    /// unprivileged user may lock.
    const fn ring_bytes(self) -> usize {
        match self {
            Self::Machine => 16 << 20,
            Self::Own => 1 << 19,
        }
    }

    /// Returns the maximum bytes of a user stack in a sample, a multiple of 8.
    const fn stack_bytes(self) -> u32 {
        match self {
            Self::Machine => 32 << 10,
            Self::Own => 8 << 10,
        }
    }
}

/// Open rings.
pub struct Sampler {
    rings: Vec<(u32, Ring)>,
    config: ParseConfig<Native>,
    unwinder: Unwinder,
    tier: Tier,
}

/// Error of opening the sampler.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// The user lacks the privilege.
    #[error(
        "sampling every process needs privileges (CAP_PERFMON, or perf_event_paranoid of at most \
         0): run as root, or profile a command of your own with `grantway prof record -- CMD`"
    )]
    Denied,
    /// Another error.
    #[error("CPU {cpu}: {error}")]
    Cpu {
        /// CPU.
        cpu: u32,
        /// Error of the system call.
        error: io::Error,
    },
}

impl Sampler {
    /// Opens a ring on each CPU. Sampling begins with [`Sampler::start`].
    ///
    /// # Errors
    /// Returns an error if the kernel rejects a counter.
    pub fn open(
        event: Event,
        tier: Tier,
        scope: Scope,
        period: u64,
        cpus: &[u32],
    ) -> Result<Self, SamplerError> {
        let mut rings = Vec::new();
        let config = ParseConfig::from(*counter(event, scope, period).attrs());
        for &cpu in cpus {
            let ring = ring(event, scope, period, cpu).map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => SamplerError::Denied,
                _ => SamplerError::Cpu { cpu, error },
            })?;
            rings.push((cpu, ring));
        }
        let tier = match scope {
            Scope::Machine => tier,
            Scope::Own => Tier::OwnUser,
        };
        Ok(Self {
            rings,
            config,
            unwinder: Unwinder::default(),
            tier,
        })
    }

    /// Returns the quality of the event.
    #[must_use]
    pub const fn tier(&self) -> Tier {
        self.tier
    }

    /// Starts sampling.
    ///
    /// # Errors
    /// Returns an error if the kernel rejects the request.
    pub fn start(&mut self) -> io::Result<()> {
        self.rings
            .iter_mut()
            .try_for_each(|(_, ring)| ring.enable())
    }

    /// Stops sampling. The rings keep their contents.
    ///
    /// # Errors
    /// Returns an error if the kernel rejects the request.
    pub fn stop(&mut self) -> io::Result<()> {
        self.rings
            .iter_mut()
            .try_for_each(|(_, ring)| ring.disable())
    }

    /// Ends sampling; returns the files of other mount namespaces.
    pub(crate) fn into_foreign(self) -> Foreign {
        self.unwinder.into_foreign()
    }

    /// Waits until a ring is a quarter full, or for `limit`.
    pub fn wait(&self, limit: Duration) {
        let limit = Timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let mut fds: Vec<PollFd<'_>> = self
            .rings
            .iter()
            .map(|(_, ring)| {
                // SAFETY: the ring owns the descriptor, and `self` keeps it open for longer than
                // this function runs.
                let fd = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
                PollFd::from_borrowed_fd(fd, PollFlags::IN)
            })
            .collect();
        // After a signal or an error the next read happens early.
        let _looked = poll(&mut fds, Some(&limit));
    }

    /// Takes all records from the rings, in time order; returns the number of malformed records.
    pub fn drain(&mut self, records: &mut Vec<PerfRecord>) -> u64 {
        let mut nonsense = 0;
        let mut fresh: Vec<(PerfRecord, Option<UserStack>)> = Vec::new();
        for (cpu, ring) in &mut self.rings {
            while let Some(raw) = ring.next_record() {
                let bytes = raw.to_contiguous();
                let (body, stack) = match raw.ty() {
                    SAMPLE => UserStack::split(&bytes),
                    _ => (&*bytes, None),
                };
                match parse::parse(*cpu, raw.ty(), raw.misc(), body, &self.config) {
                    Ok(Parsed::Record(record)) => fresh.push((record, stack)),
                    Ok(Parsed::Uninteresting) => {}
                    Err(_) => nonsense += 1,
                }
            }
        }
        fresh.sort_by_key(|(record, _)| record.time_ns);
        for (mut record, stack) in fresh {
            self.unwinder.take(&mut record, stack.as_ref());
            records.push(record);
        }
        nonsense
    }
}

/// Returns the counter of samples up to their call chains.
fn counter(event: Event, scope: Scope, period: u64) -> Builder<'static> {
    let mut builder = event.builder();
    builder
        .sample_period(period)
        .sample(SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU | SampleFlag::CALLCHAIN)
        .sample_max_stack(STACK_MAX)
        .wakeup_watermark(scope.ring_bytes() / 4)
        .clockid(Clock::MONOTONIC_RAW)
        .sample_id_all(true)
        .mmap(true)
        .mmap2(true)
        .comm(true)
        .comm_exec(true)
        .task(true)
        .enabled(false);
    match scope {
        // Idle CPUs are also sampled, because interrupts run there, and because every period then
        // has its sample.
        Scope::Machine => builder.any_pid().include_kernel().exclude_hv(true),
        Scope::Own => builder
            .observe_self()
            .inherit(true)
            .exclude_kernel(true)
            .exclude_callchain_kernel(true),
    };
    builder
}

/// Opens the ring of a CPU. Its samples also have the registers and the stack of user code.
fn ring(event: Event, scope: Scope, period: u64, cpu: u32) -> io::Result<Ring> {
    counter(event, scope, period)
        .one_cpu(cpu as usize)
        .sample(SampleFlag::REGS_USER | SampleFlag::STACK_USER)
        .sample_regs_user(REGISTERS)
        .sample_stack_user(scope.stack_bytes())
        .build()?
        .sampled(scope.ring_bytes())
}
