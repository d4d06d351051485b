//! Single loads, stores and exchanges of aligned words.

use crate::fault::guarded;

/// Reads one byte in one access.
///
/// # Safety
/// See the module's contract.
#[inline(always)]
pub(crate) unsafe fn load_u8(src: *const u8) -> Option<u8> {
    let value: u32;
    // SAFETY: by the caller's promise, [0, 1) is valid. The output is set before the access, so it
    // is initialized in every case.
    let ok = unsafe {
        guarded!(
            ["xor {value:e}, {value:e}", "movzx {value:e}, byte ptr [{src}]"],
            [],
            src = in(reg) src,
            value = out(reg) value,
            options(readonly),
        )
    };
    ok.then_some(value as u8)
}

/// Reads one aligned 2-byte word in one access.
///
/// # Safety
/// See the module's contract; `src` is a multiple of 2.
#[inline(always)]
pub(crate) unsafe fn load_u16(src: *const u8) -> Option<u16> {
    let value: u32;
    // SAFETY: as in `load_u8`, with [0, 2).
    let ok = unsafe {
        guarded!(
            ["xor {value:e}, {value:e}", "movzx {value:e}, word ptr [{src}]"],
            [],
            src = in(reg) src,
            value = out(reg) value,
            options(readonly),
        )
    };
    ok.then_some(value as u16)
}

/// Writes one byte in one access.
///
/// # Safety
/// See the module's contract.
#[inline(always)]
pub(crate) unsafe fn store_u8(dst: *mut u8, value: u8) -> bool {
    // SAFETY: by the caller's promise, [0, 1) is valid.
    unsafe {
        guarded!(
            ["mov byte ptr [{dst}], {value}"],
            [],
            dst = in(reg) dst,
            value = in(reg_byte) value,
        )
    }
}

/// Writes one aligned 2-byte word in one access.
///
/// # Safety
/// See the module's contract; `dst` is a multiple of 2.
#[inline(always)]
pub(crate) unsafe fn store_u16(dst: *mut u8, value: u16) -> bool {
    // SAFETY: by the caller's promise, [0, 2) is valid.
    unsafe {
        guarded!(
            ["mov word ptr [{dst}], {value:x}"],
            [],
            dst = in(reg) dst,
            value = in(reg) value,
        )
    }
}

/// Reads one aligned 4-byte word in one access. Acquire, like every load of this processor.
///
/// # Safety
/// See the module's contract; `src` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn load_u32(src: *const u8) -> Option<u32> {
    let value: u32;
    // SAFETY: by the caller's promise, [0, 4) is valid. The output is set before the access, so it
    // is initialized in every case.
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

/// Reads an 8-byte word. If it is aligned, one access reads it; otherwise each half is read in one
/// access. Acquire, like every load of this processor.
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

/// Joins two adjacent 4-byte words to an 8-byte word.
const fn pair([first, second]: [u32; 2]) -> u64 {
    first as u64 | (second as u64) << 32
}

/// Writes two adjacent 4-byte words. Release, like every store of this processor.
///
/// # Safety
/// See the module's contract; `dst` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn store_2(dst: *mut u8, words: [u32; 2]) -> bool {
    // SAFETY: the caller makes the same promise.
    unsafe { store_u64(dst, pair(words)) }
}

/// Writes three adjacent 4-byte words. Release, like every store of this processor.
///
/// # Safety
/// See the module's contract; `dst` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn store_3(dst: *mut u8, [first, second, third]: [u32; 3]) -> bool {
    let pair = pair([first, second]);
    // SAFETY: by the caller's promise, [0, 12) is valid.
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

/// Writes one aligned 4-byte word in one access. Release, like every store of this processor.
///
/// # Safety
/// See the module's contract; `dst` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn store_u32(dst: *mut u8, value: u32) -> bool {
    // SAFETY: by the caller's promise, [0, 4) is valid.
    unsafe {
        guarded!(
            ["mov dword ptr [{dst}], {value:e}"],
            [],
            dst = in(reg) dst,
            value = in(reg) value,
        )
    }
}

/// Writes one aligned 4-byte word and returns its old value, atomically. Sequentially consistent,
/// like every exchange of this processor.
///
/// # Safety
/// See the module's contract; `at` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn swap_u32(at: *mut u8, value: u32) -> Option<u32> {
    let before: u32;
    // SAFETY: by the caller's promise, [0, 4) is valid. If the access faults, the output register
    // contains `value`.
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

/// Writes an 8-byte word. If it is aligned, one access writes it; otherwise each half is written in
/// one access. Release, like every store of this processor.
///
/// # Safety
/// See the module's contract; `dst` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn store_u64(dst: *mut u8, value: u64) -> bool {
    // SAFETY: by the caller's promise, [0, 8) is valid.
    unsafe {
        guarded!(
            ["mov qword ptr [{dst}], {value}"],
            [],
            dst = in(reg) dst,
            value = in(reg) value,
        )
    }
}
