//! Long copies with 16-byte registers, for processors without AVX2.

use super::short::SHORT_MAX;
use crate::fault::guarded;

/// Bytes per iteration of the loop, and in the tail of every copy.
const BLOCK: usize = 64;

/// Copies more than [`SHORT_MAX`] bytes. Fails and copies nothing if the length is smaller.
/// Structured like [`super::avx2::copy`].
///
/// # Safety
/// See the contract of [`super`].
#[inline(never)]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> bool {
    const { assert!(SHORT_MAX >= BLOCK) };
    if len <= SHORT_MAX {
        return false;
    }
    let to_aligned = 16 - dst.addr() % 16;
    // SAFETY: the accesses are [0, 16), whole blocks from `to_aligned` ≤ 16 while a block starts
    // before len − BLOCK, and the last BLOCK bytes. All lie in [0, len), since len > BLOCK.
    unsafe {
        guarded!(
            [
                "movdqu {a}, [{src}]",
                "movdqu [{dst}], {a}",
                "add {src}, {skip}",
                "add {dst}, {skip}",
                "cmp {src}, {last_src}",
                "jae 5f",
                ".p2align 4",
                "4:",
                "movdqu {a}, [{src}]",
                "movdqu {b}, [{src} + 16]",
                "movdqu {c}, [{src} + 32]",
                "movdqu {d}, [{src} + 48]",
                "add {src}, 64",
                "movdqa [{dst}], {a}",
                "movdqa [{dst} + 16], {b}",
                "movdqa [{dst} + 32], {c}",
                "movdqa [{dst} + 48], {d}",
                "add {dst}, 64",
                "cmp {src}, {last_src}",
                "jb 4b",
                "5:",
                "movdqu {a}, [{last_src}]",
                "movdqu {b}, [{last_src} + 16]",
                "movdqu {c}, [{last_src} + 32]",
                "movdqu {d}, [{last_src} + 48]",
                "movdqu [{last_dst}], {a}",
                "movdqu [{last_dst} + 16], {b}",
                "movdqu [{last_dst} + 32], {c}",
                "movdqu [{last_dst} + 48], {d}",
            ],
            [],
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            last_src = in(reg) src.wrapping_add(len - BLOCK),
            last_dst = in(reg) dst.wrapping_add(len - BLOCK),
            skip = in(reg) to_aligned,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
        )
    }
}

/// Sums `blocks` blocks of 64 bytes as little-endian 8-byte words, with carries.
///
/// # Safety
/// See the contract of [`super`]; `blocks` is not 0.
#[inline(never)]
pub(super) unsafe fn sum(src: *const u8, blocks: usize) -> Option<u64> {
    let sum: u64;
    // SAFETY: the accesses are `blocks` × 64 bytes starting at `src`, by the caller's promise. The
    // output is set before the first access.
    let ok = unsafe {
        guarded!(
            [
                "xor {sum:e}, {sum:e}",
                ".p2align 4",
                "4:",
                "add {sum}, qword ptr [{src}]",
                "adc {sum}, qword ptr [{src} + 8]",
                "adc {sum}, qword ptr [{src} + 16]",
                "adc {sum}, qword ptr [{src} + 24]",
                "adc {sum}, qword ptr [{src} + 32]",
                "adc {sum}, qword ptr [{src} + 40]",
                "adc {sum}, qword ptr [{src} + 48]",
                "adc {sum}, qword ptr [{src} + 56]",
                "adc {sum}, 0",
                "lea {src}, [{src} + 64]",
                "dec {blocks}",
                "jnz 4b",
            ],
            [],
            src = inout(reg) src => _,
            blocks = inout(reg) blocks => _,
            sum = out(reg) sum,
        )
    };
    ok.then_some(sum)
}
