//! Faults that are survived: the exception table and the signal handler.
//!
//! Every copy routine is one `asm!` block made by [`guarded!`]. The block records its own range
//! of instructions in the section `gw_extable`; when one of them faults, the handler moves the
//! instruction pointer to the end of the range, where the block's result still says "failed".
//! Any other fault is a bug in us: the process says so in one line and exits with [`EXIT_CODE`].

use core::ffi::c_void;
use core::fmt;
use std::io::{Cursor, Write};
use std::sync::Once;

/// Exit code of a process that touched memory which it had no business with.
pub(crate) const EXIT_CODE: i32 = 77;

/// A touch of memory that is not (or no longer) there, or not writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the memory is not there or not writable")
    }
}

impl core::error::Error for Fault {}

/// One `asm!` block whose faults are survived: `guarded!([body…], [after…], operands…)` is
/// whether the body ran to its end. `after` runs in either case. Must stand in `unsafe`.
///
/// The labels 2 and 3 are taken. The body must not touch the stack and must leave nothing behind
/// that `after` does not clean up, wherever it is cut off.
macro_rules! guarded {
    ([$($line:expr),* $(,)?], [$($after:expr),* $(,)?], $($operands:tt)*) => {{
        let failed: u32;
        core::arch::asm!(
            "mov {failed:e}, 1",
            "2:",
            $($line,)*
            "xor {failed:e}, {failed:e}",
            "3:",
            $($after,)*
            ".pushsection gw_extable, \"aR\", @progbits",
            ".balign 4",
            ".long 2b - .",
            ".long 3b - .",
            ".popsection",
            failed = out(reg) failed,
            $($operands)*
            options(nostack),
        );
        failed == 0
    }};
}
pub(crate) use guarded;

unsafe extern "C" {
    /// The linker's names for the two ends of the section.
    static __start_gw_extable: [i32; 0];
    static __stop_gw_extable: [i32; 0];
}

/// Where a fault at `rip` continues: the end of the guarded range that contains it.
fn fix_up(rip: usize) -> Option<usize> {
    // SAFETY: emits an entry of an empty range, which never matches; it makes the section, and so
    // the linker's two symbols, exist in every program that links the handler.
    unsafe {
        core::arch::asm!(
            ".pushsection gw_extable, \"aR\", @progbits",
            ".balign 4",
            ".long 0",
            ".long -4",
            ".popsection",
            options(nomem, nostack, preserves_flags),
        );
    }
    let mut entry = (&raw const __start_gw_extable).cast::<i32>();
    let stop = (&raw const __stop_gw_extable).cast::<i32>();
    while entry < stop {
        // SAFETY: the linker lays the entries out back to back between its two symbols, two
        // 4-byte words each, read-only.
        let (start, end, next) = unsafe {
            let second = entry.add(1);
            (
                (entry as usize).wrapping_add_signed(*entry as isize),
                (second as usize).wrapping_add_signed(*second as isize),
                entry.add(2),
            )
        };
        if start <= rip && rip < end {
            return Some(end);
        }
        entry = next;
    }
    None
}

/// Makes faults inside this crate's copies survivable (SIGSEGV, SIGBUS). Any other fault ends the
/// process with exit code 77 and one line on standard error. Done once; later calls cost a load.
///
/// [`crate::Area`], [`crate::Region`] and [`crate::home`] call it, so every holder of a span has
/// the handler.
///
/// # Panics
/// If the kernel refuses the handler: without it nothing here is safe to use.
pub fn install_fault_handler() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| [libc::SIGSEGV, libc::SIGBUS].into_iter().for_each(install));
}

fn install(signal: i32) {
    // SAFETY: the struct is plain data whose all-zero form is valid; the handler has the
    // signature that SA_SIGINFO asks for and uses async-signal-safe calls only. SA_ONSTACK
    // uses the alternate stack where the thread has one.
    let result = unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(signal, &action, core::ptr::null_mut())
    };
    assert_eq!(result, 0, "no handler for signal {signal}");
}

/// The handler of SIGSEGV and SIGBUS.
extern "C" fn handler(_signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel passes a valid siginfo and ucontext to a handler installed with
    // SA_SIGINFO; both stay ours until it returns.
    let (rip, address) = unsafe {
        let rip = &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
        if let Some(continue_at) = fix_up(*rip as usize) {
            *rip = continue_at as i64;
            return;
        }
        (*rip as u64, (*info).si_addr() as u64)
    };
    die(rip, address);
}

/// Says where it happened and ends the process, without allocating.
fn die(rip: u64, address: u64) -> ! {
    // Longer than the line can be.
    let mut line = Cursor::new([0_u8; 96]);
    let _ = writeln!(
        line,
        "grantway: bad access to 0x{address:016x} by the instruction at 0x{rip:016x}"
    );
    // SAFETY: plain system calls on our own buffer; `_exit` runs no destructor.
    unsafe {
        libc::write(2, line.get_ref().as_ptr().cast(), line.position() as usize);
        libc::_exit(EXIT_CODE)
    }
}
