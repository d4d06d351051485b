//! The sum of the Internet checksum (RFC 1071).
//!
//! One's-complement addition works with any word size and byte order if the result is folded and
//! swapped at the end, so the engines add little-endian words of 4 or 8 bytes.

use super::bulk::{self, has_avx2};
use super::{avx2, sse2};

/// Bytes that the engines process per iteration.
const BLOCK: usize = 64;

/// An engine, which sums blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Engine {
    /// 32-byte registers.
    Avx2,
    /// A chain of additions with carry.
    Adc,
}

/// Returns the best engine of this processor.
#[inline]
pub(crate) fn best() -> Engine {
    if has_avx2() {
        Engine::Avx2
    } else {
        Engine::Adc
    }
}

/// Sums `len` bytes as big-endian 2-byte words, with an odd last byte padded by 0, and folds the
/// sum to 16 bits. Returns `None` after a fault.
///
/// # Safety
/// See the contract of [`super`]; `Engine::Avx2` needs a processor that supports it.
pub(crate) unsafe fn sum(engine: Engine, src: *const u8, len: usize) -> Option<u16> {
    let blocks = len / BLOCK;
    let mut sum = 0;
    if blocks > 0 {
        // SAFETY: whole blocks lie within [0, len), which is valid by the caller's promise.
        sum = unsafe {
            match engine {
                Engine::Avx2 => avx2::sum(src, blocks)?,
                Engine::Adc => sse2::sum(src, blocks)?,
            }
        };
    }
    // Copy the rest into a private, zero-padded block, which needs no special case at its end.
    let mut rest = [0_u8; BLOCK];
    // SAFETY: the rest lies within [0, len) and is shorter than the private block.
    let ok = unsafe {
        bulk::copy(
            rest.as_mut_ptr(),
            src.wrapping_add(blocks * BLOCK),
            len % BLOCK,
        )
    };
    if !ok {
        return None;
    }
    for word in rest.chunks_exact(8) {
        let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
        let (added, carry) = sum.overflowing_add(word);
        // After a carry, `added` is less than the maximum, so this cannot wrap.
        sum = added.wrapping_add(u64::from(carry));
    }
    Some(fold(sum).swap_bytes())
}

/// Folds a sum to 16 bits with end-around carries. The result is 0 only if `sum` is 0.
fn fold(sum: u64) -> u16 {
    // The maximum is 0x1_ffff_fffe, then 0x1_fffe, then 0xffff.
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
