//! The sum of the Internet checksum (RFC 1071).
//!
//! One's-complement addition works with any word size and byte order, if the result is folded and
//! swapped at the end: the engines add little-endian 4- or 8-byte words.

use super::bulk::{self, has_avx2};
use super::{avx2, sse2};

/// Bytes that the engines process at once.
const BLOCK: usize = 64;

/// The engine that sums the blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Engine {
    /// 32-byte registers.
    Avx2,
    /// The carry chain.
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

/// Sums `len` bytes as big-endian 2-byte words, with an odd last byte padded by 0, folded to 16
/// bits; `None` after a fault.
///
/// # Safety
/// See the contract of [`super`]; `Engine::Avx2` needs a processor that supports it.
pub(crate) unsafe fn sum(engine: Engine, src: *const u8, len: usize) -> Option<u16> {
    let blocks = len / BLOCK;
    let mut sum = 0;
    if blocks > 0 {
        // SAFETY: whole blocks lie within [0, len); the rest is the caller's promise.
        sum = unsafe {
            match engine {
                Engine::Avx2 => avx2::sum(src, blocks)?,
                Engine::Adc => sse2::sum(src, blocks)?,
            }
        };
    }
    // The rest is copied out first, because a private, zero-padded block needs no special case at
    // its end.
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

/// Folds to 16 bits with end-around carries: the result is 0 only if `sum` is 0.
fn fold(sum: u64) -> u16 {
    // At most 0x1_ffff_fffe, then 0x1_fffe, then 0xffff.
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
