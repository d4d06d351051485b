//! What the kernel tells about a process of ours.

/// CPU time that a process has used, nanoseconds.
#[must_use]
pub fn cpu_ns(pid: i32) -> Option<u64> {
    clock_ns(pid, 2)
}

/// CPU time that a thread of our own has used, nanoseconds.
#[must_use]
pub fn thread_cpu_ns(tid: i32) -> Option<u64> {
    clock_ns(tid, 6)
}

/// The user id of a process of ours: see [`abi::users`].
#[must_use]
pub fn user_of(pid: i32) -> u32 {
    use std::os::unix::fs::MetadataExt;
    let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino());
    abi::users::user_of(pid.cast_unsigned(), namespace)
}

/// What one of the kernel's clocks shows whose number is made of a process's or thread's
/// (include/linux/posix-timers.h).
fn clock_ns(id: i32, kind: libc::clockid_t) -> Option<u64> {
    // 0 would be who asks.
    let clock = (id > 0).then_some((!id << 3) | kind)?;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec to this place.
    let read = unsafe { libc::clock_gettime(clock, &raw mut time) } == 0;
    read.then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The fields of /proc/PID/stat from the state on.
fn stat(pid: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.trim().to_owned())
}

/// The letter of a process's state: `R`unning or ready to, `S`leeping, `Z`ombie …
pub(crate) fn state(pid: i32) -> Option<char> {
    stat(pid)?.chars().next()
}

/// What `wait` would tell about a process that has ended and is in the table still; 0 also if
/// that is none of our business.
pub(crate) fn exit_status(pid: i32) -> Option<i32> {
    let stat = stat(pid)?;
    let mut fields = stat.split_whitespace();
    (fields.next()? == "Z").then(|| fields.next_back()?.parse().ok())?
}
