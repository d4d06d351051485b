//! Clocks: the kernel's monotonic clock, and the processor's time-stamp counter.

mod tsc;

pub(crate) use tsc::set_tsc_hz;
pub use tsc::{tsc, tsc_hz};

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
