//! Injection of system calls into a stopped process. Only the tracing thread may use these
//! functions.

use crate::stub;
use libc::{c_int, c_long, pid_t, user_regs_struct};
use std::io;

/// Reason for which a traced process has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A signal is about to be delivered.
    Signal(c_int),
    /// One of the `PTRACE_EVENT_*`.
    Event(c_int),
    /// The process has exited, with this `waitpid` status.
    Ended(c_int),
}

fn check(r: c_long) -> io::Result<()> {
    if r == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Starts tracing a child, which from then on dies with the calling thread.
pub(crate) fn seize(pid: pid_t) -> io::Result<()> {
    let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACEFORK;
    // SAFETY: this request takes its arguments by value.
    check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, options as libc::c_ulong) })
}

/// Detaches from a stopped process.
pub(crate) fn detach(pid: pid_t) -> io::Result<()> {
    // SAFETY: as in `seize`.
    check(unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0) })
}

/// Resumes a stopped process without a signal.
pub(crate) fn resume(pid: pid_t) -> io::Result<()> {
    // SAFETY: as in `seize`.
    check(unsafe { libc::ptrace(libc::PTRACE_CONT, pid, 0, 0) })
}

/// Returns the message of the event at which a process has stopped: for a fork, the id of the new
/// process.
pub(crate) fn event_message(pid: pid_t) -> io::Result<u64> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the request writes one `c_ulong` to this variable.
    check(unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, pid, 0, &raw mut message) })?;
    Ok(message)
}

/// Returns the registers of a stopped process.
pub(crate) fn registers(pid: pid_t) -> io::Result<user_regs_struct> {
    // SAFETY: all fields are integers, for which zero is valid.
    let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the request writes one `user_regs_struct` to this variable.
    check(unsafe { libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut registers) })?;
    Ok(registers)
}

/// Sets the registers of a stopped process. Makes `orig_rax` negative, so that an interrupted
/// system call is not restarted.
pub(crate) fn set_registers(pid: pid_t, mut registers: user_regs_struct) -> io::Result<()> {
    registers.orig_rax = u64::MAX;
    // SAFETY: the request reads one `user_regs_struct` from this variable.
    check(unsafe { libc::ptrace(libc::PTRACE_SETREGS, pid, 0, &raw const registers) })
}

/// Replaces the eight bytes at an address of a stopped process, and returns the old ones.
pub(crate) fn swap_text(pid: pid_t, addr: u64, change: impl Fn(u64) -> u64) -> io::Result<u64> {
    // SAFETY: glibc's wrapper returns the word, and reports an error by errno, which is cleared
    // first.
    let old = unsafe {
        *libc::__errno_location() = 0;
        libc::ptrace(libc::PTRACE_PEEKTEXT, pid, addr, 0)
    };
    if old == -1 && io::Error::last_os_error().raw_os_error() != Some(0) {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this request takes its arguments by value.
    check(unsafe { libc::ptrace(libc::PTRACE_POKETEXT, pid, addr, change(old as u64)) })?;
    Ok(old as u64)
}

/// Waits for the process to stop.
pub(crate) fn wait(pid: pid_t) -> io::Result<Stop> {
    let mut status = 0;
    loop {
        // SAFETY: the call writes one int to this variable. `__WALL` includes children of other
        // threads.
        let r = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
        if r == pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    if !libc::WIFSTOPPED(status) {
        return Ok(Stop::Ended(status));
    }
    Ok(match status >> 16 {
        0 => Stop::Signal(libc::WSTOPSIG(status)),
        event => Stop::Event(event),
    })
}

/// Waits for the stop `expected`. Resumes the process after other stops, and suppresses their
/// signals. Returns an error after a fault, because the fault would recur forever.
pub(crate) fn wait_for(pid: pid_t, expected: Stop) -> io::Result<()> {
    loop {
        match wait(pid)? {
            stop if stop == expected => return Ok(()),
            Stop::Ended(_) => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            Stop::Signal(
                libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS,
            ) => {
                return Err(io::Error::from_raw_os_error(libc::EFAULT));
            }
            Stop::Signal(_) | Stop::Event(_) => resume(pid)?,
        }
    }
}

/// Starts a system call at `at`, the address of `syscall; int3`. `base` contains all other
/// registers.
pub(crate) fn begin(
    pid: pid_t,
    base: &user_regs_struct,
    at: u64,
    nr: c_long,
    args: &[u64],
) -> io::Result<()> {
    let arg = |n: usize| args.get(n).copied().unwrap_or(0);
    let mut registers = *base;
    registers.rip = at;
    registers.rax = nr as u64;
    registers.rdi = arg(0);
    registers.rsi = arg(1);
    registers.rdx = arg(2);
    registers.r10 = arg(3);
    registers.r8 = arg(4);
    registers.r9 = arg(5);
    set_registers(pid, registers)?;
    resume(pid)
}

/// Waits until a started call returns, and returns its raw result.
pub(crate) fn finish(pid: pid_t) -> io::Result<i64> {
    wait_for(pid, Stop::Signal(libc::SIGTRAP))?;
    Ok(registers(pid)?.rax as i64)
}

/// Makes one system call, through the stub.
///
/// # Errors
/// Returns the call's error, or an error if the process has exited.
pub(crate) fn call(
    pid: pid_t,
    base: &user_regs_struct,
    nr: c_long,
    args: &[u64],
) -> io::Result<u64> {
    begin(pid, base, stub::single_call(), nr, args)?;
    result(finish(pid)?)
}

/// Makes the system calls of the `count` records at `records`, through the stub, until one fails.
/// Returns the number of calls with the expected result, and the raw result of the last call.
pub(crate) fn list(
    pid: pid_t,
    base: &user_regs_struct,
    records: u64,
    count: usize,
) -> io::Result<(usize, i64)> {
    let mut begin = *base;
    begin.rip = stub::call_list();
    begin.r13 = count as u64;
    begin.r14 = records;
    set_registers(pid, begin)?;
    resume(pid)?;
    wait_for(pid, Stop::Signal(libc::SIGTRAP))?;
    let end = registers(pid)?;
    Ok((end.rbx as usize, end.rbp as i64))
}

/// Converts a raw result into a value or an error, as the C library does.
pub(crate) fn result(raw: i64) -> io::Result<u64> {
    if (-4095..0).contains(&raw) {
        Err(io::Error::from_raw_os_error(-raw as i32))
    } else {
        Ok(raw as u64)
    }
}
