//! Attempts of a domain to keep access to a page, to access another domain's page, or to escape.
//! Each must fail.
//!
//! The tables are data: a name, a system call, and its arguments. A real domain makes every call,
//! with a writable page mapped at slot 5 and a read-only one at slot 8.

mod common;

use abi::layout::{FRAMES, INFO, PAGE, STUB, WINDOW, fd::DOORBELL};
use common::{SCRATCH, TestDomain, exits_within, serialize};
use libc::*;
use std::time::Duration;

const SLOT: u64 = (WINDOW + 5 * PAGE) as u64;
const SLOT_READ_ONLY: u64 = (WINDOW + 8 * PAGE) as u64;
const FREE_SLOT: u64 = (WINDOW + 40 * PAGE) as u64;
const P: u64 = PAGE as u64;
const NONE: u64 = u64::MAX;
const RW: u64 = 3;
const RWX: u64 = 7;
const ANON: u64 = (MAP_PRIVATE | MAP_ANONYMOUS) as u64;
const FIXED: u64 = MAP_FIXED as u64;
const SHARED: u64 = MAP_SHARED as u64;
const MOVE: u64 = MREMAP_MAYMOVE as u64;
const MOVE_TO: u64 = (MREMAP_MAYMOVE | MREMAP_FIXED) as u64;
/// The agent's process id in the domain's PID namespace, of which it is the first process.
const AGENT: u64 = 1;
const CWD: u64 = AT_FDCWD as u64;
const MSEAL: i64 = 462;
/// The bytes at [`SCRATCH`]: a path, which is also used in place of structs.
const PATH: &[u8] = b"/proc/self/mem\0";

type Attack = (&'static str, i64, &'static [u64]);

/// Attempts to keep access to a page, or to make a page writable.
const MAPPINGS: &[Attack] = &[
    (
        "map own memory over the slot",
        SYS_mmap,
        &[SLOT, P, RW, ANON | FIXED, NONE, 0],
    ),
    (
        "map own memory over the stub",
        SYS_mmap,
        &[STUB as u64, P, RWX, ANON | FIXED, NONE, 0],
    ),
    (
        "map own memory over the args",
        SYS_mmap,
        &[STUB as u64 + P, P, RW, ANON | FIXED, NONE, 0],
    ),
    (
        "map a memory's descriptor",
        SYS_mmap,
        &[0, P, RW, SHARED, 8, 0],
    ),
    (
        "map the event descriptor",
        SYS_mmap,
        &[0, P, RW, SHARED, 3, 0],
    ),
    ("map anything", SYS_mmap, &[0, P, RW, ANON, NONE, 0]),
    (
        "map anything executable",
        SYS_mmap,
        &[0, P, RWX, ANON, NONE, 0],
    ),
    (
        "duplicate by mremap of size 0",
        SYS_mremap,
        &[SLOT, 0, P, MOVE, 0],
    ),
    ("move by mremap", SYS_mremap, &[SLOT, P, 2 * P, MOVE, 0]),
    (
        "move by mremap to a place",
        SYS_mremap,
        &[SLOT, P, P, MOVE_TO, FREE_SLOT],
    ),
    (
        "move the stub away",
        SYS_mremap,
        &[STUB as u64, P, P, MOVE_TO, FREE_SLOT],
    ),
    ("unmap the slot", SYS_munmap, &[SLOT, P]),
    (
        "unmap a range around it",
        SYS_munmap,
        &[0x4000_0000_0000, 0x3000_0000_0000],
    ),
    ("unmap the stub", SYS_munmap, &[STUB as u64, P]),
    ("unmap the information", SYS_munmap, &[INFO as u64, P]),
    (
        "make the read-only slot writable",
        SYS_mprotect,
        &[SLOT_READ_ONLY, P, RW],
    ),
    ("protect the slot", SYS_mprotect, &[SLOT, P, 0]),
    (
        "make own memory executable",
        SYS_mprotect,
        &[FRAMES as u64, P, RWX],
    ),
    (
        "make the stub writable",
        SYS_mprotect,
        &[STUB as u64, P, RWX],
    ),
    (
        "pkey_mprotect",
        SYS_pkey_mprotect,
        &[SLOT_READ_ONLY, P, RW, NONE],
    ),
    ("seal the slot", MSEAL, &[SLOT, P, 0]),
    (
        "madvise the slot",
        SYS_madvise,
        &[SLOT, P, MADV_DONTNEED as u64],
    ),
    (
        "madvise a big populate",
        SYS_madvise,
        &[FRAMES as u64, P, MADV_POPULATE_WRITE as u64],
    ),
    (
        "process_madvise",
        SYS_process_madvise,
        &[3, SCRATCH, 1, 4, 0],
    ),
    (
        "remap_file_pages",
        SYS_remap_file_pages,
        &[SLOT, P, 0, 3, 0],
    ),
    ("mlock", SYS_mlock, &[SLOT, P]),
    ("mlock2", SYS_mlock2, &[SLOT, P, 1]),
    ("mlockall", SYS_mlockall, &[3]),
    (
        "move_pages",
        SYS_move_pages,
        &[0, 1, SCRATCH, 0, SCRATCH, 0],
    ),
    ("mbind", SYS_mbind, &[SLOT, P, 0, 0, 0, 0]),
    ("userfaultfd", SYS_userfaultfd, &[0]),
    ("userfaultfd, user mode only", SYS_userfaultfd, &[1]),
    (
        "punch a hole into a memory",
        SYS_fallocate,
        &[8, (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE) as u64, 0, P],
    ),
    ("shorten a memory", SYS_ftruncate, &[8, 0]),
    ("shmat", SYS_shmat, &[0, 0, 0]),
    ("shmget", SYS_shmget, &[0, P, 0x3ff]),
    ("memfd_create", SYS_memfd_create, &[SCRATCH, 0]),
    ("memfd_secret", SYS_memfd_secret, &[0]),
    ("vmsplice", SYS_vmsplice, &[1, SCRATCH, 1, 0]),
    ("splice", SYS_splice, &[0, 0, 1, 0, P, 0]),
    ("tee", SYS_tee, &[0, 1, P, 0]),
    ("sendfile", SYS_sendfile, &[1, 0, 0, P]),
    ("io_uring_setup", SYS_io_uring_setup, &[8, SCRATCH]),
    ("io_uring_enter", SYS_io_uring_enter, &[3, 1, 0, 0, 0, 0]),
    (
        "io_uring_register",
        SYS_io_uring_register,
        &[3, 0, SCRATCH, 1],
    ),
    ("io_setup", SYS_io_setup, &[8, SCRATCH]),
    ("an AF_XDP socket", SYS_socket, &[44, 3, 0]),
    ("prctl PR_SET_MM", SYS_prctl, &[35, 1, 0, 0, 0]),
    (
        "set_mempolicy_home_node",
        SYS_set_mempolicy_home_node,
        &[SLOT, P, 0, 0],
    ),
    (
        "a futex with priority inheritance",
        SYS_futex,
        &[SLOT, 6, 0, 0, 0, 0],
    ),
    ("requeue a futex", SYS_futex, &[SLOT, 3, 0, 1, SCRATCH, 0]),
    ("futex_waitv", SYS_futex_waitv, &[SCRATCH, 1, 0, 0, 0]),
    ("map_shadow_stack", 453, &[0, P, 0]),
];

/// Attempts to create another process, which would inherit pages.
const PROCESSES: &[Attack] = &[
    ("sleep without being woken", SYS_nanosleep, &[SCRATCH, 0]),
    ("sleep by a clock", SYS_clock_nanosleep, &[1, 0, SCRATCH, 0]),
    ("fork", SYS_fork, &[]),
    ("vfork", SYS_vfork, &[]),
    ("clone as fork", SYS_clone, &[SIGCHLD as u64, 0, 0, 0, 0]),
    (
        "clone as the agent was made",
        SYS_clone,
        &[(CLONE_VM | SIGCHLD) as u64, 0, 0, 0, 0],
    ),
    ("clone as a thread", SYS_clone, &[0x0005_0f00, 0, 0, 0, 0]),
    ("execve", SYS_execve, &[SCRATCH, 0, 0]),
    ("execveat", SYS_execveat, &[3, SCRATCH, 0, 0, 0x1000]),
    (
        "unshare a user namespace",
        SYS_unshare,
        &[CLONE_NEWUSER as u64],
    ),
    ("unshare descriptors", SYS_unshare, &[CLONE_FILES as u64]),
    ("setns", SYS_setns, &[3, 0]),
];

/// Attacks on the agent or the monitor, or attempts to extend the domain's own rights.
const OTHERS: &[Attack] = &[
    (
        "ptrace the agent",
        SYS_ptrace,
        &[PTRACE_ATTACH as u64, AGENT, 0, 0],
    ),
    (
        "seize the agent",
        SYS_ptrace,
        &[PTRACE_SEIZE as u64, AGENT, 0, 0],
    ),
    ("request to be traced", SYS_ptrace, &[0, 0, 0, 0]),
    (
        "process_vm_readv",
        SYS_process_vm_readv,
        &[AGENT, SCRATCH, 1, SCRATCH, 1, 0],
    ),
    (
        "process_vm_writev",
        SYS_process_vm_writev,
        &[AGENT, SCRATCH, 1, SCRATCH, 1, 0],
    ),
    ("process_mrelease", SYS_process_mrelease, &[3, 0]),
    ("kcmp", SYS_kcmp, &[1, 2, 2, 0, 0]),
    ("kill the agent", SYS_kill, &[AGENT, SIGKILL as u64]),
    ("kill every process", SYS_kill, &[NONE, SIGKILL as u64]),
    ("tkill the agent", SYS_tkill, &[AGENT, SIGSTOP as u64]),
    (
        "tgkill the agent",
        SYS_tgkill,
        &[AGENT, AGENT, SIGSTOP as u64],
    ),
    (
        "rt_sigqueueinfo",
        SYS_rt_sigqueueinfo,
        &[AGENT, SIGSTOP as u64, SCRATCH],
    ),
    ("pidfd_open", SYS_pidfd_open, &[AGENT, 0]),
    ("pidfd_getfd", SYS_pidfd_getfd, &[3, 8, 0]),
    (
        "pidfd_send_signal",
        SYS_pidfd_send_signal,
        &[3, SIGKILL as u64, 0, 0],
    ),
    ("setpriority of the agent", SYS_setpriority, &[0, AGENT, 19]),
    (
        "sched_setaffinity",
        SYS_sched_setaffinity,
        &[AGENT, 8, SCRATCH],
    ),
    (
        "sched_setscheduler",
        SYS_sched_setscheduler,
        &[0, 1, SCRATCH],
    ),
    (
        "raise a limit",
        SYS_prlimit64,
        &[0, RLIMIT_DATA as u64, SCRATCH, 0],
    ),
    ("setuid", SYS_setuid, &[0]),
    ("capset", SYS_capset, &[SCRATCH, SCRATCH]),
    (
        "prctl PR_SET_DUMPABLE",
        SYS_prctl,
        &[PR_SET_DUMPABLE as u64, 1],
    ),
    (
        "prctl PR_SET_SECCOMP",
        SYS_prctl,
        &[PR_SET_SECCOMP as u64, 1],
    ),
    ("install a filter", SYS_seccomp, &[1, 0, SCRATCH]),
    ("change the GS base", SYS_arch_prctl, &[0x1001, SLOT]),
    (
        "change the FS base through 32 bits",
        SYS_arch_prctl,
        &[0x1_0000_1002, SLOT],
    ),
    ("the agent's call", SYS_getppid, &[]),
    (
        "the agent's call with half the magic",
        SYS_getppid,
        &[0x7477_6179, 1, 0],
    ),
    ("bpf", SYS_bpf, &[0, SCRATCH, 8]),
    (
        "perf_event_open",
        SYS_perf_event_open,
        &[SCRATCH, 0, 0, 0, 0],
    ),
    ("init_module", SYS_init_module, &[SCRATCH, P, SCRATCH]),
    ("keyctl", SYS_keyctl, &[0, 0, 0, 0, 0]),
    ("reboot", SYS_reboot, &[0, 0, 0, 0]),
    ("iopl", SYS_iopl, &[3]),
    ("modify_ldt", SYS_modify_ldt, &[1, SCRATCH, 16]),
    (
        "landlock_create_ruleset",
        SYS_landlock_create_ruleset,
        &[0, 0, 1],
    ),
    ("timer_create", SYS_timer_create, &[0, 0, SCRATCH]),
];

/// Attempts to access files and descriptors.
const FILES: &[Attack] = &[
    ("openat /proc/self/mem", SYS_openat, &[CWD, SCRATCH, 2]),
    ("open /proc/self/mem", SYS_open, &[SCRATCH, 2]),
    (
        "openat2 /proc/self/mem",
        SYS_openat2,
        &[CWD, SCRATCH, SCRATCH, 24],
    ),
    ("creat", SYS_creat, &[SCRATCH, 0o600]),
    ("readlink", SYS_readlink, &[SCRATCH, SCRATCH, 64]),
    ("open_by_handle_at", SYS_open_by_handle_at, &[3, SCRATCH, 0]),
    ("mount", SYS_mount, &[SCRATCH, SCRATCH, SCRATCH, 0, 0]),
    ("chroot", SYS_chroot, &[SCRATCH]),
    ("pivot_root", SYS_pivot_root, &[SCRATCH, SCRATCH]),
    ("a unix socket", SYS_socket, &[1, 1, 0]),
    ("a packet socket", SYS_socket, &[17, 3, 0]),
    ("socketpair", SYS_socketpair, &[1, 1, 0, SCRATCH]),
    ("sendmsg", SYS_sendmsg, &[1, SCRATCH, 0]),
    ("recvmsg", SYS_recvmsg, &[1, SCRATCH, 0]),
    ("sendto", SYS_sendto, &[1, SLOT, P, 0, 0, 0]),
    ("setsockopt", SYS_setsockopt, &[1, 283, 4, SCRATCH, 24]),
    ("pipe", SYS_pipe2, &[SCRATCH, 0]),
    ("dup", SYS_dup, &[3]),
    ("dup2", SYS_dup2, &[3, 9]),
    ("dup3", SYS_dup3, &[3, 9, 0]),
    ("fcntl F_DUPFD", SYS_fcntl, &[3, 0, 9]),
    ("ioctl", SYS_ioctl, &[3, 0x5421, SCRATCH]),
    ("epoll_ctl", SYS_epoll_ctl, &[4, 1, 3, SCRATCH]),
    ("epoll_create", SYS_epoll_create1, &[0]),
    ("eventfd", SYS_eventfd2, &[0, 0]),
    ("timerfd", SYS_timerfd_create, &[1, 0]),
    ("signalfd", SYS_signalfd4, &[NONE, SCRATCH, 8, 0]),
    ("inotify", SYS_inotify_init1, &[0]),
    ("fanotify", SYS_fanotify_init, &[0, 0]),
    ("preadv2", SYS_preadv2, &[3, SCRATCH, 1, 0, 0, 0]),
    ("pread64", SYS_pread64, &[3, SLOT, 8, 0]),
    ("close_range", SYS_close_range, &[0, NONE, 0]),
];

/// Attempts to use a doorbell for more than ringing: a process that can read a doorbell can consume
/// its owner's wake-ups. Descriptor 600 is a doorbell. The kernel ignores the high half of the
/// argument.
const DOORBELLS: &[Attack] = &[
    ("read a doorbell", SYS_read, &[600, SCRATCH, 8]),
    (
        "read a doorbell, high bits set",
        SYS_read,
        &[600 | 1 << 40, SCRATCH, 8],
    ),
    ("readv a doorbell", SYS_readv, &[600, SCRATCH, 1]),
    ("writev to a doorbell", SYS_writev, &[600, SCRATCH, 1]),
    ("close a doorbell", SYS_close, &[600]),
    (
        "wait on a doorbell as a set",
        SYS_epoll_pwait2,
        &[600, SCRATCH, 1, 0],
    ),
    ("read descriptor -1", SYS_read, &[NONE, SCRATCH, 8]),
];

#[test]
fn every_attack_by_system_call_fails() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    target
        .guest_word(7)
        .store(0x5afe, std::sync::atomic::Ordering::SeqCst);
    target.map(5, 7, true);
    target.map(8, 9, false);
    target.scratch(PATH);
    let mut tried = 0;
    let mut wrong = Vec::new();
    for table in [MAPPINGS, PROCESSES, OTHERS, FILES, DOORBELLS] {
        for &(name, nr, args) in table {
            tried += 1;
            match target.call(nr, args) {
                Some(result) if result == i64::from(-EPERM) => {}
                other => wrong.push((name, other)),
            }
            assert!(!target.has_exited(), "{name} ended the domain");
        }
    }
    assert_eq!(wrong, [], "of {tried}, these did not fail with EPERM");
    println!("{tried} attacks refused");
    // clone3 must fail as in a kernel without it.
    assert_eq!(
        target.call(SYS_clone3, &[SCRATCH, 88]),
        Some(i64::from(-ENOSYS))
    );
    // Only the monitor handles the call with the magic number: see tests/attach.rs. After all
    // attacks the agent still works, and the mappings are unchanged.
    assert_eq!(target.read(5), Ok(0x5afe));
    assert_eq!(target.write(8, 1), Err(()));
    target.map(30, 30, true);
    target.unmap(5);
    target.unmap(8);
    assert_eq!(target.read(5), Err(()));
    assert_eq!(target.read(8), Err(()));
}

/// The break is a domain's only source of new memory. It provides little memory, and never replaces
/// another mapping.
#[test]
fn the_break_is_bounded() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    let now = target.call(SYS_brk, &[0]).expect("alive");
    for address in [
        now + (1 << 20),
        INFO as i64 + 4096,
        WINDOW as i64 + 4096,
        0x6100_0000_0000,
    ] {
        assert_eq!(
            target.call(SYS_brk, &[address as u64]),
            Some(now),
            "break at {address:#x}"
        );
    }
    for page in 0..256 {
        let moved = target
            .call(SYS_brk, &[(now + page * 4096) as u64])
            .expect("alive");
        assert!(moved - now <= 256 << 10);
    }
}

#[test]
fn other_system_call_tables_are_fatal() {
    let Some(_guard) = serialize() else { return };
    let x32 = 0x4000_0000i64;
    for (name, order, args) in [
        ("int 0x80 getpid", 5u64, [20u64, 0]),
        ("int 0x80 mremap", 5, [163, 0]),
        ("x32 getpid", 3, [(x32 | SYS_getpid) as u64, 0]),
        ("x32 ptrace", 3, [(x32 | 521) as u64, 0]),
    ] {
        let mut target = TestDomain::new();
        assert_eq!(
            target.execute(order, &args),
            None,
            "the domain survived {name}"
        );
        assert!(exits_within(&target.domain.pidfd, Duration::ZERO));
        target.assert_exit("killed: forbidden system call");
    }
}

/// The stub, its arguments, and all other pages outside of the domain's memory are not writable.
#[test]
fn writes_to_the_agents_pages_fault() {
    let Some(_guard) = serialize() else { return };
    for addr in [STUB as u64, STUB as u64 + P, STUB as u64 + 8 * P, FREE_SLOT] {
        let mut target = TestDomain::new();
        assert_eq!(target.execute(6, &[addr]), None, "{addr:#x} was written");
        target.assert_exit("exited with code 77");
    }
}

/// The first doorbell is at most 600, so descriptor 600 is a doorbell.
#[test]
fn descriptor_600_is_a_doorbell() {
    const { assert!(DOORBELL <= 600) };
}
