//! The timers of a sampler with minimal samples, which show the minimum cost of a timer-driven
//! profiler.

use perf_event::{Builder, SampleFlag, Sampler, events::Software};

/// Bytes of a CPU's ring. It is not read while the timers run. Samples that do not fit are dropped,
/// but the interrupts still occur.
const RING_BYTES: usize = 1 << 16;

/// A timer on each of some CPUs, with minimal samples.
pub(super) struct Interrupts(Vec<Sampler>);

impl Interrupts {
    /// Opens the timers without starting them.
    ///
    /// # Errors
    /// Returns an error if this user may not sample whole CPUs.
    pub(super) fn open(hz: u64, cpus: &[u32]) -> anyhow::Result<Self> {
        let open = |&cpu: &u32| {
            let mut builder = Builder::new(Software::CPU_CLOCK);
            builder
                .one_cpu(usize::try_from(cpu)?)
                .any_pid()
                .include_kernel()
                .exclude_hv(true)
                .sample_period(1_000_000_000 / hz.max(1))
                .sample(SampleFlag::TID)
                .enabled(false);
            anyhow::Ok(builder.build()?.sampled(RING_BYTES)?)
        };
        cpus.iter()
            .map(open)
            .collect::<anyhow::Result<_>>()
            .map(Self)
    }

    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        for timer in &mut self.0 {
            timer.enable()?;
        }
        Ok(())
    }

    /// Stops the timers; returns the number of interrupts that the rings have recorded.
    pub(super) fn stop(&mut self) -> anyhow::Result<u64> {
        let mut count = 0;
        for timer in &mut self.0 {
            timer.disable()?;
            count += std::iter::from_fn(|| timer.next_record().map(drop)).count() as u64;
        }
        Ok(count)
    }
}
