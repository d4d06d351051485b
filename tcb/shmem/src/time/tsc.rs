//! The processor's time stamp counter.

use super::monotonic_ns;
use core::arch::x86_64::_rdtsc;
use std::sync::OnceLock;

/// The duration of the calibration of [`tsc_hz`] in nanoseconds.
const CALIBRATION_NS: u64 = 20_000_000;

/// Returns the time stamp counter, which has a constant rate. The read takes about 20 cycles, and
/// does not serialize.
#[must_use]
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux permits it in user space.
    unsafe { _rdtsc() }
}

/// The cached result of [`tsc_hz`].
static RATE: OnceLock<u64> = OnceLock::new();

/// Sets the result of [`tsc_hz`] to a rate that was measured elsewhere; 0 has no effect.
pub(crate) fn set_tsc_hz(rate: u64) {
    let _ = (rate > 0).then(|| RATE.set(rate));
}

/// Returns the rate of [`tsc`] in ticks per second. The first call measures it against the
/// monotonic clock (it spins for 20 ms, without a system call); the result is cached.
#[must_use]
pub fn tsc_hz() -> u64 {
    *RATE.get_or_init(calibrate)
}

fn calibrate() -> u64 {
    let (start_ns, start_tsc) = both_clocks();
    while monotonic_ns() - start_ns < CALIBRATION_NS {
        core::hint::spin_loop();
    }
    let (end_ns, end_tsc) = both_clocks();
    let ticks = u128::from(end_tsc - start_tsc) * 1_000_000_000;
    (ticks / u128::from(end_ns - start_ns).max(1)).max(1) as u64
}

/// Reads both clocks at almost the same time. Returns the closest of several pairs, since an
/// interrupt may separate the readings of a pair.
fn both_clocks() -> (u64, u64) {
    let pair = |_| {
        let before = tsc();
        let ns = monotonic_ns();
        let after = tsc();
        (
            after.wrapping_sub(before),
            ns,
            before + after.wrapping_sub(before) / 2,
        )
    };
    let (_, ns, tsc) = (0..16).map(pair).min().unwrap_or_default();
    (ns, tsc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_measure_the_same_duration() {
        let rate = tsc_hz();
        assert_eq!(rate, tsc_hz());
        let (ns, ticks) = both_clocks();
        std::thread::sleep(std::time::Duration::from_millis(30));
        let (end_ns, end_ticks) = both_clocks();
        let by_tsc = (end_ticks - ticks) as f64 / rate as f64 * 1e9;
        let ratio = by_tsc / (end_ns - ns) as f64;
        assert!((0.98..1.02).contains(&ratio), "{ratio}");
    }
}
