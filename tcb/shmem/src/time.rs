//! Clocks: the processor's time-stamp counter and the kernel's monotonic clock.

use core::arch::x86_64::{__cpuid_count, __rdtscp, _rdtsc};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// How long the calibration of [`tsc_hz`] takes, nanoseconds.
const CALIBRATION_NS: u64 = 20_000_000;

/// The time-stamp counter: about 20 cycles, not serializing, constant rate.
#[must_use]
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; Linux lets user space use it.
    unsafe { _rdtsc() }
}

/// The CPU that this thread runs on now.
#[must_use]
#[inline]
pub fn cpu() -> u32 {
    /// Linux keeps the CPU in the low bits of TSC_AUX, the NUMA node above.
    const CPU_BITS: u64 = 0xfff;
    if has_rdpid() {
        let aux: u64;
        // SAFETY: the processor has the instruction; it reads TSC_AUX and nothing else.
        unsafe {
            core::arch::asm!("rdpid {}", out(reg) aux, options(nomem, nostack, preserves_flags));
        }
        (aux & CPU_BITS) as u32
    } else {
        let mut aux = 0;
        // SAFETY: writes one word of ours; every processor that we support has the instruction.
        unsafe {
            __rdtscp(&raw mut aux);
        }
        aux & CPU_BITS as u32
    }
}

/// Whether the processor has RDPID; asked once.
#[inline]
fn has_rdpid() -> bool {
    const UNKNOWN: u8 = 2;
    static HAS: AtomicU8 = AtomicU8::new(UNKNOWN);
    match HAS.load(Ordering::Relaxed) {
        UNKNOWN => {
            let has = __cpuid_count(7, 0).ecx & 1 << 22 != 0;
            HAS.store(has.into(), Ordering::Relaxed);
            has
        }
        has => has != 0,
    }
}

/// The kernel's monotonic clock, nanoseconds. No system call where the kernel offers the vDSO.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one struct of ours. The clock exists on every Linux, so it cannot fail.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
    }
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What [`tsc_hz`] remembers; 0: nothing yet.
static RATE: AtomicU64 = AtomicU64::new(0);

/// Tells [`tsc_hz`] what somebody else has measured; 0 tells nothing.
pub(crate) fn set_tsc_hz(rate: u64) {
    RATE.store(rate, Ordering::Relaxed);
}

/// Rate of [`tsc`], ticks per second: measured against the monotonic clock at the first call
/// (which takes 20 ms, spinning, without a system call), then remembered.
#[must_use]
pub fn tsc_hz() -> u64 {
    match RATE.load(Ordering::Relaxed) {
        0 => {
            let rate = calibrate();
            RATE.store(rate, Ordering::Relaxed);
            rate
        }
        rate => rate,
    }
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

    #[test]
    fn the_cpu_is_one_of_those_allowed() {
        // SAFETY: plain data whose all-zero form is valid, filled by the call.
        let allowed = unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            assert_eq!(
                libc::sched_getaffinity(0, size_of_val(&set), &raw mut set),
                0
            );
            set
        };
        for _ in 0..100 {
            // SAFETY: only looks at the set.
            assert!(unsafe { libc::CPU_ISSET(cpu() as usize, &allowed) });
        }
    }
}
