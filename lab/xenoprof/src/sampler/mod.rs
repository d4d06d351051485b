//! The sampler: one per host kernel, with one ring per CPU.
//!
//! The kernel writes samples and the side-band (new processes, names, mappings, ends) into the
//! rings; one reader empties them. Side-band and samples of one process can lie in different
//! rings, so records are put in order of time before anything is made of them.

pub mod parse;

use crate::event::Event;
use crate::model::Tier;
use parse::{Parsed, Record};
use perf_event::{Clock, SampleFlag, Sampler as Ring};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

/// Bytes of a ring: at 1 kHz and 500 bytes a sample a second's worth.
const RING_BYTES: usize = 1 << 19;
/// Bytes in a ring at which the reader is woken.
const WATERMARK_BYTES: usize = RING_BYTES / 4;
/// Frames of a call stack, kernel and user part.
const STACK_MAX: u16 = 127;

/// Whom to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every process and the kernel: a privilege.
    Machine,
    /// This thread and the processes that it starts from here on, outside of the kernel.
    Own,
}

/// Open rings.
pub struct Sampler {
    rings: Vec<(u32, Ring)>,
    tier: Tier,
}

/// Why there is no sampler.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// The system says no.
    #[error(
        "sampling every process is a privilege (CAP_PERFMON, or perf_event_paranoid 0 and below): \
         run as root, or profile a command of your own with `grantway prof record -- CMD`"
    )]
    Denied,
    /// Something else.
    #[error("CPU {cpu}: {error}")]
    Cpu {
        /// The CPU.
        cpu: u32,
        /// What the system said.
        error: io::Error,
    },
}

impl Sampler {
    /// Opens a ring on each CPU. Nothing is sampled until [`Sampler::start`].
    ///
    /// # Errors
    /// If the system does not let us.
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

    /// How good it is.
    #[must_use]
    pub const fn tier(&self) -> Tier {
        self.tier
    }

    /// Starts sampling.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn start(&mut self) -> io::Result<()> {
        self.rings
            .iter_mut()
            .try_for_each(|(_, ring)| ring.enable())
    }

    /// Stops sampling; what lies in the rings stays there.
    ///
    /// # Errors
    /// If the kernel refuses.
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
                // SAFETY: the descriptor is the ring's own, which `self` keeps open for longer
                // than this function runs.
                let fd = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
                PollFd::from_borrowed_fd(fd, PollFlags::IN)
            })
            .collect();
        // A signal or an error only makes the next look come sooner.
        let _looked = poll(&mut fds, Some(&limit));
    }

    /// Takes everything out of the rings, each ring in its order; records that make no sense are
    /// counted.
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
        // An idle CPU is sampled too: interrupts run there, and every period then has its sample.
        Scope::Machine => builder.any_pid().include_kernel().exclude_hv(true),
        Scope::Own => builder
            .observe_self()
            .inherit(true)
            .exclude_kernel(true)
            .exclude_callchain_kernel(true),
    };
    builder.build()?.sampled(RING_BYTES)
}
