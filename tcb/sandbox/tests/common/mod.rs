//! A domain under test: `hostile`, with the test as its monitor.
#![allow(dead_code)]

use abi::core::CPU_WORDS;
use abi::layout::{FOREIGN_PAGES, FRAMES, PAGE, info, mailbox};
use abi::version::VERSION;
use abi::{DomId, Slot};
use rustix::event::{EventfdFlags, epoll, eventfd};
use sandbox::{PageMap, Profile, Sandboxed, SpawnError, Spec};
use shmem::{Region, Span};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use testing::{PATIENCE, require, wait_until};

/// The guest memory's number in the agent.
pub(crate) const GUEST: u32 = 7;
pub(crate) const WINDOW_SLOTS: u32 = 4096;
pub(crate) const GUEST_FRAMES: u32 = 2048;

/// The address of the second page of the domain's frames: strings and structs for its calls.
pub(crate) const SCRATCH: u64 = (FRAMES + PAGE) as u64;

/// Serializes the tests, because they measure time and start processes.
pub(crate) fn alone() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Skipped tests also start processes and open descriptors.
    require!(seccomp_notify);
    Some(alone)
}

pub(crate) struct World {
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

/// Starts a domain without an environment.
pub(crate) fn start(program: &Path, name: &str, cpus: &[usize]) -> Result<World, SpawnError> {
    start_by(u64::from(VERSION), program, name, cpus)
}

/// Returns the same by a monitor of another version.
pub(crate) fn start_by(
    version: u64,
    program: &Path,
    name: &str,
    cpus: &[usize],
) -> Result<World, SpawnError> {
    start_as(Profile::Driver, version, program, name, cpus)
}

/// Returns the same with a filter profile: a shim has a range for foreign memory instead of a
/// window.
pub(crate) fn start_as(
    profile: Profile,
    version: u64,
    program: &Path,
    name: &str,
    cpus: &[usize],
) -> Result<World, SpawnError> {
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
    let domain = sandbox::spawn(&Spec {
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
    Ok(World {
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

impl World {
    pub(crate) fn new() -> Self {
        Self::on(&[])
    }

    pub(crate) fn on(cpus: &[usize]) -> Self {
        let mut world = start(Path::new(HOSTILE), "hostile", cpus).expect("a domain");
        let World {
            domain,
            guest,
            guest_readonly,
            ..
        } = &mut world;
        domain
            .agent
            .add_memory(GUEST, guest.fd(), guest_readonly.as_fd())
            .expect("a memory");
        world
    }

    fn page(&self) -> Span {
        self.frames.span().page(0).expect("the first page")
    }

    /// Returns a word of the page of orders.
    pub(crate) fn word(&self, n: usize) -> &'static AtomicU64 {
        word(self.page(), n)
    }

    /// Returns a word of the guest's frame `n`.
    pub(crate) fn guest_word(&self, n: u32) -> &'static AtomicU64 {
        word(self.guest.span().page(n).expect("a frame"), 0)
    }

    /// Gives an order without waiting.
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

    /// Waits for the answer: a value, or `Err` if an access faulted. `None` if the domain has
    /// ended.
    pub(crate) fn answer(&self) -> Option<Result<u64, ()>> {
        let answered = self.page().u32(9 * 8).expect("a word");
        let until = Instant::now() + PATIENCE;
        loop {
            let now = answered.load(SeqCst);
            if now == self.orders {
                break;
            }
            if self.ended() {
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

    fn ask(&mut self, order: u64, args: &[u64]) -> Option<Result<u64, ()>> {
        self.order(order, args);
        self.answer()
    }

    pub(crate) fn read(&mut self, slot: u32) -> Result<u64, ()> {
        self.ask(1, &[slot.into()]).expect("alive")
    }

    pub(crate) fn write(&mut self, slot: u32, value: u64) -> Result<u64, ()> {
        self.ask(2, &[slot.into(), value]).expect("alive")
    }

    /// Makes the domain make a system call; returns the raw result, or `None` if the call killed
    /// the domain.
    pub(crate) fn call(&mut self, nr: i64, args: &[u64]) -> Option<i64> {
        let words: Vec<u64> = std::iter::once(nr as u64)
            .chain(args.iter().copied())
            .collect();
        self.ask(3, &words)
            .map(|answer| answer.expect("no page involved") as i64)
    }

    pub(crate) fn tell(&mut self, order: u64, args: &[u64]) -> Option<Result<u64, ()>> {
        self.ask(order, args)
    }

    /// Writes bytes for its system calls at [`SCRATCH`].
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

    /// Kills domain and agent, and waits for as long as they only lack a CPU.
    #[track_caller]
    pub(crate) fn end(&mut self) {
        wait_until("the domain has not ended", || self.domain.kill());
    }

    pub(crate) fn ended(&self) -> bool {
        gone_within(&self.domain.pidfd, Duration::ZERO)
    }

    /// Asserts that it has ended, and in the expected way, if that is known.
    pub(crate) fn assert_ended(&self, how: &str) {
        let ending = self.domain.how_it_ended().expect("an end");
        let unknown = !self.domain.missing.is_empty() && ending == "ended";
        assert!(unknown || ending == how, "{ending}, not: {how}");
    }

    /// Returns its output so far (blocks until there is some).
    pub(crate) fn printed(&mut self) -> String {
        let mut bytes = [0; 4096];
        let n = self.console.read(&mut bytes).expect("read");
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    }
}

/// Returns whether a process ends within this time.
pub(crate) fn gone_within(pidfd: &OwnedFd, time: Duration) -> bool {
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
