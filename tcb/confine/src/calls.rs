//! The system calls that each helper may make: the whole policy, as data with reasons.

/// The condition under which a call is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallCondition {
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
pub struct AllowedCall {
    /// The number of the call.
    pub number: i64,
    /// The condition under which the call is allowed.
    pub when: CallCondition,
}

/// Makes a list of calls from entries `SYS_NAME When;`, with `libc` and [`CallCondition`] in scope.
#[macro_export]
macro_rules! calls {
    ($($number:ident $when:expr;)*) => {
        [$($crate::AllowedCall { number: libc::$number, when: $when }),*]
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
pub const COMMON_CALLS: &[AllowedCall] = &calls! {
    // Links and sealed files.
    SYS_read CallCondition::Always;
    SYS_write CallCondition::Always;
    SYS_writev CallCondition::Always;
    SYS_pread64 CallCondition::Always;
    SYS_recvmsg CallCondition::Always;
    SYS_sendmsg CallCondition::Always;
    SYS_sendto CallCondition::Always;
    SYS_recvfrom CallCondition::Always;
    SYS_getsockopt CallCondition::Always;
    SYS_close CallCondition::Always;
    SYS_dup CallCondition::Always;
    SYS_fcntl CallCondition::Always;
    SYS_ioctl CallCondition::Is(1, FIONBIO);
    SYS_poll CallCondition::Always;
    SYS_ppoll CallCondition::Always;
    SYS_memfd_create CallCondition::Always;
    SYS_statx CallCondition::Always;
    SYS_fstat CallCondition::Always;
    SYS_lseek CallCondition::Always;
    // Memory.
    SYS_mmap CallCondition::HasNot(2, EXEC);
    SYS_mprotect CallCondition::HasNot(2, EXEC);
    SYS_munmap CallCondition::Always;
    SYS_mremap CallCondition::Always;
    SYS_madvise CallCondition::Always;
    SYS_brk CallCondition::Always;
    // Threads. `clone3` is listed here because another filter makes it fail with ENOSYS.
    SYS_clone CallCondition::Has(0, THREAD);
    SYS_clone3 CallCondition::Always;
    SYS_set_robust_list CallCondition::Always;
    SYS_rseq CallCondition::Always;
    SYS_set_tid_address CallCondition::Always;
    SYS_prctl CallCondition::Is(0, libc::PR_SET_NAME as u64);
    SYS_futex CallCondition::Always;
    SYS_sched_yield CallCondition::Always;
    SYS_sched_getaffinity CallCondition::Always;
    SYS_exit CallCondition::Always;
    SYS_exit_group CallCondition::Always;
    // Time, signals, and harmless information about the caller.
    SYS_clock_gettime CallCondition::Always;
    SYS_clock_nanosleep CallCondition::Always;
    SYS_nanosleep CallCondition::Always;
    SYS_restart_syscall CallCondition::Always;
    SYS_rt_sigaction CallCondition::Always;
    SYS_rt_sigprocmask CallCondition::Always;
    SYS_rt_sigreturn CallCondition::Always;
    SYS_sigaltstack CallCondition::Always;
    // `abort` kills the process by this call.
    SYS_tgkill CallCondition::Own(0);
    SYS_getpid CallCondition::Always;
    SYS_gettid CallCondition::Always;
    SYS_getrandom CallCondition::Always;
};

/// Calls of a program that serves clients and writes a log.
pub const SERVER_CALLS: &[AllowedCall] = &calls! {
    SYS_accept4 CallCondition::Always;
    SYS_shutdown CallCondition::Always;
    // The manager rotates the log by copying it.
    SYS_ftruncate CallCondition::Always;
    SYS_copy_file_range CallCondition::Always;
    SYS_sendfile CallCondition::Always;
    SYS_splice CallCondition::Always;
};

/// Calls by which the manager waits for the consoles of all domains.
pub(crate) const CONSOLE_CALLS: &[AllowedCall] = &calls! {
    SYS_epoll_create1 CallCondition::Always;
    SYS_epoll_ctl CallCondition::Always;
    SYS_epoll_pwait2 CallCondition::Always;
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

/// The command of fsconfig(2) that creates a file system with the options set before
/// (linux/mount.h).
const FSCONFIG_CREATE: u64 = 6;

/// Calls by which netd opens and configures devices.
pub(crate) const DEVICE_CALLS: &[AllowedCall] = &calls! {
    // The TAP driver, and settings of network namespaces. Landlock restricts the paths.
    SYS_openat CallCondition::Always;
    // Checks whether a file is a namespace.
    SYS_fstatfs CallCondition::Always;
    // Netlink, ethtool requests, and XDP sockets.
    SYS_socket CallCondition::OneOf(0, FAMILIES);
    // The link to a domain.
    SYS_socketpair CallCondition::Is(0, libc::AF_UNIX as u64);
    SYS_bind CallCondition::Always;
    SYS_setsockopt CallCondition::Is(1, libc::SOL_PACKET as u64);
    SYS_ioctl CallCondition::OneOf(1, REQUESTS);
    SYS_bpf CallCondition::OneOf(0, BPF_COMMANDS);
    // Network namespaces, including a new one for the near end of a veth pair. Other types of
    // namespaces are denied.
    SYS_setns CallCondition::Is(1, NEWNET);
    SYS_unshare CallCondition::Is(0, NEWNET);
    // The sysfs of a namespace. No options can be set, no mount can be attached to a folder, and
    // Landlock denies access to files of the mount.
    SYS_fsopen CallCondition::Always;
    SYS_fsconfig CallCondition::Is(1, FSCONFIG_CREATE);
    SYS_fsmount CallCondition::Always;
    // Waits for grace periods.
    SYS_membarrier CallCondition::Always;
    // Configuration space and interrupt of a PCI device.
    SYS_pwrite64 CallCondition::Always;
    SYS_eventfd2 CallCondition::Always;
};

/// All calls of the broker.
pub(crate) const BROKER_CALLS: &[AllowedCall] = &calls! {
    SYS_openat CallCondition::Always;
    SYS_fstatfs CallCondition::Always;
    SYS_bpf CallCondition::Is(0, 5); // BPF_PROG_LOAD
    // Sockets of virtual machine monitors.
    SYS_socket CallCondition::Is(0, libc::AF_UNIX as u64);
    SYS_bind CallCondition::Always;
    SYS_listen CallCondition::Always;
    SYS_connect CallCondition::Always;
    SYS_openat2 CallCondition::Always;
    SYS_newfstatat CallCondition::Always;
    SYS_umask CallCondition::Always;
    SYS_geteuid CallCondition::Always;
    SYS_mkdirat CallCondition::Always;
    SYS_fchownat CallCondition::Always;
    SYS_fchmodat CallCondition::Always;
    SYS_unlinkat CallCondition::Always;
    SYS_statx CallCondition::Always;
    // The drivers and the IOMMU groups of PCI devices.
    SYS_readlink CallCondition::Always;
    SYS_getdents64 CallCondition::Always;
    // The link, sealed files, `/proc/PID/stat`.
    SYS_recvmsg CallCondition::Always;
    SYS_sendmsg CallCondition::Always;
    SYS_poll CallCondition::Always;
    SYS_ppoll CallCondition::Always;
    SYS_read CallCondition::Always;
    SYS_pread64 CallCondition::Always;
    SYS_lseek CallCondition::Always;
    SYS_fstat CallCondition::Always;
    SYS_fcntl CallCondition::Always;
    SYS_memfd_create CallCondition::Always;
    SYS_close CallCondition::Always;
    // Messages on standard error.
    SYS_write CallCondition::Always;
    // Memory.
    SYS_mmap CallCondition::HasNot(2, EXEC);
    SYS_munmap CallCondition::Always;
    SYS_mremap CallCondition::Always;
    SYS_madvise CallCondition::Always;
    SYS_brk CallCondition::Always;
    SYS_futex CallCondition::Always;
    SYS_getrandom CallCondition::Always;
    // Exit.
    SYS_sigaltstack CallCondition::Always;
    SYS_rt_sigaction CallCondition::Always;
    SYS_rt_sigprocmask CallCondition::Always;
    SYS_rt_sigreturn CallCondition::Always;
    SYS_restart_syscall CallCondition::Always;
    SYS_getpid CallCondition::Always;
    SYS_gettid CallCondition::Always;
    SYS_tgkill CallCondition::Own(0);
    SYS_exit_group CallCondition::Always;
};
