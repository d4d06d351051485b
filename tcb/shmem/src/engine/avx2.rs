//! Long copies with 32-byte registers.

use super::short::SHORT_MAX;
use crate::fault::guarded;

/// Bytes per iteration of the loop, and in the tail of every copy.
const BLOCK: usize = 128;

/// Copies more than [`SHORT_MAX`] bytes. Fails and copies nothing if the length is smaller.
///
/// The first 32 bytes are copied separately, so that the loop's stores are aligned. The last
/// [`BLOCK`] bytes are also copied separately, so that the loop has no remainder.
///
/// # Safety
/// See the contract of [`super`]; the processor has AVX2.
#[inline(never)]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> bool {
    const { assert!(SHORT_MAX >= BLOCK) };
    if len <= SHORT_MAX {
        return false;
    }
    let to_aligned = 32 - dst.addr() % 32;
    // SAFETY: the accesses are [0, 32), whole blocks from `to_aligned` ≤ 32 while a block starts
    // before len − BLOCK, and the last BLOCK bytes. All lie in [0, len), since len > BLOCK. Pointer
    // arithmetic stays within the same two ranges. Every vector register is declared clobbered,
    // because `vzeroupper` clears the upper halves of all of them.
    unsafe {
        guarded!(
            [
                "vmovdqu ymm0, [{src}]",
                "vmovdqu [{dst}], ymm0",
                "add {src}, {skip}",
                "add {dst}, {skip}",
                "cmp {src}, {last_src}",
                "jae 5f",
                ".p2align 4",
                "4:",
                "vmovdqu ymm0, [{src}]",
                "vmovdqu ymm1, [{src} + 32]",
                "vmovdqu ymm2, [{src} + 64]",
                "vmovdqu ymm3, [{src} + 96]",
                "add {src}, 128",
                "vmovdqa [{dst}], ymm0",
                "vmovdqa [{dst} + 32], ymm1",
                "vmovdqa [{dst} + 64], ymm2",
                "vmovdqa [{dst} + 96], ymm3",
                "add {dst}, 128",
                "cmp {src}, {last_src}",
                "jb 4b",
                "5:",
                "vmovdqu ymm0, [{last_src}]",
                "vmovdqu ymm1, [{last_src} + 32]",
                "vmovdqu ymm2, [{last_src} + 64]",
                "vmovdqu ymm3, [{last_src} + 96]",
                "vmovdqu [{last_dst}], ymm0",
                "vmovdqu [{last_dst} + 32], ymm1",
                "vmovdqu [{last_dst} + 64], ymm2",
                "vmovdqu [{last_dst} + 96], ymm3",
            ],
            ["vzeroupper"],
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            last_src = in(reg) src.wrapping_add(len - BLOCK),
            last_dst = in(reg) dst.wrapping_add(len - BLOCK),
            skip = in(reg) to_aligned,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
        )
    }
}

/// Sums `blocks` blocks of 64 bytes as little-endian 4-byte words.
///
/// # Safety
/// See the contract of [`super`]; the processor has AVX2; `blocks` is not 0.
#[inline(never)]
pub(super) unsafe fn sum(src: *const u8, blocks: usize) -> Option<u64> {
    let sum: u64;
    // SAFETY: the accesses are `blocks` × 64 bytes starting at `src`, by the caller's promise. The
    // output is set before the first access. Vector registers as in `copy`.
    let ok = unsafe {
        guarded!(
            [
                "xor {sum:e}, {sum:e}",
                "vpxor xmm4, xmm4, xmm4",
                "vpxor xmm5, xmm5, xmm5",
                "vpxor xmm6, xmm6, xmm6",
                "vpxor xmm7, xmm7, xmm7",
                "vpxor xmm8, xmm8, xmm8",
                ".p2align 4",
                "4:",
                // Each 8-byte lane contains two words: shift the odd one down, and mask the even
                // one.
                "vmovdqu ymm0, [{src}]",
                "vmovdqu ymm1, [{src} + 32]",
                "vpsrlq ymm2, ymm0, 32",
                "vpsrlq ymm3, ymm1, 32",
                "vpblendd ymm0, ymm0, ymm8, 0xaa",
                "vpblendd ymm1, ymm1, ymm8, 0xaa",
                "vpaddq ymm4, ymm4, ymm2",
                "vpaddq ymm5, ymm5, ymm3",
                "vpaddq ymm6, ymm6, ymm0",
                "vpaddq ymm7, ymm7, ymm1",
                "add {src}, 64",
                "dec {blocks}",
                "jnz 4b",
                "vpaddq ymm4, ymm4, ymm5",
                "vpaddq ymm6, ymm6, ymm7",
                "vpaddq ymm4, ymm4, ymm6",
                "vextracti128 xmm5, ymm4, 1",
                "vpaddq xmm4, xmm4, xmm5",
                "vpsrldq xmm5, xmm4, 8",
                "vpaddq xmm4, xmm4, xmm5",
                "vmovq {sum}, xmm4",
            ],
            ["vzeroupper"],
            src = inout(reg) src => _,
            blocks = inout(reg) blocks => _,
            sum = out(reg) sum,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
        )
    };
    ok.then_some(sum)
}
