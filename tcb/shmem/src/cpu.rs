//! The CPU on which a domain's thread runs.

use core::arch::x86_64::{__cpuid_count, __rdtscp};
use core::sync::atomic::{AtomicU8, Ordering};

/// Returns the CPU on which this thread runs now.
#[must_use]
#[inline]
pub fn cpu() -> u32 {
    /// Linux stores the CPU in the low bits of TSC_AUX, and the NUMA node in the bits above.
    const CPU_BITS: u64 = 0xfff;
    if has_rdpid() {
        let aux: u64;
        // SAFETY: the processor supports the instruction, which only reads TSC_AUX.
        unsafe {
            core::arch::asm!("rdpid {}", out(reg) aux, options(nomem, nostack, preserves_flags));
        }
        (aux & CPU_BITS) as u32
    } else {
        let mut aux = 0;
        // SAFETY: the instruction, which every supported processor has, writes to a local word.
        unsafe {
            __rdtscp(&raw mut aux);
        }
        aux & CPU_BITS as u32
    }
}

/// Returns whether the processor supports RDPID. Checks this once.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_one_of_those_allowed() {
        // SAFETY: the struct is plain data for which zero is valid; the call fills it.
        let allowed = unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            assert_eq!(
                libc::sched_getaffinity(0, size_of_val(&set), &raw mut set),
                0
            );
            set
        };
        for _ in 0..100 {
            // SAFETY: the macro only reads the set.
            assert!(unsafe { libc::CPU_ISSET(cpu() as usize, &allowed) });
        }
    }
}
