//! Exact CPU time of processes and kernel threads, what the hypervisor below took, and on which
//! core a thread runs.
//!
//! The source is the CPU-time clock that the kernel keeps for every process: all its threads, those
//! that ended among them. What a thread of *another* process has run since the last tick or switch
//! is not in it yet, which is why windows are long against a tick (4 ms at 250 Hz).

use anyhow::Context as _;
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// CPU time of a process, all the threads that it has and had, nanoseconds. Kernel threads are
/// processes of one thread. None: no such process.
#[must_use]
pub fn cpu_ns(pid: i32) -> Option<u64> {
    // A clock's number is the process's with three bits appended, so a number that is too large
    // would name another clock, and 0 means ourselves.
    if !(1..1 << 28).contains(&pid) {
        return None;
    }
    let time = clock_getcpuclockid(Pid::from_raw(pid))
        .and_then(ClockId::now)
        .ok()?;
    u64::try_from(time.tv_sec() * 1_000_000_000 + time.tv_nsec()).ok()
}

/// CPU time of this process, nanoseconds.
#[must_use]
pub fn own_cpu_ns() -> u64 {
    cpu_ns(std::process::id().cast_signed()).unwrap_or(0)
}

/// Ids of all processes, kernel threads among them.
#[must_use]
pub fn processes() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Kernel threads whose name begins with one of `prefixes`: `napi/IF-`, `ksoftirqd/`.
#[must_use]
pub fn kernel_threads(prefixes: &[&str]) -> Vec<i32> {
    processes()
        .into_iter()
        .filter(|pid| {
            let comm = Path::new("/proc").join(pid.to_string()).join("comm");
            std::fs::read_to_string(comm)
                .is_ok_and(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
        })
        .collect()
}

/// Whose CPU time it is: the X of `cycles_per_byte.X`.
pub type Part = &'static str;

/// CPU time by part at one instant.
#[derive(Clone, Debug, Default)]
pub struct CpuTimes {
    by_pid: BTreeMap<i32, (Part, u64)>,
}

impl CpuTimes {
    /// Reads the processes of each part.
    #[must_use]
    pub fn read(parts: &[(Part, Vec<i32>)]) -> Self {
        let by_pid = parts
            .iter()
            .flat_map(|(part, pids)| pids.iter().map(move |&pid| (*part, pid)))
            .filter_map(|(part, pid)| Some((pid, (part, cpu_ns(pid)?))))
            .collect();
        Self { by_pid }
    }

    /// Nanoseconds that each part used since `earlier`. A process that was not there at both
    /// instants counts for nothing.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> BTreeMap<Part, u64> {
        let mut sums = BTreeMap::new();
        for (pid, (part, now)) in &self.by_pid {
            let before = earlier.by_pid.get(pid).map_or(*now, |(_, ns)| *ns);
            *sums.entry(*part).or_default() += now.saturating_sub(before);
        }
        sums
    }
}

/// Share of stolen CPU time above which figures are disturbed.
pub const STEAL_MAX: f64 = 0.01;

/// A tick of the account in `/proc/stat`, as every program is told it.
const TICK: Duration = Duration::from_millis(10);

/// The machine's CPU account, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    all: u64,
    steal: u64,
    /// Nothing ran, or something waited for a disk.
    idle: u64,
    cpus: u32,
}

impl Machine {
    /// Reads it.
    #[must_use]
    pub fn read() -> Self {
        std::fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|text| Self::parse(&text))
            .unwrap_or_default()
    }

    /// From the text of `/proc/stat`: user nice system idle iowait irq softirq steal, and two that
    /// are contained in the first two.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find(|line| line.starts_with("cpu "))?;
        let ticks: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .map_while(|word| word.parse().ok())
            .collect();
        let numbered = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
        Some(Self {
            all: ticks.iter().sum(),
            steal: *ticks.get(7)?,
            idle: *ticks.get(3)? + *ticks.get(4)?,
            cpus: text.lines().filter(numbered).count() as u32,
        })
    }

    /// CPU time in the `wall` since `earlier` that was neither idle nor stolen: of all processes,
    /// and of interrupts, also those that hit no process. The kernel keeps idle time exactly and
    /// tells it in ticks, so this is off by a tick of each CPU at the most.
    #[must_use]
    pub fn busy_since(self, earlier: Self, wall: Duration) -> Duration {
        let ticks =
            |now: u64, then: u64| u32::try_from(now.saturating_sub(then)).unwrap_or(u32::MAX);
        let not_ours =
            ticks(self.idle, earlier.idle).saturating_add(ticks(self.steal, earlier.steal));
        (wall * self.cpus).saturating_sub(TICK * not_ours)
    }

    /// Whether so much was stolen since `earlier` that figures are disturbed: more than 1 %, and
    /// more than the one tick that the account cannot resolve.
    #[must_use]
    pub fn disturbed_since(self, earlier: Self) -> bool {
        self.steal.saturating_sub(earlier.steal) > 1 && self.steal_since(earlier) > STEAL_MAX
    }

    /// The share of CPU time since `earlier` that the hypervisor below gave to others.
    #[must_use]
    pub fn steal_since(self, earlier: Self) -> f64 {
        let all = self.all.saturating_sub(earlier.all);
        if all == 0 {
            return 0.0;
        }
        self.steal.saturating_sub(earlier.steal) as f64 / all as f64
    }
}

/// The cores that this process may run on.
#[must_use]
pub fn cores() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU)
            .filter(|&cpu| set.is_set(cpu))
            .collect(),
        Err(_) => vec![0],
    }
}

/// Pins this thread, and those it starts, to one core.
///
/// # Errors
/// If there is no such core.
pub fn pin(cpu: usize) -> anyhow::Result<()> {
    pin_process(0, cpu)
}

/// Pins the thread `pid`, or this one for 0, to one core.
///
/// # Errors
/// If there is no such core or thread, or it may not be moved.
pub fn pin_process(pid: i32, cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
    }
    sched_setaffinity(rustix::process::Pid::from_raw(pid), &set)
        .with_context(|| format!("cannot run on core {cpu}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps a CPU busy for so long, by the account of the process.
    fn burn(ns: u64) {
        let me = std::process::id().cast_signed();
        let end = cpu_ns(me).unwrap() + ns;
        while cpu_ns(me).unwrap() < end {}
    }

    /// Other tests run in this process meanwhile, so there is no upper bound.
    #[test]
    fn own_time_grows_and_threads_that_ended_count() {
        let me = std::process::id().cast_signed();
        let parts = [("sender", vec![me]), ("receiver", vec![i32::MAX])];
        let before = CpuTimes::read(&parts);
        std::thread::spawn(|| burn(30_000_000)).join().unwrap();
        burn(30_000_000);
        let used = CpuTimes::read(&parts).since(&before);
        assert!(used["sender"] >= 60_000_000, "{used:?}");
        assert!(!used.contains_key("receiver"));
    }

    /// Of a process that never had a second thread the scheduler's account in /proc is the same.
    #[test]
    fn the_clock_is_the_schedulers_account_of_kernel_threads_too() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut pids = kernel_threads(&["ksoftirqd/", "napi/"]);
        if pids.is_empty() {
            testing::skip::<()>("kernel threads in this PID namespace");
        }
        let own = child.id().cast_signed();
        pids.push(own);
        for pid in pids {
            let account = || -> Option<u64> {
                let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
                text.split_whitespace().next()?.parse().ok()
            };
            let (Some(before), Some(clock), Some(after)) = (account(), cpu_ns(pid), account())
            else {
                // An interface's thread goes with it.
                assert_ne!(pid, own);
                continue;
            };
            assert!(
                (before..=after).contains(&clock),
                "{before} {clock} {after}"
            );
        }
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn what_is_no_process_has_no_time() {
        for pid in [i32::MIN, -1, 0, 1 << 28, i32::MAX] {
            assert_eq!(cpu_ns(pid), None, "{pid}");
        }
    }

    #[test]
    fn steal_of_a_known_account() {
        let a = Machine::parse("cpu  100 0 50 800 10 0 30 10 5 0\ncpu0 1 2").unwrap();
        let b = Machine::parse("cpu  150 0 70 810 10 0 40 20 6 0\n").unwrap();
        assert_eq!(a.all, 1000);
        assert!((b.steal_since(a) - 0.1).abs() < 1e-12);
        assert_eq!(b.steal_since(b), 0.0);
        assert!(b.disturbed_since(a) && !b.disturbed_since(b));
        let c = Machine {
            all: b.all + 40,
            steal: b.steal + 1,
            ..b
        };
        assert!(!c.disturbed_since(b), "one tick of forty is not resolved");
        assert_eq!(Machine::parse("nothing"), None);
    }

    #[test]
    fn busy_time_is_what_is_neither_idle_nor_stolen() {
        let a = Machine::parse("cpu  0 0 0 100 0 0 0 0\ncpu0 0\ncpu1 0\nintr 1").unwrap();
        let b = Machine::parse("cpu  9 9 9 130 10 9 9 20\ncpu0 0\ncpu1 0\nintr 1").unwrap();
        let busy = b.busy_since(a, Duration::from_secs(1));
        assert_eq!(busy, Duration::from_millis(2000 - 300 - 100 - 200));
        assert_eq!(b.busy_since(a, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn there_is_a_core_and_softirq_threads_have_names() {
        assert!(!cores().is_empty());
        assert!(kernel_threads(&["no such thread "]).is_empty());
    }
}
