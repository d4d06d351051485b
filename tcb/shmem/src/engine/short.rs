//! Copies of 0 … 128 bytes. Each length class loads the first and the last bytes, which overlap if
//! necessary, and then stores them. No class needs a loop or another branch.
//!
//! The function is long because it is a table with one arm of instructions per class.

use crate::fault::guarded;

/// The largest length of a short copy.
pub(super) const SHORT_MAX: usize = 128;

/// Copies up to [`SHORT_MAX`] bytes. Fails and copies nothing if the length is larger.
///
/// # Safety
/// See the contract of [`super`].
// sizes: it is a table, one arm of instructions for each class of lengths.
#[inline(never)]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> bool {
    // SAFETY (all blocks below): every access lies in [0, len) of either range, because each arm
    // accesses at most its own smallest length from either end; the ranges are valid by the
    // caller's promise.
    match len {
        0 => true,
        // SAFETY: as above.
        1 => unsafe {
            guarded!(
                ["movzx {a:e}, byte ptr [{src}]", "mov byte ptr [{dst}], {a:l}"],
                [],
                src = in(reg) src, dst = in(reg) dst, a = out(reg) _,
            )
        },
        // SAFETY: as above.
        2..=3 => unsafe {
            guarded!(
                [
                    "movzx {a:e}, word ptr [{src}]",
                    "movzx {b:e}, byte ptr [{src} + {len} - 1]",
                    "mov word ptr [{dst}], {a:x}",
                    "mov byte ptr [{dst} + {len} - 1], {b:l}",
                ],
                [],
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len,
                a = out(reg) _, b = out(reg) _,
            )
        },
        // SAFETY: as above.
        4..=7 => unsafe {
            guarded!(
                [
                    "mov {a:e}, dword ptr [{src}]",
                    "mov {b:e}, dword ptr [{src} + {len} - 4]",
                    "mov dword ptr [{dst}], {a:e}",
                    "mov dword ptr [{dst} + {len} - 4], {b:e}",
                ],
                [],
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len,
                a = out(reg) _, b = out(reg) _,
            )
        },
        // SAFETY: as above.
        8..=15 => unsafe {
            guarded!(
                [
                    "mov {a}, qword ptr [{src}]",
                    "mov {b}, qword ptr [{src} + {len} - 8]",
                    "mov qword ptr [{dst}], {a}",
                    "mov qword ptr [{dst} + {len} - 8], {b}",
                ],
                [],
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len,
                a = out(reg) _, b = out(reg) _,
            )
        },
        // SAFETY: as above.
        16..=32 => unsafe {
            guarded!(
                [
                    "movups {a}, [{src}]",
                    "movups {b}, [{src} + {len} - 16]",
                    "movups [{dst}], {a}",
                    "movups [{dst} + {len} - 16], {b}",
                ],
                [],
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len,
                a = out(xmm_reg) _, b = out(xmm_reg) _,
            )
        },
        // SAFETY: as above.
        33..=64 => unsafe {
            guarded!(
                [
                    "movups {a}, [{src}]",
                    "movups {b}, [{src} + 16]",
                    "movups {c}, [{src} + {len} - 32]",
                    "movups {d}, [{src} + {len} - 16]",
                    "movups [{dst}], {a}",
                    "movups [{dst} + 16], {b}",
                    "movups [{dst} + {len} - 32], {c}",
                    "movups [{dst} + {len} - 16], {d}",
                ],
                [],
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            )
        },
        // SAFETY: as above.
        65..=SHORT_MAX => unsafe {
            guarded!(
                [
                    "movups {a}, [{src}]",
                    "movups {b}, [{src} + 16]",
                    "movups {c}, [{src} + 32]",
                    "movups {d}, [{src} + 48]",
                    "movups {e}, [{src} + {len} - 64]",
                    "movups {f}, [{src} + {len} - 48]",
                    "movups {g}, [{src} + {len} - 32]",
                    "movups {h}, [{src} + {len} - 16]",
                    "movups [{dst}], {a}",
                    "movups [{dst} + 16], {b}",
                    "movups [{dst} + 32], {c}",
                    "movups [{dst} + 48], {d}",
                    "movups [{dst} + {len} - 64], {e}",
                    "movups [{dst} + {len} - 48], {f}",
                    "movups [{dst} + {len} - 32], {g}",
                    "movups [{dst} + {len} - 16], {h}",
                ],
                [],
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                e = out(xmm_reg) _, f = out(xmm_reg) _, g = out(xmm_reg) _, h = out(xmm_reg) _,
            )
        },
        _ => false,
    }
}
