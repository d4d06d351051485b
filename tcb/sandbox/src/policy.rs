//! Which system calls a domain and its agent may make: the whole policy, as data with reasons.
//!
//! A domain runs under its filter from its first instruction on. Its heap is an arena in its own
//! image, it has one thread and opens nothing, so the list is short; what is not on it returns
//! EPERM. `system_calls` gives it to reports.

use crate::bpf::{Action, Rule, Test, assemble};
use abi::layout::{PAGE, WINDOW, fd::DOORBELL};
use libc::{c_long, sock_filter};

/// Which kind of domain is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// A driver domain: NIC queues and other domains' pages.
    Driver,
    /// A guest domain: its own pages and one endpoint.
    Guest,
}

impl From<abi::status::Program> for Profile {
    fn from(program: abi::status::Program) -> Self {
        match program {
            abi::status::Program::Driver => Self::Driver,
            abi::status::Program::Guest => Self::Guest,
        }
    }
}

/// When a call is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Always.
    Always,
    /// Argument 0 is a descriptor below the doorbells. A doorbell may only be rung: who could
    /// `read` a peer's eventfd could steal its wake-ups, and who could close one and open the
    /// number again could be fooled.
    OwnDescriptor,
    /// Argument 0 is exactly this.
    Is(u64),
    /// Argument 1 is a futex operation that only waits or wakes. Locks with priority inheritance
    /// and requeuing are much kernel code that no domain needs.
    WaitOrWake,
    /// Never; it returns this instead of EPERM.
    Fails(i32),
    /// Argument 0 is [`abi::hypercall::ATTACH_MAGIC`], and the monitor answers.
    Attach,
    /// Exactly the call that start-up code makes to protect its relocated data.
    Relro,
}

struct Row {
    name: &'static str,
    nr: c_long,
    when: When,
}

macro_rules! rows {
    ($($nr:ident $when:expr;)*) => {
        &[$(Row { name: stringify!($nr), nr: libc::$nr, when: $when }),*]
    };
}

/// What every domain may call. Programs are tried from the top: the calls per packet come first.
/// (Kernels of 5.11 and later skip the program for calls that are allowed without conditions.)
const DOMAIN: &[Row] = rows! {
    // Devices: frames in and out of descriptors that arrived open and configured.
    SYS_read When::OwnDescriptor;
    SYS_write When::Always;
    SYS_readv When::OwnDescriptor;
    SYS_writev When::OwnDescriptor;
    // Sleeping and waking: for hypercalls, and for descriptors with a timeout. No call that only
    // sleeps (nanosleep) is needed.
    SYS_futex When::WaitOrWake;
    SYS_epoll_wait When::OwnDescriptor;
    SYS_epoll_pwait When::OwnDescriptor;
    SYS_epoll_pwait2 When::OwnDescriptor;
    SYS_poll When::Always;
    SYS_ppoll When::Always;
    SYS_clock_gettime When::Always;
    SYS_sched_yield When::Always;
    // The kernel itself makes a domain call these: after a signal, after a stop.
    SYS_rt_sigreturn When::Always;
    SYS_restart_syscall When::Always;
    // A fault handler for pages that were revoked. With rt_sigaction denied, `abort` would spin.
    SYS_rt_sigaction When::Always;
    SYS_rt_sigprocmask When::Always;
    // Harmless facts about the caller, and the seeds of hash tables.
    SYS_gettid When::Always;
    SYS_getpid When::Always;
    SYS_getrandom When::Always;
    SYS_sched_getaffinity When::Always;
    SYS_close When::OwnDescriptor;
    SYS_exit When::Always;
    SYS_exit_group When::Always;
    // The one way to ask for a descriptor: answered by the monitor, see `abi::hypercall::Attach`.
    SYS_getppid When::Attach;
    // Start of a static C library, before `main`: the thread pointer, and what the kernel does
    // with a thread's own words when it exits. Each touches the caller alone.
    SYS_arch_prctl When::Is(ARCH_SET_FS);
    SYS_set_tid_address When::Always;
    SYS_set_robust_list When::Always;
    SYS_rseq When::Always;
    // Thread-local storage of `main` comes from the break. It grows from the image's end upwards
    // and cannot reach or replace any other mapping; RLIMIT_DATA leaves it `HEAP_BYTES`, too
    // little to hold up the agent behind the lock of the address space.
    SYS_brk When::Always;
    // One exact call, which changes nothing when repeated. Any other mprotect could split
    // mappings until the agent has no room to take a page away.
    SYS_mprotect When::Relro;
    // glibc tries clone3 first and understands only this as "use clone" (which is denied).
    SYS_clone3 When::Fails(libc::ENOSYS);
};

const ARCH_SET_FS: u64 = 0x1002;
const FUTEX_FLAGS: u32 = (libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as u32;
const FUTEX_OPERATIONS: &[u32] = &[
    libc::FUTEX_WAIT as u32,
    libc::FUTEX_WAKE as u32,
    libc::FUTEX_WAIT_BITSET as u32,
    libc::FUTEX_WAKE_BITSET as u32,
];

/// Bytes by which a domain's break may grow.
pub(crate) const HEAP_BYTES: u64 = 256 << 10;

fn rows(profile: Profile) -> &'static [Row] {
    match profile {
        // Both kinds do the same things today: read and write descriptors, wait, make hypercalls.
        // The profiles are told apart because kinds to come are not so alike.
        Profile::Driver | Profile::Guest => DOMAIN,
    }
}

/// The names of the system calls that a domain may make (some only with certain arguments).
#[must_use]
pub fn system_calls(profile: Profile) -> Vec<&'static str> {
    rows(profile)
        .iter()
        .filter(|row| !matches!(row.when, When::Fails(_)))
        .map(|row| row.name.trim_start_matches("SYS_"))
        .collect()
}

/// The filter of a domain whose start-up code protects the `relro` range (address, bytes).
pub(crate) fn domain_filter(profile: Profile, relro: Option<(u64, u64)>) -> Vec<sock_filter> {
    let denied = Action::Errno(libc::EPERM as u16);
    let rule = |row: &Row| {
        let (tests, then) = match row.when {
            When::Always => (vec![], Action::Allow),
            When::OwnDescriptor => (vec![Test::Below32(0, DOORBELL as u32)], Action::Allow),
            When::WaitOrWake => (
                vec![Test::OneOf(1, FUTEX_FLAGS, FUTEX_OPERATIONS)],
                Action::Allow,
            ),
            When::Is(value) => (vec![Test::Is(0, value)], Action::Allow),
            When::Fails(errno) => (vec![], Action::Errno(errno as u16)),
            When::Attach => (
                vec![Test::Is(0, abi::hypercall::ATTACH_MAGIC)],
                Action::Notify,
            ),
            When::Relro => {
                let (addr, bytes) = relro?;
                let read_only = libc::PROT_READ as u64;
                (
                    vec![
                        Test::Is(0, addr),
                        Test::Is(1, bytes),
                        Test::Is(2, read_only),
                    ],
                    Action::Allow,
                )
            }
        };
        Some(Rule {
            nr: row.nr,
            tests,
            then,
            otherwise: denied,
        })
    };
    let rules: Vec<Rule> = rows(profile).iter().filter_map(rule).collect();
    assemble(&rules, denied)
}

/// The filter of an agent: map inside a window of `window_slots` pages, close, ask for more, die.
/// Nothing else, whatever its argument page says: anything else is a bug of ours and ends it.
pub(crate) fn agent_filter(window_slots: u32) -> Vec<sock_filter> {
    let window_bytes = u64::from(window_slots) * PAGE as u64;
    let mut rules = vec![Rule {
        nr: libc::SYS_getppid,
        tests: vec![],
        then: Action::Notify,
        otherwise: Action::Kill,
    }];
    if window_bytes > 0 {
        rules.push(Rule {
            nr: libc::SYS_mmap,
            tests: vec![
                Test::Inside(0, 1, WINDOW as u64, window_bytes),
                Test::NoneBut(2, (libc::PROT_READ | libc::PROT_WRITE) as u32),
                Test::All(3, libc::MAP_FIXED as u32),
            ],
            then: Action::Allow,
            otherwise: Action::Kill,
        });
    }
    for nr in [libc::SYS_close, libc::SYS_exit_group] {
        rules.push(Rule {
            nr,
            tests: vec![],
            then: Action::Allow,
            otherwise: Action::Kill,
        });
    }
    assemble(&rules, Action::Kill)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::tests::decide;

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

    #[test]
    fn doorbells_can_be_written_and_nothing_else() {
        let filter = domain_filter(Profile::Driver, None);
        let bell = DOORBELL as u64 + 3;
        for nr in [
            libc::SYS_read,
            libc::SYS_readv,
            libc::SYS_writev,
            libc::SYS_close,
            libc::SYS_epoll_wait,
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
        let filter = agent_filter(16);
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
        let none = agent_filter(0);
        assert_eq!(
            decide(&none, libc::SYS_mmap, [window, 4096, 3, fixed, 0, 0]),
            libc::SECCOMP_RET_KILL_PROCESS
        );
    }

    #[test]
    fn no_call_is_listed_twice() {
        let mut names = system_calls(Profile::Driver);
        names.sort_unstable();
        let listed = names.len();
        names.dedup();
        assert_eq!(names.len(), listed);
    }
}
