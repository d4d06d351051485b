//! The sampler: one per host kernel, with one ring per CPU.
//!
//! The kernel writes samples and side-band records (new processes, names, mappings, exits) into the
//! rings; one reader empties them. The rings may split the side-band records and samples of one
//! process, so records are sorted by time before they are used.

pub mod parse;

use crate::event::Event;
use crate::model::Tier;
use parse::{Parsed, Record};
use perf_event::{Clock, SampleFlag, Sampler as Ring};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

/// Bytes of a ring: one second at 1 kHz and 500 bytes per sample.
const RING_BYTES: usize = 1 << 19;
/// Bytes in a ring at which the reader wakes up.
const WATERMARK_BYTES: usize = RING_BYTES / 4;
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

/// Open rings.
pub struct Sampler {
    rings: Vec<(u32, Ring)>,
    tier: Tier,
}

/// Error of opening the sampler.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// The user lacks the privilege.
    #[error(
        "sampling every process is a privilege (CAP_PERFMON, or perf_event_paranoid 0 and below): \
         run as root, or profile a command of your own with `grantway prof record -- CMD`"
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
    /// The kernel rejects a counter.
    pub fn open(
        event: Event,
        tier: Tier,
        scope: Scope,
        period: u64,
        cpus: &[u32],
    ) -> Result<Self, SamplerError> {
        let mut rings = Vec::new();
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
        Ok(Self { rings, tier })
    }

    /// Returns the quality of the event.
    #[must_use]
    pub const fn tier(&self) -> Tier {
        self.tier
    }

    /// Starts sampling.
    ///
    /// # Errors
    /// The kernel rejects the request.
    pub fn start(&mut self) -> io::Result<()> {
        self.rings
            .iter_mut()
            .try_for_each(|(_, ring)| ring.enable())
    }

    /// Stops sampling. The rings keep their contents.
    ///
    /// # Errors
    /// The kernel rejects the request.
    pub fn stop(&mut self) -> io::Result<()> {
        self.rings
            .iter_mut()
            .try_for_each(|(_, ring)| ring.disable())
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

    /// Takes all records from the rings, in the order of each ring; returns the number of malformed
    /// records.
    pub fn drain(&mut self, records: &mut Vec<Record>) -> u64 {
        let mut nonsense = 0;
        for (cpu, ring) in &mut self.rings {
            let config = ring.as_counter().config().clone();
            while let Some(raw) = ring.next_record() {
                match parse::parse(*cpu, raw.ty(), raw.misc(), &raw.to_contiguous(), &config) {
                    Ok(Parsed::Record(record)) => records.push(record),
                    Ok(Parsed::Uninteresting) => {}
                    Err(_) => nonsense += 1,
                }
            }
        }
        nonsense
    }
}

fn ring(event: Event, scope: Scope, period: u64, cpu: u32) -> io::Result<Ring> {
    let mut builder = event.builder();
    builder
        .one_cpu(cpu as usize)
        .sample_period(period)
        .sample(SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU | SampleFlag::CALLCHAIN)
        .sample_max_stack(STACK_MAX)
        .wakeup_watermark(WATERMARK_BYTES)
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
    builder.build()?.sampled(RING_BYTES)
}
