//! The agent's code: some forty instructions, which use no stack and no memory other than the
//! argument pages. They are in a sealed page at the same address in every domain.

use abi::layout::{PAGE, STUB};
use libc::c_long;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use shmem::Span;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

/// Address of the argument pages.
pub(crate) const ARGS: u64 = (STUB + PAGE) as u64;

/// Size of a record in bytes.
pub(crate) const RECORD_BYTES: usize = 64;

/// A system call, in the form that the stub reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StubRecord {
    pub(crate) nr: c_long,
    pub(crate) args: [u64; 6],
    /// The expected result. Any other result ends the batch.
    pub(crate) expected: i64,
}

impl StubRecord {
    /// Writes the record into argument pages.
    pub(crate) fn write(&self, pages: Span, offset: usize) {
        let [a, b, c, d, e, f] = self.args;
        let words = [self.nr as u64, a, b, c, d, e, f, self.expected as u64];
        for (word, value) in words.into_iter().enumerate() {
            if let Some(place) = pages.u64(offset + word * 8) {
                // Relaxed, because the following system call orders these stores for the reader.
                place.store(value, Relaxed);
            }
        }
    }
}

// The code has three parts. `loop` requests work by getppid(records done, last result); the answer
// is the number of records, or an error if the monitor has closed the listener. The other two parts
// are for the start, while the process is traced, and end with a breakpoint. `single_call` makes
// one system call from its registers. `call_list` makes the system calls of the records at r14, of
// which r13 is the number, until one fails. rbx is the number of records done, rbp the last result,
// and r12 the address at which to continue after the records.
std::arch::global_asm!(
    ".pushsection .rodata.grantway_stub, \"a\"",
    ".balign 16",
    // The symbols are global, because the crate's codegen units may be assembled separately.
    ".globl grantway_stub_loop, grantway_stub_single_call",
    ".globl grantway_stub_call_list, grantway_stub_end",
    ".hidden grantway_stub_loop, grantway_stub_single_call",
    ".hidden grantway_stub_call_list, grantway_stub_end",
    "grantway_stub_loop:",
    "    lea r12, [rip + 2f]",
    "    xor ebx, ebx", // records done
    "    xor ebp, ebp", // last result
    "2:  mov eax, {getppid}",
    "    mov rdi, rbx",
    "    mov rsi, rbp",
    "    syscall",
    "    test rax, rax",
    "    jle 9f",
    "    mov r13, rax",
    "    mov r14, {args}",
    "    xor ebx, ebx",
    "3:  mov rax, [r14]",
    "    mov rdi, [r14 + 8]",
    "    mov rsi, [r14 + 16]",
    "    mov rdx, [r14 + 24]",
    "    mov r10, [r14 + 32]",
    "    mov r8,  [r14 + 40]",
    "    mov r9,  [r14 + 48]",
    "    syscall",
    "    mov rbp, rax",
    "    cmp rax, [r14 + 56]",
    "    jne 5f",
    "    inc rbx",
    "    add r14, 64",
    "4:  cmp rbx, r13",
    "    jb 3b",
    "5:  jmp r12",
    "9:  mov eax, {exit_group}",
    "    xor edi, edi",
    "    syscall",
    "    ud2",
    ".balign 16",
    "grantway_stub_call_list:",
    "    lea r12, [rip + 6f]",
    "    xor ebx, ebx",
    "    xor ebp, ebp",
    "    jmp 4b",
    ".balign 16",
    "grantway_stub_single_call:",
    "    syscall",
    "6:  int3",
    "    ud2",
    "grantway_stub_end:",
    ".popsection",
    getppid = const libc::SYS_getppid,
    exit_group = const libc::SYS_exit_group,
    args = const ARGS,
);

unsafe extern "C" {
    static grantway_stub_loop: u8;
    static grantway_stub_single_call: u8;
    static grantway_stub_call_list: u8;
    static grantway_stub_end: u8;
}

/// The address of the agent's entry.
pub(crate) const LOOP: u64 = STUB as u64;

fn address(of: *const u8) -> u64 {
    STUB as u64 + (of as u64 - &raw const grantway_stub_loop as u64)
}

/// Returns the address of the code for one injected system call.
pub(crate) fn single_call() -> u64 {
    address(&raw const grantway_stub_single_call)
}

/// Returns the address of the code for a list of injected system calls.
pub(crate) fn call_list() -> u64 {
    address(&raw const grantway_stub_call_list)
}

fn code() -> &'static [u8] {
    let start = &raw const grantway_stub_loop;
    let bytes = &raw const grantway_stub_end as usize - start as usize;
    // SAFETY: the two symbols mark the start and the end of the read-only data above.
    unsafe { std::slice::from_raw_parts(start, bytes) }
}

/// Returns a read-only descriptor of the stub's page, which is fully sealed.
///
/// # Errors
/// Returns an error if the kernel cannot create the file.
pub(crate) fn page() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let make = |flags| memfd_create("grantway-agent", flags);
    // Linux before 6.3 does not support MFD_EXEC.
    let mut file = File::from(make(flags | MemfdFlags::EXEC).or_else(|_| make(flags))?);
    file.write_all(code())?;
    file.set_len(PAGE as u64)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into())
}
