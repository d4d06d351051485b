//! Copies of any length, the two lengths that are most common, and fills.

use super::short::SHORT_MAX;
use super::{avx2, short, sse2};
use crate::fault::guarded;
use core::sync::atomic::{AtomicU8, Ordering};

/// Whether the processor has AVX2; asked once.
#[inline]
pub(super) fn has_avx2() -> bool {
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
/// See the contract of [`super`].
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
/// See the contract of [`super`].
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
/// See the contract of [`super`].
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
/// See the contract of [`super`].
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
