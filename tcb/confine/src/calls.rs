//! Which system calls a helper may make: the whole policy, as data with reasons.

/// When a call is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// This argument is exactly this.
    Is(u8, u64),
    /// This argument has all these bits.
    Has(u8, u64),
    /// This argument has none of these bits.
    HasNot(u8, u64),
    /// This argument is one of these.
    OneOf(u8, &'static [u64]),
}

/// A call that is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: i64,
    /// When.
    pub when: When,
}

/// A list of calls: `SYS_NAME When;` for each, with `libc` and [`When`] in scope.
#[macro_export]
macro_rules! calls {
    ($($number:ident $when:expr;)*) => {
        [$($crate::Call { number: libc::$number, when: $when }),*]
    };
}

/// The flags of a new thread: what shares all of its memory and is no process of its own.
const THREAD: u64 = (libc::CLONE_THREAD | libc::CLONE_VM) as u64;
/// Memory that can be run.
const EXEC: u64 = libc::PROT_EXEC as u64;
const NEWNET: u64 = libc::CLONE_NEWNET as u64;
const FIONBIO: u64 = libc::FIONBIO;

/// What each of them may call: descriptors that it was given, and its own memory. Nothing is opened
/// by any of these.
pub const COMMON: &[Call] = &calls! {
    // The link to the core, clients, consoles, the log.
    SYS_read When::Always;
    SYS_write When::Always;
    SYS_writev When::Always;
    SYS_pread64 When::Always;
    SYS_recvmsg When::Always;
    SYS_sendmsg When::Always;
    SYS_sendto When::Always;
    SYS_recvfrom When::Always;
    SYS_accept4 When::Always;
    SYS_getsockopt When::Always;
    SYS_shutdown When::Always;
    SYS_close When::Always;
    SYS_dup When::Always;
    SYS_fcntl When::Always;
    SYS_ioctl When::Is(1, FIONBIO);
    SYS_poll When::Always;
    SYS_ppoll When::Always;
    SYS_memfd_create When::Always;
    // The log is rotated by copying.
    SYS_statx When::Always;
    SYS_fstat When::Always;
    SYS_lseek When::Always;
    SYS_ftruncate When::Always;
    SYS_copy_file_range When::Always;
    SYS_sendfile When::Always;
    SYS_splice When::Always;
    // Memory.
    SYS_mmap When::HasNot(2, EXEC);
    SYS_mprotect When::HasNot(2, EXEC);
    SYS_munmap When::Always;
    SYS_mremap When::Always;
    SYS_madvise When::Always;
    SYS_brk When::Always;
    // Threads, by clone: another filter says that there is no clone3.
    SYS_clone When::Has(0, THREAD);
    SYS_clone3 When::Always;
    SYS_set_robust_list When::Always;
    SYS_rseq When::Always;
    SYS_set_tid_address When::Always;
    SYS_prctl When::Is(0, libc::PR_SET_NAME as u64);
    SYS_futex When::Always;
    SYS_sched_yield When::Always;
    SYS_sched_getaffinity When::Always;
    SYS_exit When::Always;
    SYS_exit_group When::Always;
    // Time, signals, facts about the caller.
    SYS_clock_gettime When::Always;
    SYS_clock_nanosleep When::Always;
    SYS_nanosleep When::Always;
    SYS_restart_syscall When::Always;
    SYS_rt_sigaction When::Always;
    SYS_rt_sigprocmask When::Always;
    SYS_rt_sigreturn When::Always;
    SYS_sigaltstack When::Always;
    SYS_tgkill When::Always;
    SYS_getpid When::Always;
    SYS_gettid When::Always;
    SYS_getrandom When::Always;
};

/// What the manager may call.
pub const MANAGER: &[&[Call]] = &[COMMON, CONSOLES];

/// Waiting for the consoles of all domains at once.
const CONSOLES: &[Call] = &calls! {
    SYS_epoll_create1 When::Always;
    SYS_epoll_ctl When::Always;
    SYS_epoll_pwait When::Always;
};

/// What netd may call.
pub const NETD: &[&[Call]] = &[COMMON, DEVICES];

/// What it takes to open and configure a device.
const DEVICES: &[Call] = &calls! {
    // Namespaces by their files, settings of interfaces, the TAP driver; files that a NIC reads or
    // writes, and none that the machine's description does not name.
    SYS_openat When::Always;
    SYS_readlink When::Always;
    SYS_newfstatat When::Always;
    // Netlink, ethtool's requests, sockets for XDP.
    SYS_socket When::Always;
    SYS_socketpair When::Always;
    SYS_bind When::Always;
    SYS_connect When::Always;
    SYS_getsockname When::Always;
    SYS_setsockopt When::Always;
    SYS_ioctl When::Always;
    SYS_bpf When::Always;
    // Into network namespaces, and a new one for the near end of a pair; into no other kind.
    SYS_setns When::Is(1, NEWNET);
    SYS_unshare When::Is(0, NEWNET);
    // Grace periods.
    SYS_membarrier When::Always;
};
