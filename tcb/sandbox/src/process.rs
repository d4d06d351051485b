//! The kernel's data about the monitor's processes.

/// Returns the CPU time of a process in nanoseconds.
#[must_use]
pub fn cpu_ns(pid: i32) -> Option<u64> {
    clock_ns(pid, 2)
}

/// Returns the CPU time of a thread of this process in nanoseconds.
#[must_use]
pub fn thread_cpu_ns(tid: i32) -> Option<u64> {
    clock_ns(tid, 6)
}

/// Returns the user id of a confined process: see [`abi::user_ids`].
#[must_use]
pub fn user_of(pid: i32) -> u32 {
    use std::os::unix::fs::MetadataExt;
    let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino());
    abi::user_ids::user_of(pid.cast_unsigned(), namespace)
}

/// Reads the CPU clock of a process or thread. The clock's number contains the id
/// (include/linux/posix-timers.h).
fn clock_ns(id: i32, kind: libc::clockid_t) -> Option<u64> {
    // Id 0 refers to the caller.
    let clock = (id > 0).then_some((!id << 3) | kind)?;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one timespec to this variable.
    let read = unsafe { libc::clock_gettime(clock, &raw mut time) } == 0;
    read.then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Returns the fields of /proc/PID/stat, beginning with the state.
fn stat(pid: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.trim().to_owned())
}

/// Returns the letter of a process's state: `R` running or runnable, `S` sleeping, `Z` zombie …
pub(crate) fn state(pid: i32) -> Option<char> {
    stat(pid)?.chars().next()
}

/// Returns the wait status of a process that has exited but was not reaped. The status is also 0 if
/// this process may not read it.
pub(crate) fn exit_status(pid: i32) -> Option<i32> {
    let stat = stat(pid)?;
    let mut fields = stat.split_whitespace();
    (fields.next()? == "Z").then(|| fields.next_back()?.parse().ok())?
}
