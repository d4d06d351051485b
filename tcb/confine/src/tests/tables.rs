//! The rights of each role, call by call. A change of a role must also change its table.

use crate::roles::{BROKER, MANAGER, NETD};
use crate::{CallCondition, CapabilitySet, Rights};
use libc::*;
use std::collections::BTreeMap;

/// Conditions of calls that are not always allowed.
type Conditions<'a> = &'a [(i64, CallCondition)];

const FIONBIO: u64 = 0x5421;
const EXEC: u64 = 4;
const THREAD: u64 = 0x0001_0100;

/// Asserts that a role has exactly these rights.
#[track_caller]
fn check(rights: &Rights<'_>, keep: &[CapabilitySet], always: &[i64], sometimes: Conditions<'_>) {
    let mut calls = BTreeMap::new();
    for call in rights.calls.iter().copied().flatten() {
        calls.insert(call.number, call.when);
    }
    let always = always.iter().map(|number| (*number, CallCondition::Always));
    let expected: BTreeMap<_, _> = always.chain(sometimes.iter().copied()).collect();
    for (number, when) in &calls {
        assert_eq!(
            expected.get(number),
            Some(when),
            "call {number} of {}",
            rights.name
        );
    }
    for (number, when) in &expected {
        assert_eq!(
            calls.get(number),
            Some(when),
            "call {number} of {}",
            rights.name
        );
    }
    let keep: CapabilitySet = keep.iter().copied().collect();
    assert_eq!(rights.capabilities, keep);
    assert!(rights.ends_with_parent && rights.user.is_none());
}

#[rustfmt::skip]
const MANAGER_ALWAYS: &[i64] = &[
    SYS_accept4, SYS_brk, SYS_clock_gettime, SYS_clock_nanosleep, SYS_clone3, SYS_close,
    SYS_copy_file_range, SYS_dup, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait2, SYS_exit,
    SYS_exit_group, SYS_fcntl, SYS_fstat, SYS_ftruncate, SYS_futex, SYS_getpid, SYS_getrandom,
    SYS_getsockopt, SYS_gettid, SYS_lseek, SYS_madvise, SYS_memfd_create, SYS_mremap, SYS_munmap,
    SYS_nanosleep, SYS_poll, SYS_ppoll, SYS_pread64, SYS_read, SYS_recvfrom, SYS_recvmsg,
    SYS_restart_syscall, SYS_rseq, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn,
    SYS_sched_getaffinity, SYS_sched_yield, SYS_sendfile, SYS_sendmsg, SYS_sendto,
    SYS_set_robust_list, SYS_set_tid_address, SYS_shutdown, SYS_sigaltstack, SYS_splice,
    SYS_statx, SYS_write, SYS_writev,
];

#[test]
fn the_manager_has_the_rights_of_its_table() {
    let sometimes: Conditions<'_> = &[
        (SYS_ioctl, CallCondition::Is(1, FIONBIO)),
        (SYS_mmap, CallCondition::HasNot(2, EXEC)),
        (SYS_mprotect, CallCondition::HasNot(2, EXEC)),
        (SYS_clone, CallCondition::Has(0, THREAD)),
        (SYS_prctl, CallCondition::Is(0, 15)),
        (SYS_tgkill, CallCondition::Own(0)),
    ];
    check(&MANAGER, &[], MANAGER_ALWAYS, sometimes);
    assert_eq!(MANAGER.files, None);
}

#[rustfmt::skip]
const NETD_ALWAYS: &[i64] = &[
    SYS_bind, SYS_brk, SYS_clock_gettime, SYS_clock_nanosleep, SYS_clone3, SYS_close, SYS_dup,
    SYS_exit, SYS_exit_group, SYS_fcntl, SYS_fstat, SYS_fstatfs, SYS_futex, SYS_getpid,
    SYS_getrandom,
    SYS_getsockopt, SYS_gettid, SYS_lseek, SYS_madvise, SYS_membarrier, SYS_memfd_create,
    SYS_mremap, SYS_munmap, SYS_nanosleep, SYS_openat, SYS_poll, SYS_ppoll, SYS_pread64, SYS_read,
    SYS_recvfrom, SYS_recvmsg, SYS_restart_syscall, SYS_rseq, SYS_rt_sigaction,
    SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sched_getaffinity, SYS_sched_yield, SYS_sendmsg,
    SYS_sendto, SYS_set_robust_list, SYS_set_tid_address, SYS_sigaltstack, SYS_statx, SYS_write,
    SYS_writev, SYS_pwrite64, SYS_eventfd2, SYS_fsopen, SYS_fsmount,
];

#[test]
fn netd_has_the_rights_of_its_table() {
    let sometimes: Conditions<'_> = &[
        (
            SYS_ioctl,
            CallCondition::OneOf(
                1,
                &[
                    FIONBIO,
                    0x3b66,
                    0x3b67,
                    0x3b68,
                    0x3b6a,
                    0x3b6b,
                    0x3b6c,
                    0x3b6e,
                    0x3b6f,
                    0x8910,
                    0x8933,
                    0x8946,
                    0x4004_54ca,
                    0x4004_54cb,
                    0x4004_54d0,
                    0x4004_54d8,
                    0x4004_54d9,
                    0x8004_54e0,
                    0x8004_54e1,
                ],
            ),
        ),
        (SYS_mmap, CallCondition::HasNot(2, EXEC)),
        (SYS_mprotect, CallCondition::HasNot(2, EXEC)),
        (SYS_clone, CallCondition::Has(0, THREAD)),
        (SYS_prctl, CallCondition::Is(0, 15)),
        (SYS_tgkill, CallCondition::Own(0)),
        (SYS_socket, CallCondition::OneOf(0, &[2, 16, 17, 44])),
        (SYS_socketpair, CallCondition::Is(0, 1)),
        (SYS_setsockopt, CallCondition::Is(1, 263)),
        (SYS_bpf, CallCondition::OneOf(0, &[0, 1, 2, 3, 4, 15, 28])),
        (SYS_setns, CallCondition::Is(1, 0x4000_0000)),
        (SYS_unshare, CallCondition::Is(0, 0x4000_0000)),
        (SYS_fsconfig, CallCondition::Is(1, 6)),
    ];
    let keep = [
        CapabilitySet::NET_ADMIN,
        CapabilitySet::NET_RAW,
        CapabilitySet::BPF,
        CapabilitySet::SYS_ADMIN,
    ];
    check(&NETD, &keep, NETD_ALWAYS, sometimes);
    assert_eq!(NETD.files, Some(&["/dev/net", "/proc/sys/net"][..]));
}

#[rustfmt::skip]
const BROKER_ALWAYS: &[i64] = &[
    SYS_brk, SYS_close, SYS_exit_group, SYS_fcntl, SYS_fstat, SYS_fstatfs, SYS_futex, SYS_getpid,
    SYS_getrandom, SYS_gettid, SYS_lseek, SYS_madvise, SYS_memfd_create, SYS_mremap, SYS_munmap,
    SYS_openat, SYS_poll, SYS_ppoll, SYS_pread64, SYS_read, SYS_recvmsg, SYS_restart_syscall,
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sendmsg, SYS_sigaltstack,
    SYS_statx, SYS_write, SYS_bind, SYS_listen, SYS_connect, SYS_fchownat, SYS_fchmodat,
    SYS_unlinkat, SYS_openat2, SYS_newfstatat, SYS_umask, SYS_mkdirat, SYS_geteuid,
    SYS_readlink, SYS_getdents64,
];

#[test]
fn the_broker_has_the_rights_of_its_table() {
    let sometimes: Conditions<'_> = &[
        (SYS_bpf, CallCondition::Is(0, 5)),
        (SYS_socket, CallCondition::Is(0, 1)),
        (SYS_mmap, CallCondition::HasNot(2, EXEC)),
        (SYS_tgkill, CallCondition::Own(0)),
    ];
    let keep = [
        CapabilitySet::SYS_PTRACE,
        CapabilitySet::BPF,
        CapabilitySet::NET_ADMIN,
        CapabilitySet::PERFMON,
        CapabilitySet::CHOWN,
        CapabilitySet::DAC_OVERRIDE,
    ];
    check(&BROKER, &keep, BROKER_ALWAYS, sometimes);
    assert_eq!(BROKER.files, None);
}
