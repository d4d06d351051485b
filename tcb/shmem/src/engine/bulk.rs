//! Copies of any length, the two most common lengths, and fills.

use super::short::SHORT_MAX;
use super::{avx2, short, sse2};
use crate::fault::guarded;
use core::sync::atomic::{AtomicU8, Ordering};

/// Returns whether the processor supports AVX2. Asks the processor only once.
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
    // SAFETY: the caller makes the same promise.
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

/// Copies 64 bytes, the size of a minimal frame. It is inlined, so that it costs only the loads and
/// stores.
///
/// # Safety
/// See the contract of [`super`].
#[inline(always)]
pub(crate) unsafe fn copy_64(dst: *mut u8, src: *const u8) -> bool {
    // SAFETY: by the caller's promise, [0, 64) of both is valid.
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

/// Copies 96 bytes, the size of the header snapshot. It is inlined like [`copy_64`].
///
/// # Safety
/// See the contract of [`super`].
#[inline(always)]
pub(crate) unsafe fn copy_96(dst: *mut u8, src: *const u8) -> bool {
    // SAFETY: by the caller's promise, [0, 96) of both is valid.
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

/// Prefetches a cache line for reading.
#[inline(always)]
pub(crate) fn prefetch(line: *const u8) {
    // SAFETY: a prefetch is a hint, valid for any address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
}

/// Prefetches a cache line for writing, which invalidates it in other caches.
#[inline(always)]
pub(crate) fn prefetch_write(line: *const u8) {
    // SAFETY: as in `prefetch`; processors without the instruction ignore it.
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
    // SAFETY: by the caller's promise, [0, len) of `dst` is valid. The direction flag is clear on
    // entry of every `asm!` block.
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
