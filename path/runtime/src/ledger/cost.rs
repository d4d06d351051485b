//! What the account itself costs on this machine.

use shmem::time::tsc;

/// Stamps, and readings of the CPU clock, in one run of a measurement.
const STAMPS: u32 = 256;
const READS: u32 = 8;

/// Nanoseconds of one stamp, and of one reading of the CPU clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub stamp_ns: f64,
    pub clock_ns: f64,
}

impl Cost {
    /// Takes some tens of microseconds in all, on a clock of `hz`.
    pub(super) fn measure(hz: u64, stamp: impl Fn(u32), read: impl Fn(u32)) -> Self {
        let ns = |cycles: f64| cycles * 1e9 / hz as f64;
        Self {
            stamp_ns: ns(median_cycles(STAMPS, stamp)),
            clock_ns: ns(median_cycles(READS, read)),
        }
    }
}

/// Cycles that reading the time stamp counter takes, which is most of a stamp.
pub(super) fn stamp_cycles() -> u64 {
    let cycles = median_cycles(READS, |_| {
        std::hint::black_box(tsc());
    });
    (cycles as u64).max(1)
}

/// Cycles that `work` takes, of several runs of `times` the middle one.
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
