//! The system calls that a domain and its agent may make: the complete policy, as data with
//! reasons.
//!
//! A domain runs under its filter from its first instruction. The list is short, because a domain's
//! heap is an arena in its image, and a domain has one thread and opens no files. Every other call
//! returns EPERM. [`system_calls`] returns the list for reports.

use crate::bpf::{ArgumentTest, FilterAction, SyscallRule, assemble};
use abi::core::NewDomain;
use abi::layout::{FOREIGN, FOREIGN_PAGES, PAGE, WINDOW, fd};
use abi::status::Program;
use libc::{c_long, sock_filter};

/// The kind of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// A driver domain, which has NIC queues and other domains' pages.
    Driver,
    /// A guest domain, which has its own pages and one endpoint; also the device process of a NIC.
    Guest,
    /// A guest domain that serves a virtual machine. It accepts connections, receives descriptors,
    /// and makes its agent map the machine's memory.
    Shim,
}

impl From<&NewDomain> for Profile {
    fn from(domain: &NewDomain) -> Self {
        match (domain.program, domain.foreign_pages) {
            (Program::Driver, _) => Self::Driver,
            (Program::Guest, 0) | (Program::Device, _) => Self::Guest,
            (Program::Guest, _) => Self::Shim,
        }
    }
}

/// The condition under which a call is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Always.
    Always,
    /// Argument 0 is a descriptor below the doorbells. A domain may only ring doorbells: a domain
    /// that could `read` a peer's eventfd could consume the peer's wake-ups, and a domain that
    /// closed a doorbell could receive another object under its number.
    OwnDescriptor,
    /// Argument 0 equals this value.
    Is(u64),
    /// Argument 1 is a futex operation that only waits or wakes. Priority inheritance and requeuing
    /// are complex kernel code, which no domain needs.
    WaitOrWake,
    /// The call always fails with this errno instead of EPERM.
    Fails(i32),
    /// Argument 0 is [`abi::hypercall::ATTACH_MAGIC`], and the monitor answers the call.
    Attach,
    /// The arguments are exactly those by which start-up code protects its relocated data.
    Relro,
    /// Argument 0 is the domain's epoll set and argument 2 a descriptor below the doorbells.
    OwnEpoll,
    /// As `OwnDescriptor`; in addition, argument 1 reads or sets the status flags of a descriptor.
    StatusFlags,
}

struct PolicyRow {
    name: &'static str,
    nr: c_long,
    when: When,
}

macro_rules! rows {
    ($($nr:ident $when:expr;)*) => {
        &[$(PolicyRow { name: stringify!($nr), nr: libc::$nr, when: $when }),*]
    };
}

/// The calls of every domain. The filter tests rules in order, so the calls that are made per
/// packet are first. (Kernels since 5.11 skip the program for calls that are allowed without
/// conditions.)
const DOMAIN: &[PolicyRow] = rows! {
    // Devices: frames pass through attached descriptors, which are already open and configured.
    SYS_read When::OwnDescriptor;
    SYS_write When::Always;
    SYS_readv When::OwnDescriptor;
    SYS_writev When::OwnDescriptor;
    // Sleeps and wake-ups, for hypercalls and for descriptors with a timeout. Domains need no call
    // that only sleeps (nanosleep).
    SYS_futex When::WaitOrWake;
    SYS_epoll_pwait2 When::OwnDescriptor;
    SYS_poll When::Always;
    SYS_ppoll When::Always;
    SYS_clock_gettime When::Always;
    SYS_sched_yield When::Always;
    // The kernel makes a domain execute these calls after a signal and after a stop.
    SYS_rt_sigreturn When::Always;
    SYS_restart_syscall When::Always;
    // The fault handler for revoked pages. Without rt_sigaction, `abort` would spin.
    SYS_rt_sigaction When::Always;
    SYS_rt_sigprocmask When::Always;
    // Harmless information about the caller, and seeds of hash tables.
    SYS_gettid When::Always;
    SYS_getpid When::Always;
    SYS_getrandom When::Always;
    SYS_sched_getaffinity When::Always;
    SYS_close When::OwnDescriptor;
    SYS_exit When::Always;
    SYS_exit_group When::Always;
    // The only call that returns a new descriptor; the monitor answers it
    // (`abi::hypercall::AttachTarget`).
    SYS_getppid When::Attach;
    // The start of a static C library, before `main`: the thread pointer, and the kernel's actions
    // at the thread's exit. Each call affects only the caller.
    SYS_arch_prctl When::Is(ARCH_SET_FS);
    SYS_set_tid_address When::Always;
    SYS_set_robust_list When::Always;
    SYS_rseq When::Always;
    // Thread-local storage of `main` is allocated from the break. The break grows upwards from the
    // end of the image, and cannot replace another mapping. RLIMIT_DATA limits it to `HEAP_BYTES`,
    // which is too little to delay the agent at the lock of the address space.
    SYS_brk When::Always;
    // One exact call, which has no effect when repeated. Any other mprotect could split mappings
    // until an unmapping by the agent fails.
    SYS_mprotect When::Relro;
    // glibc tries clone3 first, and calls clone (which is denied) only after this errno.
    SYS_clone3 When::Fails(libc::ENOSYS);
};

/// Further calls of a shim, which can neither send descriptors nor map memory.
const SHIM: &[PolicyRow] = rows! {
    // A connection of a virtual machine monitor, and its messages with descriptors.
    SYS_accept4 When::OwnDescriptor;
    SYS_recvmsg When::OwnDescriptor;
    // Doorbells of the virtual machine, which wake the domain.
    SYS_epoll_ctl When::OwnEpoll;
    // Makes these doorbells non-blocking, so that they do not delay the domain.
    SYS_fcntl When::StatusFlags;
};

const STATUS_FLAGS: &[u32] = &[libc::F_GETFL as u32, libc::F_SETFL as u32];
const ARCH_SET_FS: u64 = 0x1002;
const FUTEX_FLAGS: u32 = (libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as u32;
const FUTEX_OPERATIONS: &[u32] = &[
    libc::FUTEX_WAIT as u32,
    libc::FUTEX_WAKE as u32,
    libc::FUTEX_WAIT_BITSET as u32,
    libc::FUTEX_WAKE_BITSET as u32,
];

/// The number of bytes by which a domain's break may grow.
pub(crate) const HEAP_BYTES: u64 = 256 << 10;

fn rows(profile: Profile) -> impl Iterator<Item = &'static PolicyRow> {
    let more = match profile {
        Profile::Shim => SHIM,
        Profile::Driver | Profile::Guest => &[],
    };
    DOMAIN.iter().chain(more)
}

/// Returns the names of the system calls that a domain may make (some only with certain arguments).
#[must_use]
pub fn system_calls(profile: Profile) -> Vec<&'static str> {
    rows(profile)
        .filter(|row| !matches!(row.when, When::Fails(_)))
        .map(|row| row.name.trim_start_matches("SYS_"))
        .collect()
}

/// Returns the filter of a domain whose start-up code protects the range `relro` (address, bytes).
pub(crate) fn domain_filter(profile: Profile, relro: Option<(u64, u64)>) -> Vec<sock_filter> {
    let denied = FilterAction::Errno(libc::EPERM as u16);
    let own = ArgumentTest::Below32(0, fd::DOORBELL as u32);
    let rule = |row: &PolicyRow| {
        let (tests, then) = match row.when {
            When::Always => (vec![], FilterAction::Allow),
            When::OwnDescriptor => (vec![own], FilterAction::Allow),
            When::OwnEpoll => {
                let watched = ArgumentTest::Below32(2, fd::DOORBELL as u32);
                (
                    vec![ArgumentTest::Is(0, fd::EPOLL as u64), watched],
                    FilterAction::Allow,
                )
            }
            When::StatusFlags => (
                vec![own, ArgumentTest::OneOf(1, 0, STATUS_FLAGS)],
                FilterAction::Allow,
            ),
            When::WaitOrWake => (
                vec![ArgumentTest::OneOf(1, FUTEX_FLAGS, FUTEX_OPERATIONS)],
                FilterAction::Allow,
            ),
            When::Is(value) => (vec![ArgumentTest::Is(0, value)], FilterAction::Allow),
            When::Fails(errno) => (vec![], FilterAction::Errno(errno as u16)),
            When::Attach => (
                vec![ArgumentTest::Is(0, abi::hypercall::ATTACH_MAGIC)],
                FilterAction::Notify,
            ),
            When::Relro => {
                let (addr, bytes) = relro?;
                let read_only = libc::PROT_READ as u64;
                (
                    vec![
                        ArgumentTest::Is(0, addr),
                        ArgumentTest::Is(1, bytes),
                        ArgumentTest::Is(2, read_only),
                    ],
                    FilterAction::Allow,
                )
            }
        };
        Some(SyscallRule {
            nr: row.nr,
            tests,
            then,
            otherwise: denied,
        })
    };
    let rules: Vec<SyscallRule> = rows(profile).filter_map(rule).collect();
    assemble(&rules, denied)
}

/// Returns the filter of an agent. The agent may map pages within a window of `window_slots` pages
/// or, for a shim, within the range for foreign memory; close descriptors; request work; and exit.
/// Any other call is a bug in the monitor, and kills the agent, whatever the argument pages
/// contain.
pub(crate) fn agent_filter(profile: Profile, window_slots: u32) -> Vec<sock_filter> {
    let window_bytes = u64::from(window_slots) * PAGE as u64;
    let mut rules = vec![SyscallRule {
        nr: libc::SYS_getppid,
        tests: vec![],
        then: FilterAction::Notify,
        otherwise: FilterAction::Kill,
    }];
    if window_bytes > 0 || profile == Profile::Shim {
        // The monitor checks that a mapping ends within the range. Even without that check, a
        // mapping that begins there could not replace another one, because the following range of
        // the same length is unused.
        let length = ((u64::from(FOREIGN_PAGES) * PAGE as u64) >> 32) as u32 - 1;
        let mut tests = match profile {
            Profile::Shim => vec![
                ArgumentTest::High(0, length, (FOREIGN >> 32) as u32),
                ArgumentTest::High(1, length, 0),
            ],
            _ => vec![ArgumentTest::Inside(0, 1, WINDOW as u64, window_bytes)],
        };
        tests.extend([
            ArgumentTest::NoneBut(2, (libc::PROT_READ | libc::PROT_WRITE) as u32),
            ArgumentTest::All(3, libc::MAP_FIXED as u32),
        ]);
        rules.push(SyscallRule {
            nr: libc::SYS_mmap,
            tests,
            then: FilterAction::Allow,
            otherwise: FilterAction::Kill,
        });
    }
    for nr in [libc::SYS_close, libc::SYS_exit_group] {
        rules.push(SyscallRule {
            nr,
            tests: vec![],
            then: FilterAction::Allow,
            otherwise: FilterAction::Kill,
        });
    }
    assemble(&rules, FilterAction::Kill)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::tests::decide;

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

    #[test]
    fn doorbells_can_only_be_written() {
        let filter = domain_filter(Profile::Driver, None);
        let bell = fd::DOORBELL as u64 + 3;
        for nr in [
            libc::SYS_read,
            libc::SYS_readv,
            libc::SYS_writev,
            libc::SYS_close,
            libc::SYS_epoll_pwait2,
        ] {
            assert_eq!(decide(&filter, nr, [bell, 0, 0, 0, 0, 0]), EPERM);
            assert_eq!(decide(&filter, nr, [bell | 1 << 32, 0, 0, 0, 0, 0]), EPERM);
            assert_eq!(decide(&filter, nr, [3, 0, 0, 0, 0, 0]), ALLOW);
        }
        assert_eq!(
            decide(&filter, libc::SYS_write, [bell, 0, 0, 0, 0, 0]),
            ALLOW
        );
    }

    #[test]
    fn only_the_exact_start_up_mprotect_passes() {
        let filter = domain_filter(Profile::Guest, Some((0x7f00_0000_1000, 0x3000)));
        let call = |args| decide(&filter, libc::SYS_mprotect, args);
        assert_eq!(call([0x7f00_0000_1000, 0x3000, 1, 0, 0, 0]), ALLOW);
        assert_eq!(call([0x7f00_0000_1000, 0x3000, 3, 0, 0, 0]), EPERM);
        assert_eq!(call([0x7f00_0000_1000, 0x2000, 1, 0, 0, 0]), EPERM);
        assert_eq!(call([WINDOW as u64, 0x3000, 1, 0, 0, 0]), EPERM);
        let none = domain_filter(Profile::Guest, None);
        assert_eq!(decide(&none, libc::SYS_mprotect, [0; 6]), EPERM);
    }

    #[test]
    fn attach_needs_both_words_of_the_magic() {
        let filter = domain_filter(Profile::Driver, None);
        let call = |magic| decide(&filter, libc::SYS_getppid, [magic, 1, 0, 0, 0, 0]);
        assert_eq!(
            call(abi::hypercall::ATTACH_MAGIC),
            libc::SECCOMP_RET_USER_NOTIF
        );
        assert_eq!(call(abi::hypercall::ATTACH_MAGIC & 0xffff_ffff), EPERM);
        assert_eq!(call(abi::hypercall::ATTACH_MAGIC & !0xffff_ffff), EPERM);
        assert_eq!(call(0), EPERM);
    }

    #[test]
    fn an_agent_maps_in_its_window_only() {
        let filter = agent_filter(Profile::Driver, 16);
        let window = WINDOW as u64;
        let fixed = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
        let call = |args| decide(&filter, libc::SYS_mmap, args);
        assert_eq!(call([window, 0x1_0000, 3, fixed, 5, 0]), ALLOW);
        for args in [
            [window, 0x1_1000, 3, fixed, 5, 0],
            [window - 0x1000, 0x1000, 3, fixed, 5, 0],
            [window, 0x1000, 7, fixed, 5, 0],
            [window, 0x1000, 3, libc::MAP_SHARED as u64, 5, 0],
        ] {
            assert_eq!(call(args), libc::SECCOMP_RET_KILL_PROCESS, "{args:x?}");
        }
        assert_eq!(
            decide(&filter, libc::SYS_munmap, [window, 4096, 0, 0, 0, 0]),
            libc::SECCOMP_RET_KILL_PROCESS
        );
        let none = agent_filter(Profile::Guest, 0);
        assert_eq!(
            decide(&none, libc::SYS_mmap, [window, 4096, 3, fixed, 0, 0]),
            libc::SECCOMP_RET_KILL_PROCESS
        );
    }

    #[test]
    fn a_shims_agent_maps_foreign_memory_only() {
        let filter = agent_filter(Profile::Shim, 0);
        let (foreign, whole) = (FOREIGN as u64, u64::from(FOREIGN_PAGES) * PAGE as u64);
        let fixed = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
        let call = |args| decide(&filter, libc::SYS_mmap, args);
        for args in [
            [foreign, 4096, 3, fixed, 5, 0],
            [foreign + whole - 4096, 4096, 3, fixed, 5, 1 << 40],
            [foreign, whole - 4096, 3, fixed, 5, 0],
        ] {
            assert_eq!(call(args), ALLOW, "{args:x?}");
        }
        for args in [
            [foreign - 4096, 4096, 3, fixed, 5, 0],
            [foreign + whole, 4096, 3, fixed, 5, 0],
            [foreign, whole, 3, fixed, 5, 0],
            [WINDOW as u64, 4096, 3, fixed, 5, 0],
            [foreign, 4096, 7, fixed, 5, 0],
            [foreign, 4096, 3, libc::MAP_SHARED as u64, 5, 0],
        ] {
            assert_eq!(call(args), libc::SECCOMP_RET_KILL_PROCESS, "{args:x?}");
        }
    }

    #[test]
    fn only_a_shim_receives_descriptors() {
        let filters =
            [Profile::Driver, Profile::Guest, Profile::Shim].map(|of| domain_filter(of, None));
        let bell = fd::DOORBELL as u64;
        let all = |nr, args| filters.each_ref().map(|filter| decide(filter, nr, args));
        for (nr, args) in [
            (libc::SYS_accept4, [16, 0, 0, 0, 0, 0]),
            (libc::SYS_recvmsg, [16, 0, 0, 0, 0, 0]),
            (libc::SYS_epoll_ctl, [fd::EPOLL as u64, 1, 20, 0, 0, 0]),
            (libc::SYS_fcntl, [20, libc::F_SETFL as u64, 0, 0, 0, 0]),
        ] {
            assert_eq!(all(nr, args), [EPERM, EPERM, ALLOW], "{nr}");
        }
        for (nr, args) in [
            (libc::SYS_recvmsg, [bell, 0, 0, 0, 0, 0]),
            (libc::SYS_epoll_ctl, [5, 1, 20, 0, 0, 0]),
            (libc::SYS_epoll_ctl, [fd::EPOLL as u64, 1, bell, 0, 0, 0]),
            (libc::SYS_fcntl, [20, libc::F_DUPFD as u64, 0, 0, 0, 0]),
            (libc::SYS_fcntl, [bell, libc::F_SETFL as u64, 0, 0, 0, 0]),
            (libc::SYS_sendmsg, [16, 0, 0, 0, 0, 0]),
            (libc::SYS_mmap, [FOREIGN as u64, 4096, 3, 1, 5, 0]),
        ] {
            assert_eq!(all(nr, args), [EPERM; 3], "{nr}");
        }
    }

    #[test]
    fn no_call_is_listed_twice() {
        let mut names = system_calls(Profile::Shim);
        names.sort_unstable();
        let listed = names.len();
        names.dedup();
        assert_eq!(names.len(), listed);
    }
}
