//! Clocks: the kernel's monotonic clock, and the processor's time stamp counter.

mod tsc;

pub(crate) use tsc::set_tsc_hz;
pub use tsc::{tsc, tsc_hz};

/// Returns the kernel's monotonic clock in nanoseconds, without a system call if the kernel has a
/// vDSO.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes to a local struct. The clock exists on every Linux, so the call
    // cannot fail.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
    }
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
