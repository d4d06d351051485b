//! Measures the cost of accounting on this machine.

use shmem::time::tsc;

/// Number of stamps, and of CPU clock reads, per measurement.
const STAMPS: u32 = 256;
const READS: u32 = 8;

/// Cost in nanoseconds of one stamp, and of one read of the CPU clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub stamp_ns: f64,
    pub clock_ns: f64,
}

impl Cost {
    /// Measures the cost, which takes some tens of microseconds. `hz` is the rate of the time stamp
    /// counter.
    pub(super) fn measure(hz: u64, stamp: impl Fn(u32), read: impl Fn(u32)) -> Self {
        let ns = |cycles: f64| cycles * 1e9 / hz as f64;
        Self {
            stamp_ns: ns(median_cycles(STAMPS, stamp)),
            clock_ns: ns(median_cycles(READS, read)),
        }
    }
}

/// Returns the cycles of a read of the time stamp counter, which is most of the cost of a stamp.
pub(super) fn stamp_cycles() -> u64 {
    let cycles = median_cycles(READS, |_| {
        std::hint::black_box(tsc());
    });
    (cycles as u64).max(1)
}

/// Returns the median over several runs of the cycles of `work(times)`.
fn median_cycles(times: u32, work: impl Fn(u32)) -> f64 {
    let mut runs = [0u64; 5];
    for run in &mut runs {
        let from = tsc();
        (0..times).for_each(&work);
        *run = tsc().wrapping_sub(from);
    }
    runs.sort_unstable();
    let [_, _, median, ..] = runs;
    median as f64 / f64::from(times)
}
