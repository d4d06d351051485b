//! The system calls that the process may make after it has opened its descriptors: those of every
//! confined program that serves clients, and those listed here. All others fail with EPERM.

use crate::dev::{EVTCHN_REQUESTS, GNTDEV_REQUESTS};
use confine::{
    AllowedCall, COMMON_CALLS, CallCondition, CapabilitySet, Rights, SERVER_CALLS, calls,
};

/// The process's rights, including the user that it switches to.
pub const RIGHTS: Rights<'_> = Rights {
    name: "the driver domain",
    user: None,
    capabilities: CapabilitySet::empty(),
    // The process serves guests even after the shell that started it has exited.
    ends_with_parent: false,
    files: None,
    calls: &[COMMON_CALLS, SERVER_CALLS, OWN],
};

/// Requests of Xen's devices, and the request that makes a socket non-blocking.
const REQUESTS: [u64; 7] = {
    let [bind, unbind, notify] = EVTCHN_REQUESTS;
    let [map, unmap, copy] = GNTDEV_REQUESTS;
    [bind, unbind, notify, map, unmap, copy, libc::FIONBIO]
};

const OWN: &[AllowedCall] = &calls! {
    // For Xen's devices and non-blocking sockets. No requests to TAPs are allowed.
    SYS_ioctl CallCondition::OneOf(1, &REQUESTS);
    // For the deadlines of clients of the control socket.
    SYS_setsockopt CallCondition::Is(1, libc::SOL_SOCKET as u64);
    // For frames of a TAP or of a file in several pieces.
    SYS_readv CallCondition::Always;
    // For the driver's sleep.
    SYS_epoll_create1 CallCondition::Always;
    SYS_epoll_ctl CallCondition::Always;
    SYS_epoll_pwait2 CallCondition::Always;
    SYS_eventfd2 CallCondition::Always;
};

#[cfg(test)]
mod tests {
    use super::*;
    use libc::*;
    use std::collections::BTreeMap;

    #[rustfmt::skip]
    const ALWAYS: &[i64] = &[
        SYS_accept4, SYS_brk, SYS_clock_gettime, SYS_clock_nanosleep, SYS_clone3, SYS_close,
        SYS_copy_file_range, SYS_dup, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait2,
        SYS_eventfd2, SYS_exit, SYS_exit_group, SYS_fcntl,
        SYS_fstat, SYS_ftruncate, SYS_futex, SYS_getpid, SYS_getrandom, SYS_getsockopt,
        SYS_gettid, SYS_lseek, SYS_madvise, SYS_memfd_create, SYS_mremap, SYS_munmap,
        SYS_nanosleep, SYS_poll, SYS_ppoll, SYS_pread64, SYS_read, SYS_readv, SYS_recvfrom,
        SYS_recvmsg, SYS_restart_syscall, SYS_rseq, SYS_rt_sigaction, SYS_rt_sigprocmask,
        SYS_rt_sigreturn, SYS_sched_getaffinity, SYS_sched_yield, SYS_sendfile, SYS_sendmsg,
        SYS_sendto, SYS_set_robust_list, SYS_set_tid_address, SYS_shutdown, SYS_sigaltstack,
        SYS_splice, SYS_statx, SYS_write, SYS_writev,
    ];

    /// Any change of the rights must also change this table.
    #[test]
    fn the_process_has_the_rights_of_its_table() {
        // Xen's devices (linux/evtchn.h, linux/gntdev.h), then FIONBIO.
        const REQUIRED: &[u64] = &[
            0x0008_4501,
            0x0004_4503,
            0x0004_4504,
            0x0018_4700,
            0x0010_4701,
            0x0010_4708,
            0x5421,
        ];
        let sometimes = [
            (SYS_ioctl, CallCondition::OneOf(1, REQUIRED)),
            (SYS_setsockopt, CallCondition::Is(1, 1)),
            (SYS_mmap, CallCondition::HasNot(2, 4)),
            (SYS_mprotect, CallCondition::HasNot(2, 4)),
            (SYS_clone, CallCondition::Has(0, 0x0001_0100)),
            (SYS_prctl, CallCondition::Is(0, 15)),
            (SYS_tgkill, CallCondition::Own(0)),
        ];
        let always = ALWAYS.iter().map(|number| (*number, CallCondition::Always));
        let expected: BTreeMap<_, _> = always.chain(sometimes).collect();
        let calls = RIGHTS.calls.iter().copied().flatten();
        let calls: BTreeMap<_, _> = calls.map(|call| (call.number, call.when)).collect();
        assert_eq!(calls, expected);
        assert!(RIGHTS.capabilities.is_empty() && RIGHTS.user.is_none() && RIGHTS.files.is_none());
    }

    /// Tries the calls under the filter, in a thread that exits afterwards.
    #[test]
    fn the_process_makes_no_call_of_an_attacker() {
        let attack = || {
            confine::confine(&RIGHTS).unwrap();
            probe_helper::not_refused(probe_helper::ATTACKS)
        };
        let succeeded = std::thread::spawn(attack).join().unwrap();
        assert!(succeeded.is_empty(), "{succeeded:?}");
    }
}
