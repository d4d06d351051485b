//! The copy of the trusted base: one instruction.

use crate::fault::guarded;

/// Copies `len` bytes.
///
/// # Safety
/// See the contract of [`super`].
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> bool {
    // SAFETY: accesses [0, len) of both, by the caller's promise. The direction flag is clear on
    // entry of every `asm!` block.
    unsafe {
        guarded!(
            ["rep movsb"],
            [],
            inout("rdi") dst => _,
            inout("rsi") src => _,
            inout("rcx") len => _,
        )
    }
}
