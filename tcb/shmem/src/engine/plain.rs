//! The copy routine of the trusted base, which is one instruction.

use crate::fault::guarded;

/// Copies `len` bytes.
///
/// # Safety
/// See the contract of [`super`].
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> bool {
    // SAFETY: by the caller's promise, [0, len) of both is valid. The direction flag is clear on
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
