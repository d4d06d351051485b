//! Measures the cost of a sample on this machine.
//!
//! The cost is the slowdown of a fixed amount of work by sampling. The work is a sequence of system
//! calls that send a few megabytes through TCP on the loopback interface. It runs with and without
//! sampling in alternation. Samples of sessions mostly interrupt similar work, deep in the kernel
//! with a long call stack.
//!
//! The minimum cost of any profiler, a timer interrupt with a sample that holds only an id, is
//! measured in the same way. In a virtual machine it is most of the cost, because both the
//! interrupt and the arming of the next one exit to the hypervisor.

use super::timers::Interrupts;
use crate::event::EventConfig;
use crate::sampler::parse::RecordKind;
use crate::sampler::{Sampler, Scope};
use anyhow::Context as _;
use figures::measure::pin;
use figures::sampler::Costs;
use figures::socket;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

/// Samples per second while their cost is measured. This rate is high enough to be measurable, and
/// low enough to avoid throttling by the kernel.
const HZ: u64 = 4000;
/// Number of pairs of times, with and without samples, for each cost.
const PAIRS: usize = 200;
/// Duration of one time in nanoseconds. It is short, so that other activity of the machine affects
/// both times of a pair.
const TIME_NS: u64 = 10_000_000;
/// Bytes of one write. It passes through the whole stack and fits into the buffers.
const WRITE: usize = 16 << 10;

/// Number of pairs for an estimate, which takes a third of a second.
const ESTIMATE_PAIRS: usize = 15;

/// Measures the costs in a thread on `cpu`.
pub(super) fn measure(cpu: usize) -> anyhow::Result<Costs> {
    on(cpu, |work, cpus| {
        let mut samples = Samples::open(cpus)?;
        let sample_ns = pairs(work, &mut samples, PAIRS)?;
        Ok(Costs {
            sample_ns,
            frames: samples.frames as f64 / samples.count.max(1) as f64,
            interrupt_ns: pairs(work, &mut Interrupts::open(HZ, cpus)?, PAIRS)?,
        })
    })
}

/// Estimates the cost of a sample in nanoseconds, as the median of a few pairs.
pub(super) fn estimate(cpu: usize) -> anyhow::Result<f64> {
    on(cpu, |work, cpus| {
        let mut costs = pairs(work, &mut Samples::open(cpus)?, ESTIMATE_PAIRS)?;
        costs.sort_by(f64::total_cmp);
        let median = costs.get(costs.len() / 2);
        median
            .copied()
            .context("sampling this CPU gives no samples")
    })
}

/// Runs `measure` in a thread on `cpu`, and passes it that CPU as a list, which samplers take.
fn on<T: Send>(
    cpu: usize,
    measure: impl FnOnce(&mut Workload, &[u32]) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let measured = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin(cpu)?;
            measure(&mut Workload::new()?, &[u32::try_from(cpu)?])
        });
        thread.join()
    });
    measured.unwrap_or_else(|_| {
        anyhow::bail!("the calibration thread panicked");
    })
}

/// Both ends of a connection.
struct Workload {
    near: TcpStream,
    far: TcpStream,
    bytes: Vec<u8>,
}

impl Workload {
    fn new() -> anyhow::Result<Self> {
        let listener = socket::listen((Ipv4Addr::LOCALHOST, 0).into())?;
        let near = socket::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        Ok(Self {
            near,
            far,
            bytes: vec![0; WRITE],
        })
    }

    /// Returns the nanoseconds of CPU time for `times` writes and reads. It excludes other threads
    /// and includes interrupts.
    fn time(&mut self, times: u64) -> anyhow::Result<u64> {
        let start = cpu_ns();
        for _ in 0..times {
            self.near.write_all(&self.bytes)?;
            self.far.read_exact(&mut self.bytes)?;
        }
        Ok(cpu_ns().saturating_sub(start))
    }
}

/// Returns the CPU time of this thread, nanoseconds.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// An additional load on the work that can be switched on and off.
trait ToggledLoad {
    fn on(&mut self) -> anyhow::Result<()>;
    /// Switches the load off; returns the number of times that it occurred.
    fn off(&mut self) -> anyhow::Result<u64>;
}

/// Returns, for each pair of times, the nanoseconds by which one occurrence of the load delays the
/// work.
fn pairs(
    work: &mut Workload,
    burden: &mut impl ToggledLoad,
    times: usize,
) -> anyhow::Result<Vec<f64>> {
    const PROBE: u64 = 200;
    work.time(PROBE)?;
    let rounds = PROBE * TIME_NS / work.time(PROBE)?.max(1);
    let mut costs = Vec::new();
    for pair in 0..times {
        let (mut difference, mut count) = (0.0, 0);
        // The order alternates, so that neither benefits if the machine becomes slower or faster.
        for on in [pair % 2 == 0, pair % 2 != 0] {
            if on {
                burden.on()?;
                difference += work.time(rounds)? as f64;
                count = burden.off()?;
            } else {
                difference -= work.time(rounds)? as f64;
            }
        }
        if count > 0 {
            costs.push(difference / count as f64);
        }
    }
    anyhow::ensure!(!costs.is_empty(), "sampling this CPU gives no samples");
    Ok(costs)
}

/// Samples as in a session.
struct Samples {
    sampler: Sampler,
    count: u64,
    frames: usize,
}

impl Samples {
    fn open(cpus: &[u32]) -> anyhow::Result<Self> {
        let events = vec![EventConfig::best(HZ, shmem::time::tsc_hz())];
        Ok(Self {
            sampler: Sampler::open(events, Scope::Machine, cpus)?,
            count: 0,
            frames: 0,
        })
    }
}

impl ToggledLoad for Samples {
    fn on(&mut self) -> anyhow::Result<()> {
        Ok(self.sampler.start()?)
    }

    fn off(&mut self) -> anyhow::Result<u64> {
        self.sampler.stop()?;
        let mut records = Vec::new();
        self.sampler.drain(&mut records);
        let chains = records.iter().filter_map(|record| match &record.kind {
            RecordKind::Sample { chain, .. } => Some(chain.len()),
            _ => None,
        });
        let count = chains.clone().count() as u64;
        self.frames += chains.sum::<usize>();
        self.count += count;
        Ok(count)
    }
}

impl ToggledLoad for Interrupts {
    fn on(&mut self) -> anyhow::Result<()> {
        self.start()
    }

    fn off(&mut self) -> anyhow::Result<u64> {
        self.stop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pass_through_the_connection() {
        let mut work = Workload::new().unwrap();
        assert!(work.time(3).unwrap() > 0);
    }

    #[test]
    fn every_pair_has_a_cost() {
        let mut interrupts = match Interrupts::open(HZ, &[0]) {
            Ok(interrupts) => interrupts,
            Err(error) => return testing::skip(format!("{error:#}")),
        };
        pin(0).unwrap();
        let costs = pairs(&mut Workload::new().unwrap(), &mut interrupts, 3).unwrap();
        assert!((1..=3).contains(&costs.len()), "{costs:?}");
    }
}
