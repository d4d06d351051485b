//! The system calls that each helper may make: the whole policy, as data with reasons.

/// The condition under which a call is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// This argument equals this value.
    Is(u8, u64),
    /// This argument has all these bits.
    Has(u8, u64),
    /// This argument has none of these bits.
    HasNot(u8, u64),
    /// This argument is one of these values.
    OneOf(u8, &'static [u64]),
    /// This argument is the caller's process id.
    Own(u8),
}

/// An allowed system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The number of the call.
    pub number: i64,
    /// The condition under which the call is allowed.
    pub when: When,
}

/// Makes a list of calls from entries `SYS_NAME When;`, with `libc` and [`When`] in scope.
#[macro_export]
macro_rules! calls {
    ($($number:ident $when:expr;)*) => {
        [$($crate::Call { number: libc::$number, when: $when }),*]
    };
}

/// The flags of a new thread. A new process lacks them.
const THREAD: u64 = (libc::CLONE_THREAD | libc::CLONE_VM) as u64;
/// The protection flag of executable memory.
const EXEC: u64 = libc::PROT_EXEC as u64;
const NEWNET: u64 = libc::CLONE_NEWNET as u64;
const FIONBIO: u64 = libc::FIONBIO;

/// Calls of every program except the broker. They affect only inherited descriptors and private
/// memory; none of them opens a file or a socket.
pub const COMMON: &[Call] = &calls! {
    // Links and sealed files.
    SYS_read When::Always;
    SYS_write When::Always;
    SYS_writev When::Always;
    SYS_pread64 When::Always;
    SYS_recvmsg When::Always;
    SYS_sendmsg When::Always;
    SYS_sendto When::Always;
    SYS_recvfrom When::Always;
    SYS_getsockopt When::Always;
    SYS_close When::Always;
    SYS_dup When::Always;
    SYS_fcntl When::Always;
    SYS_ioctl When::Is(1, FIONBIO);
    SYS_poll When::Always;
    SYS_ppoll When::Always;
    SYS_memfd_create When::Always;
    SYS_statx When::Always;
    SYS_fstat When::Always;
    SYS_lseek When::Always;
    // Memory.
    SYS_mmap When::HasNot(2, EXEC);
    SYS_mprotect When::HasNot(2, EXEC);
    SYS_munmap When::Always;
    SYS_mremap When::Always;
    SYS_madvise When::Always;
    SYS_brk When::Always;
    // Threads. `clone3` is listed here because another filter makes it fail with ENOSYS.
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
    // Time, signals, and harmless information about the caller.
    SYS_clock_gettime When::Always;
    SYS_clock_nanosleep When::Always;
    SYS_nanosleep When::Always;
    SYS_restart_syscall When::Always;
    SYS_rt_sigaction When::Always;
    SYS_rt_sigprocmask When::Always;
    SYS_rt_sigreturn When::Always;
    SYS_sigaltstack When::Always;
    // `abort` kills the process by this call.
    SYS_tgkill When::Own(0);
    SYS_getpid When::Always;
    SYS_gettid When::Always;
    SYS_getrandom When::Always;
};

/// Calls of a program that serves clients and writes a log.
pub const SERVING: &[Call] = &calls! {
    SYS_accept4 When::Always;
    SYS_shutdown When::Always;
    // The manager rotates the log by copying it.
    SYS_ftruncate When::Always;
    SYS_copy_file_range When::Always;
    SYS_sendfile When::Always;
    SYS_splice When::Always;
};

/// Calls by which the manager waits for the consoles of all domains.
pub(crate) const CONSOLES: &[Call] = &calls! {
    SYS_epoll_create1 When::Always;
    SYS_epoll_ctl When::Always;
    SYS_epoll_pwait2 When::Always;
};

/// ioctl requests of TAPs, ethtool and VFIO, and for the numbers and names of interfaces. None of
/// them maps memory for a device. Terminal requests are excluded: TIOCSTI would insert input into a
/// terminal.
const REQUESTS: &[u64] = &[
    FIONBIO,
    0x3b66,      // VFIO_SET_IOMMU
    0x3b67,      // VFIO_GROUP_GET_STATUS
    0x3b68,      // VFIO_GROUP_SET_CONTAINER
    0x3b6a,      // VFIO_GROUP_GET_DEVICE_FD
    0x3b6b,      // VFIO_DEVICE_GET_INFO
    0x3b6c,      // VFIO_DEVICE_GET_REGION_INFO
    0x3b6e,      // VFIO_DEVICE_SET_IRQS
    0x3b6f,      // VFIO_DEVICE_RESET
    0x8910,      // SIOCGIFNAME
    0x8933,      // SIOCGIFINDEX
    0x8946,      // SIOCETHTOOL
    0x4004_54ca, // TUNSETIFF
    0x4004_54cb, // TUNSETPERSIST
    0x4004_54d0, // TUNSETOFFLOAD
    0x4004_54d8, // TUNSETVNETHDRSZ
    0x4004_54d9, // TUNSETQUEUE
    0x8004_54e0, // TUNSETSTEERINGEBPF
    0x8004_54e1, // TUNSETFILTEREBPF
];

/// Families of sockets. Unix sockets are excluded, because root could control systemd through one.
const FAMILIES: &[u64] = &[
    libc::AF_INET as u64,
    libc::AF_NETLINK as u64,
    libc::AF_PACKET as u64,
    libc::AF_XDP as u64,
];

/// Commands of bpf(2) for maps, and for the links that attach programs to interfaces. None of them
/// loads a program, attaches a program to a trace point, or opens another process's object by its
/// number.
const BPF_COMMANDS: &[u64] = &[
    0,  // BPF_MAP_CREATE
    1,  // BPF_MAP_LOOKUP_ELEM
    2,  // BPF_MAP_UPDATE_ELEM
    3,  // BPF_MAP_DELETE_ELEM
    4,  // BPF_MAP_GET_NEXT_KEY
    15, // BPF_OBJ_GET_INFO_BY_FD, of a link: whether its interface was removed
    28, // BPF_LINK_CREATE
];

/// Calls by which netd opens and configures devices.
pub(crate) const DEVICES: &[Call] = &calls! {
    // The TAP driver, and settings of network namespaces. Landlock restricts the paths.
    SYS_openat When::Always;
    // Checks whether a file is a namespace.
    SYS_fstatfs When::Always;
    // Netlink, ethtool requests, and XDP sockets.
    SYS_socket When::OneOf(0, FAMILIES);
    // The link to a domain.
    SYS_socketpair When::Is(0, libc::AF_UNIX as u64);
    SYS_bind When::Always;
    SYS_setsockopt When::Is(1, libc::SOL_PACKET as u64);
    SYS_ioctl When::OneOf(1, REQUESTS);
    SYS_bpf When::OneOf(0, BPF_COMMANDS);
    // Network namespaces, including a new one for the near end of a veth pair. Other types of
    // namespaces are denied.
    SYS_setns When::Is(1, NEWNET);
    SYS_unshare When::Is(0, NEWNET);
    // Waits for grace periods.
    SYS_membarrier When::Always;
    // Configuration space and interrupt of a PCI device.
    SYS_pwrite64 When::Always;
    SYS_eventfd2 When::Always;
};

/// All calls of the broker.
pub(crate) const BROKER_CALLS: &[Call] = &calls! {
    SYS_openat When::Always;
    SYS_fstatfs When::Always;
    SYS_bpf When::Is(0, 5); // BPF_PROG_LOAD
    // Sockets of virtual machine monitors.
    SYS_socket When::Is(0, libc::AF_UNIX as u64);
    SYS_bind When::Always;
    SYS_listen When::Always;
    SYS_connect When::Always;
    SYS_openat2 When::Always;
    SYS_newfstatat When::Always;
    SYS_umask When::Always;
    SYS_geteuid When::Always;
    SYS_mkdirat When::Always;
    SYS_fchownat When::Always;
    SYS_fchmodat When::Always;
    SYS_unlinkat When::Always;
    SYS_statx When::Always;
    // The drivers and the IOMMU groups of PCI devices.
    SYS_readlink When::Always;
    SYS_getdents64 When::Always;
    // The link, sealed files, `/proc/PID/stat`.
    SYS_recvmsg When::Always;
    SYS_sendmsg When::Always;
    SYS_poll When::Always;
    SYS_ppoll When::Always;
    SYS_read When::Always;
    SYS_pread64 When::Always;
    SYS_lseek When::Always;
    SYS_fstat When::Always;
    SYS_fcntl When::Always;
    SYS_memfd_create When::Always;
    SYS_close When::Always;
    // Messages on standard error.
    SYS_write When::Always;
    // Memory.
    SYS_mmap When::HasNot(2, EXEC);
    SYS_munmap When::Always;
    SYS_mremap When::Always;
    SYS_madvise When::Always;
    SYS_brk When::Always;
    SYS_futex When::Always;
    SYS_getrandom When::Always;
    // Exit.
    SYS_sigaltstack When::Always;
    SYS_rt_sigaction When::Always;
    SYS_rt_sigprocmask When::Always;
    SYS_rt_sigreturn When::Always;
    SYS_restart_syscall When::Always;
    SYS_getpid When::Always;
    SYS_gettid When::Always;
    SYS_tgkill When::Own(0);
    SYS_exit_group When::Always;
};
