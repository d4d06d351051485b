//! The sampler: one per host kernel, with one ring per CPU and event.
//!
//! The kernel writes samples and side-band records (new processes, names, mappings, exits) into the
//! rings; one reader empties them. The rings may split the side-band records and samples of one
//! process, so records are sorted by time before they are used. The kernel's call chains end where
//! code lacks frame pointers; copies of the stacks complete them.
//!
//! Each event has separate rings, so that the kernel's counts of lost records and its throttling
//! are known by event. Only the rings of the first event have side-band records.

pub(crate) mod elf;
pub mod parse;
mod unwind;

use crate::count::share_counted;
use crate::event::{Event, EventConfig};
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
/// Maximum records of a burst that are taken from a ring at once. Their stacks are followed in
/// about ten milliseconds.
const BURST: usize = 512;
/// Share of the time in which an event must be counted. A shared counter has half or less.
const SHARE_MIN: f64 = 0.99;

/// Processes to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every process and the kernel. Needs privilege.
    Machine,
    /// User code of this thread and of processes that it starts later.
    Own,
}

impl Scope {
    /// Returns the bytes of a ring: half a second of samples at 1 kHz, or a part of the maximum
    /// that an unprivileged user may lock.
    const fn ring_bytes(self, events: usize) -> usize {
        match self {
            Self::Machine => 16 << 20,
            Self::Own => (1 << 19) / events.next_power_of_two(),
        }
    }

    /// Returns the maximum bytes of a user stack in a sample, a multiple of 8. The kernel's own
    /// events occur in bursts, so more samples of them must fit into a ring.
    const fn stack_bytes(self, event: Event) -> u32 {
        match (self, event.is_software()) {
            (Self::Machine, false) => 32 << 10,
            (Self::Own, _) | (Self::Machine, true) => 8 << 10,
        }
    }
}

/// Open rings.
pub struct Sampler {
    rings: Vec<EventRing>,
    config: ParseConfig<Native>,
    unwinder: Unwinder,
    scope: Scope,
    events: Vec<EventConfig>,
}

/// The ring of an event on a CPU.
struct EventRing {
    cpu: u32,
    event: u32,
    /// Whether the kernel counts the event itself, so that it may occur in bursts. Samples of this
    /// process are then discarded: by reading them it would cause further ones without an end.
    is_bursty: bool,
    ring: Ring,
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
    /// The event occurs only in the kernel, which this user may not sample.
    #[error(
        "{0} occur in the kernel, which you may not sample without privileges (CAP_PERFMON, or \
         perf_event_paranoid of at most 0)"
    )]
    OnlyInKernel(&'static str),
    /// Another error.
    #[error("{event} on CPU {cpu}: {error}")]
    Cpu {
        /// Event.
        event: &'static str,
        /// CPU.
        cpu: u32,
        /// Error of the system call.
        error: io::Error,
    },
}

impl Sampler {
    /// Opens a ring on each CPU for each event. Sampling begins with [`Sampler::start`].
    ///
    /// # Errors
    /// Returns an error if the kernel rejects a counter.
    pub fn open(
        mut events: Vec<EventConfig>,
        scope: Scope,
        cpus: &[u32],
    ) -> Result<Self, SamplerError> {
        let mut rings = Vec::new();
        let ring_bytes = scope.ring_bytes(events.len());
        for (number, config) in (0u32..).zip(&mut events) {
            let event = config.event.name();
            if scope == Scope::Own {
                if config.event.is_only_in_kernel() {
                    return Err(SamplerError::OnlyInKernel(event));
                }
                config.tier = Tier::OwnUser;
            }
            for &cpu in cpus {
                let opened = ring(config, scope, ring_bytes, (cpu, number));
                let ring = opened.map_err(|error| match error.kind() {
                    io::ErrorKind::PermissionDenied => SamplerError::Denied,
                    _ => SamplerError::Cpu { event, cpu, error },
                })?;
                rings.push(EventRing {
                    cpu,
                    event: number,
                    is_bursty: config.event.is_software(),
                    ring,
                });
            }
        }
        let attrs = events.first().map(|first| *counter(first, scope).attrs());
        Ok(Self {
            rings,
            // All rings have records of the same layout.
            config: ParseConfig::from(attrs.unwrap_or_default()),
            unwinder: Unwinder::default(),
            scope,
            events,
        })
    }

    /// Returns the events, with their quality.
    #[must_use]
    pub fn events(&self) -> &[EventConfig] {
        &self.events
    }

    /// Returns whether it samples only user code of processes that this thread starts.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.scope == Scope::Own
    }

    /// Returns a note for each event that the kernel did not count all the time, because the PMU
    /// has fewer counters than the session has events.
    pub fn shared_counters(&mut self) -> Vec<String> {
        // The time of a process on other CPUs counts as not counted.
        if self.scope == Scope::Own {
            return Vec::new();
        }
        let mut least = vec![1.0f64; self.events.len()];
        for EventRing { event, ring, .. } in &mut self.rings {
            let share = ring.read_full().ok().and_then(|seen| share_counted(&seen));
            if let (Some(least), Some(share)) = (least.get_mut(*event as usize), share) {
                *least = least.min(share);
            }
        }
        let events = self.events.iter().zip(least);
        let shared = events.filter(|(_, share)| *share < SHARE_MIN);
        let note = |(config, share): (&EventConfig, f64)| {
            format!(
                "{} was counted only {:.0} % of the time, because the PMU has fewer counters than \
                 the session has events: its samples are fewer in proportion",
                config.event.name(),
                share * 100.0
            )
        };
        shared.map(note).collect()
    }

    /// Starts sampling.
    ///
    /// # Errors
    /// Returns an error if the kernel rejects the request.
    pub fn start(&mut self) -> io::Result<()> {
        self.rings.iter_mut().try_for_each(|of| of.ring.enable())
    }

    /// Stops sampling. The rings keep their contents.
    ///
    /// # Errors
    /// Returns an error if the kernel rejects the request.
    pub fn stop(&mut self) -> io::Result<()> {
        self.rings.iter_mut().try_for_each(|of| of.ring.disable())
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
            .map(|EventRing { ring, .. }| {
                // SAFETY: the ring owns the descriptor, and `self` keeps it open for longer than
                // this function runs.
                let fd = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
                PollFd::from_borrowed_fd(fd, PollFlags::IN)
            })
            .collect();
        // After a signal or an error the next read happens early.
        let _looked = poll(&mut fds, Some(&limit));
    }

    /// Takes the records from the rings, in time order; returns the number of malformed records.
    /// Takes at most `BURST` records of a burst, so that the rings of clocks do not overflow in
    /// the meantime, and leaves the others to the next call.
    pub fn drain(&mut self, records: &mut Vec<PerfRecord>) -> u64 {
        self.take(records, BURST)
    }

    /// Takes all records from the rings after the end of sampling, as [`Sampler::drain`] does.
    pub fn drain_all(&mut self, records: &mut Vec<PerfRecord>) -> u64 {
        self.take(records, usize::MAX)
    }

    fn take(&mut self, records: &mut Vec<PerfRecord>, burst: usize) -> u64 {
        let mut nonsense = 0;
        let own = std::process::id();
        let mut fresh: Vec<(PerfRecord, Option<UserStack>)> = Vec::new();
        for of in &mut self.rings {
            // The first ring has the side-band records, which no sample may overtake.
            let mut left = match of.is_bursty && of.event > 0 {
                true => burst,
                false => usize::MAX,
            };
            while left > 0
                && let Some(raw) = of.ring.next_record()
            {
                left -= 1;
                let bytes = raw.to_contiguous();
                let is_own = |bytes: &[u8]| sampled_process(bytes) == Some(own);
                if of.is_bursty && raw.ty() == SAMPLE && is_own(&bytes) {
                    continue;
                }
                let (body, stack) = match raw.ty() {
                    SAMPLE => UserStack::split(&bytes),
                    _ => (&*bytes, None),
                };
                match parse::parse((of.cpu, of.event), raw.ty(), raw.misc(), body, &self.config) {
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

/// Returns the process of a sample, which is first in its body.
fn sampled_process(body: &[u8]) -> Option<u32> {
    body.first_chunk().copied().map(u32::from_ne_bytes)
}

/// Returns the counter of samples up to their call chains.
fn counter(config: &EventConfig, scope: Scope) -> Builder<'static> {
    let mut builder = config.event.builder();
    builder
        .sample_period(config.period)
        .sample(SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU | SampleFlag::CALLCHAIN)
        .sample_max_stack(STACK_MAX)
        .clockid(Clock::MONOTONIC_RAW)
        .sample_id_all(true)
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

/// Opens the ring of a CPU and an event. Its samples also have the registers and the stack of user
/// code.
fn ring(
    config: &EventConfig,
    scope: Scope,
    bytes: usize,
    (cpu, event): (u32, u32),
) -> io::Result<Ring> {
    let mut builder = counter(config, scope);
    builder
        .one_cpu(cpu as usize)
        .wakeup_watermark(bytes / 4)
        .sample(SampleFlag::REGS_USER | SampleFlag::STACK_USER)
        .sample_regs_user(REGISTERS)
        .sample_stack_user(scope.stack_bytes(config.event));
    if event == 0 {
        builder
            .mmap(true)
            .mmap2(true)
            .comm(true)
            .comm_exec(true)
            .task(true);
    }
    builder.build()?.sampled(bytes)
}
