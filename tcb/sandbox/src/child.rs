//! The code that the new process runs between its creation and `exec`. It uses only raw system
//! calls, because the process is a copy of one thread of a multi-threaded process: locks that other
//! threads held are never released in the copy.

use libc::{c_char, c_int, c_long};
use std::os::fd::RawFd;

/// The number of the program's initial descriptors. The first five are those of
/// [`abi::layout::fd`]; the others are mapped during the start and then closed.
pub(crate) const INITIAL_FDS: usize = 10;
/// Descriptor number of the stub's page.
pub(crate) const STUB: u64 = 5;
/// Descriptor number of the argument pages (read-only).
pub(crate) const ARGS: u64 = 6;
/// Descriptor number of the information region.
pub(crate) const INFO: u64 = 7;
/// Descriptor number of the domain's own frames.
pub(crate) const FRAMES: u64 = 8;
/// Descriptor number of the mailbox.
pub(crate) const MAILBOX: u64 = 9;

/// Descriptors are first moved to this number or above, so that none occupies the final number of
/// another one.
const MOVED_FDS_MIN: c_long = 64;
/// The maximum number of the agent's descriptors, of which each memory takes two.
const AGENT_NOFILE: u64 = 16 << 10;
const STACK_BYTES: u64 = 8 << 20;

/// Data for the new process, prepared before its creation.
pub(crate) struct ChildPlan<'a> {
    /// The process's end of the link to the monitor.
    pub(crate) link: RawFd,
    /// The monitor's end of the link. The process has a copy of it, which it must close.
    pub(crate) other_end: RawFd,
    pub(crate) program: RawFd,
    /// Terminated by a null pointer.
    pub(crate) argv: &'a [*const c_char],
    pub(crate) fds: [RawFd; INITIAL_FDS],
    /// The CPU on which the monitor runs.
    pub(crate) cpu: usize,
}

/// A step of the start that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum StartStep {
    /// All steps before `exec` have succeeded.
    Ready,
    Link,
    Namespaces,
    Descriptors,
    Limits,
    Privileges,
    Exec,
}

impl StartStep {
    /// Returns a description of a step.
    pub(crate) fn text(byte: u8) -> &'static str {
        const NAMES: [&str; 7] = [
            "starting",
            "waiting for the monitor",
            "entering the empty namespaces",
            "moving descriptors",
            "setting limits",
            "dropping privileges",
            "executing the program",
        ];
        NAMES.get(usize::from(byte)).copied().unwrap_or("starting")
    }
}

/// The size of the process's report on the link in bytes: a step, the errno, and 1 if the process
/// could not empty its file system.
pub(crate) const REPORT_BYTES: usize = 8;

fn report(link: c_long, step: StartStep, errno: c_int, has_files: bool) {
    let mut bytes = [0; REPORT_BYTES];
    bytes[0] = step as u8;
    bytes[1] = u8::from(has_files);
    bytes[4..].copy_from_slice(&errno.to_ne_bytes());
    let _ = sys(
        libc::SYS_write,
        [link, bytes.as_ptr() as c_long, REPORT_BYTES as c_long, 0, 0],
    );
}

fn sys(nr: c_long, [a, b, c, d, e]: [c_long; 5]) -> Result<c_long, c_int> {
    // SAFETY: the calling process will execute another program or exit. Every pointer that this
    // module passes points to memory that outlives the call.
    let r = unsafe { libc::syscall(nr, a, b, c, d, e) };
    if r == -1 {
        // SAFETY: the pointer refers to this thread's errno.
        Err(unsafe { *libc::__errno_location() })
    } else {
        Ok(r)
    }
}

/// Executes the program, or exits. `enter` contains descriptors of the mount and the network
/// namespace to enter. With `own_mounts`, the process is in a separate mount namespace, which it
/// empties.
///
/// # Safety
/// The caller must be a process that was just created by a plain clone (no shared memory): the
/// function changes the whole state of the process, and does not return.
pub(crate) unsafe fn run(plan: &ChildPlan<'_>, enter: Option<[RawFd; 2]>, own_mounts: bool) -> ! {
    let mut link = plan.link as c_long;
    if let Err((step, errno)) = become_program(plan, enter, own_mounts, &mut link) {
        report(link, step, errno, false);
    }
    let _ = sys(libc::SYS_exit_group, [127, 0, 0, 0, 0]);
    // SAFETY: exit_group does not return.
    unsafe { std::hint::unreachable_unchecked() }
}

fn become_program(
    plan: &ChildPlan<'_>,
    enter: Option<[RawFd; 2]>,
    own_mounts: bool,
    link: &mut c_long,
) -> Result<(), (StartStep, c_int)> {
    // Wait until the monitor traces this process, because only a traced process dies with the
    // monitor. A byte on the link confirms the tracing; end-of-file means that the monitor has
    // died.
    let _ = sys(libc::SYS_close, [plan.other_end as c_long, 0, 0, 0, 0]);
    pin_to(plan.cpu);
    let mut started = 0u8;
    let read = sys(libc::SYS_read, [*link, &raw mut started as c_long, 1, 0, 0]);
    if read.map_err(|errno| (StartStep::Link, errno))? != 1 {
        return Err((StartStep::Link, libc::EPIPE));
    }
    // Enter the namespaces before the descriptors are moved, because the namespaces' descriptors
    // may have the same numbers.
    if let Some([mounts, network]) = enter {
        for (fd, kind) in [(mounts, libc::CLONE_NEWNS), (network, libc::CLONE_NEWNET)] {
            let call = [fd as c_long, kind as c_long, 0, 0, 0];
            sys(libc::SYS_setns, call).map_err(|errno| (StartStep::Namespaces, errno))?;
        }
    }
    let program = descriptors(plan, link).map_err(|errno| (StartStep::Descriptors, errno))?;
    limits().map_err(|errno| (StartStep::Limits, errno))?;
    let emptied = enter.is_some() || own_mounts && empty_root().is_ok();
    let _ = sys(libc::SYS_setsid, [0; 5]);
    let no_new_privileges = [libc::PR_SET_NO_NEW_PRIVS as c_long, 1, 0, 0, 0];
    sys(libc::SYS_prctl, no_new_privileges).map_err(|errno| (StartStep::Privileges, errno))?;
    unblock_signals().map_err(|errno| (StartStep::Privileges, errno))?;
    // A domain may sleep for only tens of microseconds. The default timer slack could prolong each
    // sleep by 50 µs.
    let _ = sys(
        libc::SYS_prctl,
        [libc::PR_SET_TIMERSLACK as c_long, 1, 0, 0, 0],
    );
    report(*link, StartStep::Ready, 0, !emptied);
    let environment = [std::ptr::null::<c_char>()];
    let argv = plan.argv.as_ptr() as c_long;
    let empty_path = c"".as_ptr() as c_long;
    let flags = libc::AT_EMPTY_PATH as c_long;
    let call = [
        program,
        empty_path,
        argv,
        environment.as_ptr() as c_long,
        flags,
    ];
    match sys(libc::SYS_execveat, call) {
        Err(errno) => Err((StartStep::Exec, errno)),
        Ok(_) => Err((StartStep::Exec, libc::EIO)),
    }
}

/// Empties the process's mount namespace, reports the result, and waits until the link's other end
/// is closed.
///
/// # Safety
/// See the contract of [`run`].
pub(crate) unsafe fn hold_empty_namespaces(link: RawFd, other_end: RawFd) -> ! {
    let link = link as c_long;
    let _ = sys(libc::SYS_close, [other_end as c_long, 0, 0, 0, 0]);
    let emptied = empty_root().is_ok();
    report(link, StartStep::Ready, 0, !emptied);
    let mut byte = 0u8;
    let _ = sys(libc::SYS_read, [link, &raw mut byte as c_long, 1, 0, 0]);
    let _ = sys(libc::SYS_exit_group, [0; 5]);
    // SAFETY: exit_group does not return.
    unsafe { std::hint::unreachable_unchecked() }
}

/// Moves the descriptors to their final numbers. The link and the program have higher numbers,
/// which `exec` closes. Returns the program's number.
fn descriptors(plan: &ChildPlan<'_>, link: &mut c_long) -> Result<c_long, c_int> {
    let move_up = |fd: RawFd| {
        sys(
            libc::SYS_fcntl,
            [
                fd as c_long,
                libc::F_DUPFD_CLOEXEC as c_long,
                MOVED_FDS_MIN,
                0,
                0,
            ],
        )
    };
    *link = move_up(plan.link)?;
    let program = move_up(plan.program)?;
    let mut moved = [0; INITIAL_FDS];
    for (to, from) in moved.iter_mut().zip(plan.fds) {
        *to = move_up(from)?;
    }
    for (number, from) in (0..).zip(moved) {
        sys(libc::SYS_dup3, [from, number, 0, 0, 0])?;
    }
    Ok(program)
}

/// Pins the process to the monitor's CPU during the start: each step needs a wake-up in both
/// directions, and a wake-up on another CPU can cost fifty times as much. The CPUs of domain and
/// agent are set at the end of the start.
fn pin_to(cpu: usize) {
    let mut set = [0u64; 16];
    if let Some(word) = set.get_mut(cpu / 64) {
        *word = 1 << (cpu % 64);
    }
    let bytes = size_of_val(&set) as c_long;
    let _ = sys(
        libc::SYS_sched_setaffinity,
        [0, bytes, set.as_ptr() as c_long, 0, 0],
    );
}

fn limits() -> Result<(), c_int> {
    let set = |resource: libc::__rlimit_resource_t, limit: libc::rlimit| {
        let new = &raw const limit as c_long;
        sys(libc::SYS_prlimit64, [0, resource as c_long, new, 0, 0]).map(drop)
    };
    let hard_limit = |resource: libc::__rlimit_resource_t| {
        let mut old = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        let place = &raw mut old as c_long;
        sys(libc::SYS_prlimit64, [0, resource as c_long, 0, place, 0]).map(|_| old.rlim_max)
    };
    let both = |value| libc::rlimit {
        rlim_cur: value,
        rlim_max: value,
    };
    set(libc::RLIMIT_CORE, both(0))?;
    set(
        libc::RLIMIT_NOFILE,
        both(hard_limit(libc::RLIMIT_NOFILE)?.min(AGENT_NOFILE)),
    )?;
    // The limit of the stack also preserves the kernel's usual address layout, which an unlimited
    // stack would change.
    set(
        libc::RLIMIT_STACK,
        both(hard_limit(libc::RLIMIT_STACK)?.min(STACK_BYTES)),
    )
}

/// Replaces the file system by an empty read-only one: mounts a new tmpfs over one of the usual
/// directories, and calls `pivot_root` into it.
fn empty_root() -> Result<(), c_int> {
    let text = |s: &'static std::ffi::CStr| s.as_ptr() as c_long;
    let here = text(c".");
    let private = (libc::MS_REC | libc::MS_PRIVATE) as c_long;
    sys(libc::SYS_mount, [0, text(c"/"), 0, private, 0])?;
    let guarded = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let mut done = Err(libc::ENOENT);
    for directory in [c"/tmp", c"/proc", c"/dev", c"/sys", c"/mnt"] {
        let (tmpfs, options) = (text(c"tmpfs"), text(c"size=4k,nr_inodes=2,mode=0555"));
        let call = [tmpfs, text(directory), tmpfs, guarded as c_long, options];
        if sys(libc::SYS_mount, call).is_ok() {
            done = sys(libc::SYS_chdir, [text(directory), 0, 0, 0, 0]);
            break;
        }
    }
    done?;
    sys(libc::SYS_pivot_root, [here, here, 0, 0, 0])?;
    sys(
        libc::SYS_umount2,
        [here, libc::MNT_DETACH as c_long, 0, 0, 0],
    )?;
    sys(libc::SYS_chdir, [text(c"/"), 0, 0, 0, 0])?;
    let read_only = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | guarded;
    sys(libc::SYS_mount, [0, text(c"/"), 0, read_only as c_long, 0]).map(drop)
}

/// Unblocks all signals, because the process inherits the mask of the thread that starts domains.
fn unblock_signals() -> Result<(), c_int> {
    let none = 0u64;
    let mask = &raw const none as c_long;
    sys(
        libc::SYS_rt_sigprocmask,
        [libc::SIG_SETMASK as c_long, mask, 0, 8, 0],
    )
    .map(drop)
}
