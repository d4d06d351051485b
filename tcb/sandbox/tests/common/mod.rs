//! A domain under test, which runs the program `hostile`. The test is its monitor.
#![allow(dead_code)]

use abi::core::CPU_WORDS;
use abi::layout::{FOREIGN_PAGES, FRAMES, PAGE, info, mailbox};
use abi::version::VERSION;
use abi::{DomId, Slot};
use rustix::event::{EventfdFlags, epoll, eventfd};
use sandbox::{PageMap, Profile, SandboxSpec, Sandboxed, SpawnError};
use shmem::{Region, Span};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use testing::{TIMEOUT, require, wait_until};

/// The number of the guest's memory in the agent.
pub(crate) const GUEST: u32 = 7;
pub(crate) const WINDOW_SLOTS: u32 = 4096;
pub(crate) const GUEST_FRAMES: u32 = 2048;

/// The address of the second page of the domain's frames, which contains strings and structs for
/// its calls.
pub(crate) const SCRATCH: u64 = (FRAMES + PAGE) as u64;

/// Serializes the tests, because they measure time and start processes. Returns `None` if the test
/// must be skipped.
pub(crate) fn serialize() -> Option<MutexGuard<'static, ()>> {
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    // The check also starts processes and opens descriptors, so it holds the lock.
    require!(seccomp_notify);
    Some(guard)
}

pub(crate) struct TestDomain {
    pub(crate) domain: Sandboxed,
    pub(crate) guest: Region,
    pub(crate) guest_readonly: OwnedFd,
    pub(crate) frames: Region,
    pub(crate) info: Region,
    pub(crate) event: OwnedFd,
    pub(crate) console: File,
    orders: u32,
}

pub(crate) fn word(span: Span, n: usize) -> &'static AtomicU64 {
    span.u64(n * 8).expect("a word of the page")
}

/// Starts a domain with this program.
pub(crate) fn start(program: &Path, name: &str, cpus: &[usize]) -> Result<TestDomain, SpawnError> {
    start_with_version(u64::from(VERSION), program, name, cpus)
}

/// Starts a domain as a monitor of this version.
pub(crate) fn start_with_version(
    version: u64,
    program: &Path,
    name: &str,
    cpus: &[usize],
) -> Result<TestDomain, SpawnError> {
    start_with_profile(Profile::Driver, version, program, name, cpus)
}

/// Starts a domain with this filter profile. A shim has a range for foreign memory instead of a
/// window.
pub(crate) fn start_with_profile(
    profile: Profile,
    version: u64,
    program: &Path,
    name: &str,
    cpus: &[usize],
) -> Result<TestDomain, SpawnError> {
    let (window_slots, foreign_pages) = match profile {
        Profile::Shim => (0, FOREIGN_PAGES),
        _ => (WINDOW_SLOTS, 0),
    };
    let info = Region::create("info", info::bytes(64, 0)).expect("memory");
    let frames = Region::create("frames", 16 * PAGE).expect("memory");
    let mailbox = Region::create("mailbox", mailbox::BYTES).expect("memory");
    for (offset, value) in [
        (info::START_MAGIC, info::MAGIC),
        (info::START_VERSION, version),
        (info::START_DOMAIN, DomId(3).0.into()),
        (info::START_FRAMES, 16),
        (info::START_WINDOW_SLOTS, window_slots.into()),
        (info::START_FOREIGN_PAGES, foreign_pages.into()),
        (info::START_GRANT_ENTRIES, 64),
    ] {
        word(info.span(), offset / 8).store(value, SeqCst);
    }
    let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll set");
    let (console, theirs) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    let mut set_of_cpus = [0; CPU_WORDS];
    for cpu in cpus {
        set_of_cpus[cpu / 64] |= 1 << (cpu % 64);
    }
    let domain = sandbox::spawn(&SandboxSpec {
        program,
        args: &["one", "two"],
        name,
        profile,
        info: &info,
        frames: &frames,
        mailbox: mailbox.fd(),
        window_slots,
        event: event.as_fd(),
        epoll: set.as_fd(),
        console: theirs.as_fd(),
        cpus: &set_of_cpus,
    })?;
    let guest = Region::create("guest", GUEST_FRAMES as usize * PAGE).expect("memory");
    let guest_readonly = guest.readonly_fd().expect("a descriptor");
    Ok(TestDomain {
        domain,
        guest,
        guest_readonly,
        frames,
        info,
        event,
        console: console.into(),
        orders: 0,
    })
}

pub(crate) const HOSTILE: &str = env!("CARGO_BIN_EXE_hostile");

impl TestDomain {
    pub(crate) fn new() -> Self {
        Self::on(&[])
    }

    pub(crate) fn on(cpus: &[usize]) -> Self {
        let mut target = start(Path::new(HOSTILE), "hostile", cpus).expect("a domain");
        let TestDomain {
            domain,
            guest,
            guest_readonly,
            ..
        } = &mut target;
        domain
            .agent
            .add_memory(GUEST, guest.fd(), guest_readonly.as_fd())
            .expect("a memory");
        target
    }

    fn page(&self) -> Span {
        self.frames.span().page(0).expect("the first page")
    }

    /// Returns a word of the page that contains the orders.
    pub(crate) fn word(&self, n: usize) -> &'static AtomicU64 {
        word(self.page(), n)
    }

    /// Returns a word of the guest's frame `n`.
    pub(crate) fn guest_word(&self, n: u32) -> &'static AtomicU64 {
        word(self.guest.span().page(n).expect("a frame"), 0)
    }

    /// Gives an order to the domain, without waiting for the answer.
    pub(crate) fn order(&mut self, order: u64, args: &[u64]) {
        self.word(1).store(order, SeqCst);
        for n in 0..7 {
            self.word(2 + n)
                .store(args.get(n).copied().unwrap_or(0), SeqCst);
        }
        self.orders += 1;
        let number = self.page().u32(0).expect("a word");
        number.store(self.orders, SeqCst);
        shmem::futex::wake(number, 1);
    }

    /// Waits for the answer, which is a value, or `Err` if an access faulted. Returns `None` if the
    /// domain has exited.
    pub(crate) fn answer(&self) -> Option<Result<u64, ()>> {
        let answered = self.page().u32(9 * 8).expect("a word");
        let until = Instant::now() + TIMEOUT;
        loop {
            let now = answered.load(SeqCst);
            if now == self.orders {
                break;
            }
            if self.has_exited() {
                return None;
            }
            assert!(Instant::now() < until, "the domain does not answer");
            shmem::futex::wait(answered, now, Some(Duration::from_millis(20)));
        }
        Some(match self.word(11).load(SeqCst) {
            0 => Ok(self.word(10).load(SeqCst)),
            _ => Err(()),
        })
    }

    fn execute_order(&mut self, order: u64, args: &[u64]) -> Option<Result<u64, ()>> {
        self.order(order, args);
        self.answer()
    }

    pub(crate) fn read(&mut self, slot: u32) -> Result<u64, ()> {
        self.execute_order(1, &[slot.into()]).expect("alive")
    }

    pub(crate) fn write(&mut self, slot: u32, value: u64) -> Result<u64, ()> {
        self.execute_order(2, &[slot.into(), value]).expect("alive")
    }

    /// Makes the domain execute a system call. Returns the raw result, or `None` if the call killed
    /// the domain.
    pub(crate) fn call(&mut self, nr: i64, args: &[u64]) -> Option<i64> {
        let words: Vec<u64> = std::iter::once(nr as u64)
            .chain(args.iter().copied())
            .collect();
        self.execute_order(3, &words)
            .map(|answer| answer.expect("no page involved") as i64)
    }

    pub(crate) fn execute(&mut self, order: u64, args: &[u64]) -> Option<Result<u64, ()>> {
        self.execute_order(order, args)
    }

    /// Writes bytes for the domain's system calls to [`SCRATCH`].
    pub(crate) fn scratch(&self, bytes: &[u8]) {
        self.frames
            .span()
            .page(1)
            .expect("a page")
            .write(bytes)
            .expect("written");
    }

    pub(crate) fn map(&mut self, slot: u32, frame: u32, writable: bool) {
        self.domain
            .agent
            .map(&[PageMap {
                slot: Slot(slot),
                memory: GUEST,
                frame,
                writable,
            }])
            .expect("mapped");
    }

    pub(crate) fn unmap(&mut self, slot: u32) {
        self.domain.agent.unmap(&[Slot(slot)]).expect("unmapped");
    }

    /// Kills domain and agent, and repeats this until both have exited, since they may lack a CPU.
    #[track_caller]
    pub(crate) fn kill(&mut self) {
        wait_until("the domain has not exited", || self.domain.kill());
    }

    pub(crate) fn has_exited(&self) -> bool {
        exits_within(&self.domain.pidfd, Duration::ZERO)
    }

    /// Asserts that the domain has exited in the expected way, if the way is known.
    pub(crate) fn assert_exit(&self, how: &str) {
        let ending = self.domain.exit_description().expect("an end");
        let unknown = !self.domain.missing.is_empty() && ending == "ended";
        assert!(unknown || ending == how, "{ending}, not: {how}");
    }

    /// Returns the domain's output so far. Blocks until the domain has printed something.
    pub(crate) fn read_console(&mut self) -> String {
        let mut bytes = [0; 4096];
        let n = self.console.read(&mut bytes).expect("read");
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    }
}

/// Returns whether a process exits within this time.
pub(crate) fn exits_within(pidfd: &OwnedFd, time: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec::try_from(time).expect("a time");
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout)).expect("poll") > 0
}

/// Returns a process's open descriptors, or `None`, with a skip message, if this process may not
/// read them.
pub(crate) fn descriptors(pid: i32) -> Option<Vec<u32>> {
    let entries = match std::fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(entries) => entries,
        Err(error) => return testing::skip(format!("the descriptors of {pid}: {error}")),
    };
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    Some(numbers)
}

/// Returns a field of /proc/PID/status.
pub(crate) fn status(pid: i32, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.expect("the field").trim().to_owned()
}
