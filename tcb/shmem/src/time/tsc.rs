//! The processor's time-stamp counter.

use super::monotonic_ns;
use core::arch::x86_64::_rdtsc;
use std::sync::OnceLock;

/// How long the calibration of [`tsc_hz`] takes, nanoseconds.
const CALIBRATION_NS: u64 = 20_000_000;

/// The time-stamp counter: about 20 cycles, not serializing, constant rate.
#[must_use]
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; Linux lets user space use it.
    unsafe { _rdtsc() }
}

/// What [`tsc_hz`] remembers.
static RATE: OnceLock<u64> = OnceLock::new();

/// Tells [`tsc_hz`] what somebody else has measured; 0 tells nothing.
pub(crate) fn set_tsc_hz(rate: u64) {
    let _ = (rate > 0).then(|| RATE.set(rate));
}

/// Rate of [`tsc`], ticks per second: measured against the monotonic clock at the first call
/// (which takes 20 ms, spinning, without a system call), then remembered.
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

/// Both clocks at one moment: the closest pair of several, in case we are interrupted.
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
    fn the_two_clocks_agree_on_how_long_it_took() {
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
