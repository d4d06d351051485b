//! The routines that touch bytes: raw pointers in, "did it work" out.
//!
//! All of them read and write exactly `[0, len)`, at any alignment, and survive faults; after one
//! the destination holds some mixture of old and new bytes. Overlapping ranges are allowed, what
//! they then hold is unspecified. Sources may change under a copy: a byte may be read twice, and
//! one of the two values lands in the destination.
//!
//! SAFETY contract of every function here: each of the two ranges lies either in memory that the
//! caller owns for the time of the call (exclusively, if it is the destination), or in an address
//! range that is reserved for spans, so that no Rust object lives there.

mod avx2;
mod short;
mod sse2;
pub(crate) mod sum;

#[cfg(test)]
mod tests;

use crate::fault::guarded;
use core::sync::atomic::{AtomicU8, Ordering};
use short::SHORT_MAX;

/// Whether the processor has AVX2; asked once.
#[inline]
pub(crate) fn has_avx2() -> bool {
    const UNKNOWN: u8 = 2;
    static HAS: AtomicU8 = AtomicU8::new(UNKNOWN);
    match HAS.load(Ordering::Relaxed) {
        UNKNOWN => {
            let has = std::arch::is_x86_feature_detected!("avx2");
            HAS.store(has.into(), Ordering::Relaxed);
            has
        }
        has => has != 0,
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// See the module's contract.
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> bool {
    // SAFETY: handed on to the caller.
    unsafe {
        if len <= SHORT_MAX {
            short::copy(dst, src, len)
        } else if has_avx2() {
            avx2::copy(dst, src, len)
        } else {
            sse2::copy(dst, src, len)
        }
    }
}

/// Copies 64 bytes: a smallest frame. Inlined, so that it costs the loads and stores alone.
///
/// # Safety
/// See the module's contract.
#[inline(always)]
pub(crate) unsafe fn copy_64(dst: *mut u8, src: *const u8) -> bool {
    // SAFETY: touches [0, 64) of both, which the caller vouches for.
    unsafe {
        guarded!(
            [
                "movups {a}, [{src}]",
                "movups {b}, [{src} + 16]",
                "movups {c}, [{src} + 32]",
                "movups {d}, [{src} + 48]",
                "movups [{dst}], {a}",
                "movups [{dst} + 16], {b}",
                "movups [{dst} + 32], {c}",
                "movups [{dst} + 48], {d}",
            ],
            [],
            src = in(reg) src,
            dst = in(reg) dst,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
        )
    }
}

/// Copies 96 bytes: the header snapshot. Inlined, as [`copy_64`] is.
///
/// # Safety
/// See the module's contract.
#[inline(always)]
pub(crate) unsafe fn copy_96(dst: *mut u8, src: *const u8) -> bool {
    // SAFETY: touches [0, 96) of both, which the caller vouches for.
    unsafe {
        guarded!(
            [
                "movups {a}, [{src}]",
                "movups {b}, [{src} + 16]",
                "movups {c}, [{src} + 32]",
                "movups {d}, [{src} + 48]",
                "movups {e}, [{src} + 64]",
                "movups {f}, [{src} + 80]",
                "movups [{dst}], {a}",
                "movups [{dst} + 16], {b}",
                "movups [{dst} + 32], {c}",
                "movups [{dst} + 48], {d}",
                "movups [{dst} + 64], {e}",
                "movups [{dst} + 80], {f}",
            ],
            [],
            src = in(reg) src,
            dst = in(reg) dst,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            e = out(xmm_reg) _,
            f = out(xmm_reg) _,
        )
    }
}

/// Asks the processor to fetch a cache line for reading.
#[inline(always)]
pub(crate) fn prefetch(line: *const u8) {
    // SAFETY: a prefetch is a hint; it is allowed at any address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
}

/// Asks the processor to fetch a cache line for writing: no other cache then has it.
#[inline(always)]
pub(crate) fn prefetch_write(line: *const u8) {
    // SAFETY: as in `prefetch`; processors without the instruction do nothing.
    unsafe {
        core::arch::asm!(
            "prefetchw [{line}]",
            line = in(reg) line,
            options(nostack, preserves_flags, readonly),
        );
    }
}

/// Sets `len` bytes to `byte`.
///
/// # Safety
/// See the module's contract.
pub(crate) unsafe fn fill(dst: *mut u8, len: usize, byte: u8) -> bool {
    // SAFETY: touches [0, len) of `dst`, which the caller vouches for. The direction flag is
    // clear on entry of every `asm!` block.
    unsafe {
        guarded!(
            ["rep stosb"],
            [],
            inout("rdi") dst => _,
            inout("rcx") len => _,
            in("al") byte,
        )
    }
}

/// Reads one aligned 4-byte word in one access: acquire, as every load of this processor.
///
/// # Safety
/// See the module's contract; `src` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn load_u32(src: *const u8) -> Option<u32> {
    let value: u32;
    // SAFETY: touches [0, 4), which the caller vouches for. The output is set before the access,
    // so it holds something whatever happens.
    let ok = unsafe {
        guarded!(
            ["xor {value:e}, {value:e}", "mov {value:e}, dword ptr [{src}]"],
            [],
            src = in(reg) src,
            value = out(reg) value,
            options(readonly),
        )
    };
    ok.then_some(value)
}

/// Reads an 8-byte word: in one access if it is aligned, else each half of it in one. Acquire, as
/// every load of this processor.
///
/// # Safety
/// See the module's contract; `src` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn load_u64(src: *const u8) -> Option<u64> {
    let value: u64;
    // SAFETY: as in `load_u32`, with [0, 8).
    let ok = unsafe {
        guarded!(
            ["xor {value:e}, {value:e}", "mov {value}, qword ptr [{src}]"],
            [],
            src = in(reg) src,
            value = out(reg) value,
            options(readonly),
        )
    };
    ok.then_some(value)
}

/// Two adjacent 4-byte words, as the 8-byte word that they are.
const fn pair([first, second]: [u32; 2]) -> u64 {
    first as u64 | (second as u64) << 32
}

/// Writes two adjacent 4-byte words: release, as every store of this processor.
///
/// # Safety
/// See the module's contract; `dst` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn store_2(dst: *mut u8, words: [u32; 2]) -> bool {
    // SAFETY: handed on to the caller.
    unsafe { store_u64(dst, pair(words)) }
}

/// Writes three adjacent 4-byte words: release, as every store of this processor.
///
/// # Safety
/// See the module's contract; `dst` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn store_3(dst: *mut u8, [first, second, third]: [u32; 3]) -> bool {
    let pair = pair([first, second]);
    // SAFETY: touches [0, 12), which the caller vouches for.
    unsafe {
        guarded!(
            [
                "mov qword ptr [{dst}], {pair}",
                "mov dword ptr [{dst} + 8], {third:e}",
            ],
            [],
            dst = in(reg) dst,
            pair = in(reg) pair,
            third = in(reg) third,
        )
    }
}

/// Writes one aligned 4-byte word in one access: release, as every store of this processor.
///
/// # Safety
/// See the module's contract; `dst` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn store_u32(dst: *mut u8, value: u32) -> bool {
    // SAFETY: touches [0, 4), which the caller vouches for.
    unsafe {
        guarded!(
            ["mov dword ptr [{dst}], {value:e}"],
            [],
            dst = in(reg) dst,
            value = in(reg) value,
        )
    }
}

/// Writes one aligned 4-byte word and returns what it was, in one step: sequentially consistent,
/// as every exchange of this processor.
///
/// # Safety
/// See the module's contract; `at` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn swap_u32(at: *mut u8, value: u32) -> Option<u32> {
    let before: u32;
    // SAFETY: touches [0, 4), which the caller vouches for. The register that holds the output
    // holds `value` if the access faults.
    let ok = unsafe {
        guarded!(
            ["xchg dword ptr [{at}], {value:e}"],
            [],
            at = in(reg) at,
            value = inout(reg) value => before,
        )
    };
    ok.then_some(before)
}

/// Writes an 8-byte word: in one access if it is aligned, else each half of it in one. Release, as
/// every store of this processor.
///
/// # Safety
/// See the module's contract; `dst` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn store_u64(dst: *mut u8, value: u64) -> bool {
    // SAFETY: touches [0, 8), which the caller vouches for.
    unsafe {
        guarded!(
            ["mov qword ptr [{dst}], {value}"],
            [],
            dst = in(reg) dst,
            value = in(reg) value,
        )
    }
}
