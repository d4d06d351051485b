//! Attacks of a compromised helper, as data: a name, a system call, and its arguments.
//!
//! Each call would fail or be harmless if a filter allowed it.
#![allow(unsafe_code)]

use libc::*;
use std::ffi::CStr;

/// Maximum number of arguments of a system call.
const ARGS: usize = 6;
const CWD: u64 = AT_FDCWD as u64;
const P: u64 = 4096;
const ANON: u64 = (MAP_PRIVATE | MAP_ANONYMOUS) as u64;
const NONE: u64 = u64::MAX;
const RWX: u64 = (PROT_READ | PROT_WRITE | PROT_EXEC) as u64;
const RX: u64 = (PROT_READ | PROT_EXEC) as u64;

/// A call that a filter must reject: its name, number, and arguments.
pub type Attack = (&'static str, i64, &'static [u64]);

/// Calls that no helper may make. As an exception, the broker may read folders.
pub const ATTACKS: &[Attack] = &[
    // Programs and processes.
    ("execve", SYS_execve, &[0, 0, 0]),
    ("execveat", SYS_execveat, &[CWD, 0, 0, 0, 0]),
    ("fork", SYS_fork, &[]),
    ("vfork", SYS_vfork, &[]),
    ("clone a process", SYS_clone, &[SIGCHLD as u64, 0, 0, 0, 0]),
    (
        "clone memory without a thread",
        SYS_clone,
        &[(CLONE_VM | SIGCHLD) as u64, 0, 0, 0, 0],
    ),
    ("clone3", SYS_clone3, &[0, 0]),
    // Other processes.
    (
        "ptrace attach",
        SYS_ptrace,
        &[PTRACE_ATTACH as u64, 0, 0, 0],
    ),
    ("ptrace seize", SYS_ptrace, &[PTRACE_SEIZE as u64, 0, 0, 0]),
    (
        "process_vm_readv",
        SYS_process_vm_readv,
        &[1, 0, 0, 0, 0, 0],
    ),
    (
        "process_vm_writev",
        SYS_process_vm_writev,
        &[1, 0, 0, 0, 0, 0],
    ),
    ("process_madvise", SYS_process_madvise, &[NONE, 0, 0, 0, 0]),
    ("pidfd_open", SYS_pidfd_open, &[1, 0]),
    ("pidfd_getfd", SYS_pidfd_getfd, &[NONE, 0, 0]),
    ("pidfd_send_signal", SYS_pidfd_send_signal, &[NONE, 0, 0, 0]),
    ("kcmp", SYS_kcmp, &[1, 1, 0, 0, 0]),
    ("kill", SYS_kill, &[1, 0]),
    ("tkill", SYS_tkill, &[1, 0]),
    ("tgkill of another process", SYS_tgkill, &[1, 1, 0]),
    ("rt_sigqueueinfo", SYS_rt_sigqueueinfo, &[1, 0, 0]),
    ("rt_tgsigqueueinfo", SYS_rt_tgsigqueueinfo, &[1, 1, 0, 0]),
    (
        "prlimit of another process",
        SYS_prlimit64,
        &[1, RLIMIT_CORE as u64, 0, 0],
    ),
    ("setpriority", SYS_setpriority, &[0, 1, 0]),
    ("sched_setaffinity", SYS_sched_setaffinity, &[1, 0, 0]),
    ("perf_event_open", SYS_perf_event_open, &[0, 0, 0, 0, 0]),
    // Executable memory.
    (
        "map executable memory",
        SYS_mmap,
        &[0, P, RWX, ANON, NONE, 0],
    ),
    ("map code", SYS_mmap, &[0, P, RX, ANON, NONE, 0]),
    ("make memory executable", SYS_mprotect, &[0, 0, RX]),
    ("pkey_mprotect", SYS_pkey_mprotect, &[0, 0, RX, NONE]),
    ("userfaultfd", SYS_userfaultfd, &[1]),
    ("memfd_secret", SYS_memfd_secret, &[1 << 31]),
    // Files.
    ("open", SYS_open, &[0, 0, 0]),
    ("creat", SYS_creat, &[0, 0]),
    ("open_by_handle_at", SYS_open_by_handle_at, &[CWD, 0, 0]),
    (
        "name_to_handle_at",
        SYS_name_to_handle_at,
        &[CWD, 0, 0, 0, 0],
    ),
    ("renameat2", SYS_renameat2, &[CWD, 0, CWD, 0, 0]),
    ("linkat", SYS_linkat, &[CWD, 0, CWD, 0, 0]),
    ("symlinkat", SYS_symlinkat, &[0, CWD, 0]),
    ("mknodat", SYS_mknodat, &[CWD, 0, 0, 0]),
    ("setxattr", SYS_setxattr, &[0, 0, 0, 0, 0]),
    ("chdir", SYS_chdir, &[0]),
    ("getdents64", SYS_getdents64, &[NONE, 0, 0]),
    ("inotify", SYS_inotify_init1, &[0]),
    ("fanotify", SYS_fanotify_init, &[0, 0]),
    // The system.
    ("mount", SYS_mount, &[0, 0, 0, 0, 0]),
    ("umount2", SYS_umount2, &[0, 0]),
    ("fsconfig with an option", SYS_fsconfig, &[NONE, 1, 0, 0, 0]),
    ("fspick", SYS_fspick, &[CWD, 0, 0]),
    ("open_tree", SYS_open_tree, &[CWD, 0, 0]),
    ("move_mount", SYS_move_mount, &[NONE, 0, NONE, 0, 0]),
    ("pivot_root", SYS_pivot_root, &[0, 0]),
    ("chroot", SYS_chroot, &[0]),
    ("setns to any kind", SYS_setns, &[NONE, 0]),
    ("setns to mounts", SYS_setns, &[NONE, CLONE_NEWNS as u64]),
    ("setns to users", SYS_setns, &[NONE, CLONE_NEWUSER as u64]),
    (
        "setns to processes",
        SYS_setns,
        &[NONE, CLONE_NEWPID as u64],
    ),
    ("unshare mounts", SYS_unshare, &[CLONE_NEWNS as u64]),
    ("unshare users", SYS_unshare, &[CLONE_NEWUSER as u64]),
    ("init_module", SYS_init_module, &[0, 0, 0]),
    ("finit_module", SYS_finit_module, &[NONE, 0, 0]),
    ("delete_module", SYS_delete_module, &[0, 0]),
    ("kexec_load", SYS_kexec_load, &[0, NONE, 0, 0]),
    ("reboot", SYS_reboot, &[0, 0, 0, 0]),
    ("swapon", SYS_swapon, &[0, 0]),
    ("sethostname", SYS_sethostname, &[0, NONE]),
    ("settimeofday", SYS_settimeofday, &[0, 0]),
    ("syslog", SYS_syslog, &[NONE, 0, 0]),
    ("acct", SYS_acct, &[1]),
    ("quotactl", SYS_quotactl, &[NONE, 0, 0, 0]),
    ("iopl", SYS_iopl, &[NONE]),
    ("ioperm", SYS_ioperm, &[NONE, 1, 0]),
    ("keyctl", SYS_keyctl, &[NONE, 0, 0, 0, 0]),
    ("add_key", SYS_add_key, &[0, 0, 0, 0, 0]),
    ("io_uring_setup", SYS_io_uring_setup, &[0, 0]),
    ("io_setup", SYS_io_setup, &[0, 0]),
    // The helper's rights.
    ("setuid", SYS_setuid, &[NONE]),
    ("setresuid", SYS_setresuid, &[NONE, NONE, NONE]),
    ("setgroups", SYS_setgroups, &[NONE, 0]),
    ("capset", SYS_capset, &[0, 0]),
    ("personality", SYS_personality, &[NONE]),
    ("arch_prctl", SYS_arch_prctl, &[0, 0]),
    ("modify_ldt", SYS_modify_ldt, &[NONE, 0, 0]),
    (
        "prctl PR_SET_DUMPABLE",
        SYS_prctl,
        &[PR_SET_DUMPABLE as u64, 1],
    ),
    (
        "prctl PR_SET_PDEATHSIG",
        SYS_prctl,
        &[PR_SET_PDEATHSIG as u64, 0],
    ),
    (
        "prctl PR_SET_MM",
        SYS_prctl,
        &[PR_SET_MM as u64, 0, 0, 0, 0],
    ),
    ("seccomp", SYS_seccomp, &[NONE, 0, 0]),
    // Descriptors of other programs.
    (
        "insert input into a terminal",
        SYS_ioctl,
        &[NONE, TIOCSTI, 0],
    ),
    (
        "make a terminal the controlling one",
        SYS_ioctl,
        &[NONE, TIOCSCTTY, 0],
    ),
    (
        "a pair of Internet sockets",
        SYS_socketpair,
        &[AF_INET as u64, SOCK_DGRAM as u64, 0, 0],
    ),
    (
        "a vsock",
        SYS_socket,
        &[AF_VSOCK as u64, SOCK_STREAM as u64, 0],
    ),
    (
        "a socket of kernel cryptography",
        SYS_socket,
        &[AF_ALG as u64, SOCK_SEQPACKET as u64, 0],
    ),
    ("load BPF programs of others", SYS_bpf, &[13, 0, 0]),
    ("load BPF maps of others", SYS_bpf, &[14, 0, 0]),
    ("pinned BPF objects", SYS_bpf, &[7, 0, 0]),
    ("BPF trace points", SYS_bpf, &[17, 0, 0]),
    ("run BPF programs", SYS_bpf, &[10, 0, 0]),
    ("attach BPF programs", SYS_bpf, &[8, 0, 0]),
];

/// Calls that only the broker may make. It loads BPF programs, and creates the sockets of virtual
/// machine monitors.
pub const BROKER_CALLS: &[Attack] = &[
    ("load a BPF program", SYS_bpf, &[5, 0, 0]),
    ("openat2", SYS_openat2, &[CWD, 0, 0, 0]),
    ("unlinkat", SYS_unlinkat, &[CWD, 0, 0]),
    ("mkdirat", SYS_mkdirat, &[CWD, 0, 0]),
    ("fchmodat", SYS_fchmodat, &[CWD, 0, 0]),
    ("fchownat", SYS_fchownat, &[CWD, 0, 0, 0, 0]),
    ("connect", SYS_connect, &[NONE, 0, 0]),
    ("listen", SYS_listen, &[NONE, 0]),
    (
        "a Unix socket",
        SYS_socket,
        &[AF_UNIX as u64, SOCK_STREAM as u64, 0],
    ),
];

/// Calls that only netd may make. It mounts the sysfs of a network namespace.
pub const NETD_CALLS: &[Attack] = &[
    ("fsopen", SYS_fsopen, &[0, 0]),
    ("fsconfig", SYS_fsconfig, &[NONE, FSCONFIG_CREATE, 0, 0, 0]),
    ("fsmount", SYS_fsmount, &[NONE, 0, 0]),
];

/// The command of fsconfig(2) that creates a file system (linux/mount.h).
const FSCONFIG_CREATE: u64 = 6;

/// Mounts a file system of this type without attaching it. Returns its root, which stays open until
/// the program exits, or `None` if the system rejects the mount.
#[must_use]
pub fn mounted(kind: &CStr) -> Option<u64> {
    let descriptor = |result: i64| u64::try_from(result).ok();
    let context = descriptor(call(SYS_fsopen, &[kind.as_ptr() as u64, 0]))?;
    let created = call(SYS_fsconfig, &[context, FSCONFIG_CREATE, 0, 0, 0]);
    descriptor(created)?;
    descriptor(call(SYS_fsmount, &[context, 0, 0]))
}

/// Returns whether a path below an open folder can be opened for reading or writing.
#[must_use]
pub fn opens(root: u64, path: &CStr) -> bool {
    [O_RDONLY, O_WRONLY].iter().any(|flags| {
        let flags = (flags | O_CLOEXEC) as u64;
        call(SYS_openat, &[root, path.as_ptr() as u64, flags, 0]) >= 0
    })
}

/// Tries all attacks. Returns the attacks that did not fail with EPERM, with their results.
/// `clone3` may also fail with ENOSYS, after which the C library uses `clone`.
#[must_use]
pub fn not_refused(attacks: &[Attack]) -> Vec<String> {
    let is_refused = |number, result| {
        let absent = number == SYS_clone3 && result == -i64::from(ENOSYS);
        absent || result == -i64::from(EPERM)
    };
    let tried = attacks
        .iter()
        .map(|(name, number, args)| (name, *number, call(*number, args)));
    let wrong = tried.filter(|(_, number, result)| !is_refused(*number, *result));
    wrong
        .map(|(name, _, result)| format!("{name}: {result}"))
        .collect()
}

/// Executes any system call. Returns its raw result.
#[must_use]
pub fn call(number: i64, args: &[u64]) -> i64 {
    let mut all = [0; ARGS];
    all.iter_mut().zip(args).for_each(|(to, from)| *to = *from);
    let [a, b, c, d, e, f] = all;
    let result;
    // SAFETY: this is an attacker, which can corrupt only its memory. A child process created by a
    // call would continue with the test, so it exits immediately.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b,
            in("rdx") c, in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _);
    }
    if result == 0 && [SYS_fork, SYS_vfork, SYS_clone].contains(&number) {
        std::process::exit(1);
    }
    result
}
