//! Exact CPU time of processes and kernel threads, steal, and pinning of threads to cores.
//!
//! The source is the CPU-time clock that the kernel keeps for every process. It includes all
//! threads, even those that have exited. For threads of *another* process it lacks the time since
//! the last tick or context switch, so windows must be long compared with a tick (4 ms at 250 Hz).

use anyhow::Context as _;
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Returns the CPU time of a process in nanoseconds, including all current and exited threads, or
/// `None` if the process does not exist. A kernel thread is a process of one thread.
#[must_use]
pub fn cpu_ns(pid: i32) -> Option<u64> {
    // A clock id is the process id with three bits appended. So a process id that is too large
    // would select another clock, and 0 would select this process.
    if !(1..1 << 28).contains(&pid) {
        return None;
    }
    let time = clock_getcpuclockid(Pid::from_raw(pid))
        .and_then(ClockId::now)
        .ok()?;
    u64::try_from(time.tv_sec() * 1_000_000_000 + time.tv_nsec()).ok()
}

/// Returns the CPU time of this process in nanoseconds.
#[must_use]
pub fn own_cpu_ns() -> u64 {
    cpu_ns(std::process::id().cast_signed()).unwrap_or(0)
}

/// The waits of a process's main thread for a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedWaits {
    /// Time in which it could have run, nanoseconds.
    pub ns: u64,
    /// Number of times that another process took its CPU.
    pub preempted: u64,
}

/// Returns the waits of a process so far. A kernel without these statistics reports none.
#[must_use]
pub fn waits(pid: u32) -> SchedWaits {
    let read =
        |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    SchedWaits {
        ns: parse_run_delay(&read("schedstat")).unwrap_or(0),
        preempted: parse_preemptions(&read("status")).unwrap_or(0),
    }
}

/// `RAN WAITED SLICES`.
fn parse_run_delay(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

fn parse_preemptions(status: &str) -> Option<u64> {
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    count?.trim().parse().ok()
}

/// Returns the ids of all processes, including kernel threads.
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

/// Returns the kernel threads whose names start with one of `prefixes`, for example `napi/IF-` or
/// `ksoftirqd/`.
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

/// Name of a part of the CPU time: the X of `cycles_per_byte.X`.
pub type CpuPart = &'static str;

/// CPU time of each part at one time.
#[derive(Clone, Debug, Default)]
pub struct CpuTimes {
    by_pid: BTreeMap<i32, (CpuPart, u64)>,
}

impl CpuTimes {
    /// Reads the CPU time of each part's processes.
    #[must_use]
    pub fn read(parts: &[(CpuPart, Vec<i32>)]) -> Self {
        let by_pid = parts
            .iter()
            .flat_map(|(part, pids)| pids.iter().map(move |&pid| (*part, pid)))
            .filter_map(|(part, pid)| Some((pid, (part, cpu_ns(pid)?))))
            .collect();
        Self { by_pid }
    }

    /// Returns the CPU time of each part since `earlier`, nanoseconds. Includes only processes that
    /// existed at both times.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> BTreeMap<CpuPart, u64> {
        let mut sums = BTreeMap::new();
        for (pid, (part, now)) in &self.by_pid {
            let before = earlier.by_pid.get(pid).map_or(*now, |(_, ns)| *ns);
            *sums.entry(*part).or_default() += now.saturating_sub(before);
        }
        sums
    }
}

/// Share of stolen CPU time above which figures count as disturbed.
pub const STEAL_MAX: f64 = 0.01;

/// Unit of the times in `/proc/stat`.
const TICK: Duration = Duration::from_millis(10);

/// The machine's CPU times from `/proc/stat`, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCpuTimes {
    all: u64,
    steal: u64,
    /// Time for which CPUs were idle or waited for a disk.
    idle: u64,
    cpus: u32,
}

impl HostCpuTimes {
    /// Reads the CPU times.
    #[must_use]
    pub fn read() -> Self {
        std::fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|text| Self::parse(&text))
            .unwrap_or_default()
    }

    /// Parses `/proc/stat`: user nice system idle iowait irq softirq steal. Ignores the two guest
    /// times that follow, because user and nice include them.
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

    /// Returns the CPU time since `earlier`, `wall` ago, that was neither idle nor stolen. It
    /// includes the time of all processes, and that of interrupts even on idle cores. The kernel
    /// measures idle time exactly but reports it in ticks, so the error is at most one tick per
    /// CPU.
    #[must_use]
    pub fn busy_since(self, earlier: Self, wall: Duration) -> Duration {
        let ticks =
            |now: u64, then: u64| u32::try_from(now.saturating_sub(then)).unwrap_or(u32::MAX);
        let not_ours =
            ticks(self.idle, earlier.idle).saturating_add(ticks(self.steal, earlier.steal));
        (wall * self.cpus).saturating_sub(TICK * not_ours)
    }

    /// Returns the time that the underlying hypervisor has taken from all CPUs.
    #[must_use]
    pub fn stolen(self) -> Duration {
        TICK.saturating_mul(u32::try_from(self.steal).unwrap_or(u32::MAX))
    }

    /// Returns whether steal since `earlier` disturbs figures: more than 1 % of the CPU time, and
    /// more than one tick, which is the resolution.
    #[must_use]
    pub fn disturbed_since(self, earlier: Self) -> bool {
        self.steal.saturating_sub(earlier.steal) > 1 && self.steal_since(earlier) > STEAL_MAX
    }

    /// Returns the share of CPU time stolen by the underlying hypervisor since `earlier`.
    #[must_use]
    pub fn steal_since(self, earlier: Self) -> f64 {
        let all = self.all.saturating_sub(earlier.all);
        if all == 0 {
            return 0.0;
        }
        self.steal.saturating_sub(earlier.steal) as f64 / all as f64
    }
}

/// Returns the cores that this process may use.
#[must_use]
pub fn cores() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU)
            .filter(|&cpu| set.is_set(cpu))
            .collect(),
        Err(_) => vec![0],
    }
}

/// Pins this thread and every thread that it starts later to one core.
///
/// # Errors
/// Returns an error if the core does not exist.
pub fn pin(cpu: usize) -> anyhow::Result<()> {
    pin_process(0, cpu)
}

/// Pins the thread `pid`, or this thread if `pid` is 0, to one core.
///
/// # Errors
/// Returns an error if the core or the thread does not exist, or the thread may not be moved.
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

    /// Keeps a CPU busy until the process has used `ns` nanoseconds of CPU time.
    fn burn(ns: u64) {
        let me = std::process::id().cast_signed();
        let end = cpu_ns(me).unwrap() + ns;
        while cpu_ns(me).unwrap() < end {}
    }

    /// Other tests use CPU time in this process at the same time, so only a lower bound can be
    /// checked.
    #[test]
    fn own_time_includes_exited_threads() {
        let me = std::process::id().cast_signed();
        let parts = [("sender", vec![me]), ("receiver", vec![i32::MAX])];
        let before = CpuTimes::read(&parts);
        std::thread::spawn(|| burn(30_000_000)).join().unwrap();
        burn(30_000_000);
        let used = CpuTimes::read(&parts).since(&before);
        assert!(used["sender"] >= 60_000_000, "{used:?}");
        assert!(!used.contains_key("receiver"));
    }

    /// For a process that never had a second thread, /proc states the same time.
    #[test]
    fn clocks_of_kernel_threads_match_the_scheduler() {
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
                // A thread exits when its interface is removed.
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
    fn an_unknown_process_has_no_time() {
        for pid in [i32::MIN, -1, 0, 1 << 28, i32::MAX] {
            assert_eq!(cpu_ns(pid), None, "{pid}");
        }
    }

    #[test]
    fn steal_of_a_known_account() {
        let a = HostCpuTimes::parse("cpu  100 0 50 800 10 0 30 10 5 0\ncpu0 1 2").unwrap();
        let b = HostCpuTimes::parse("cpu  150 0 70 810 10 0 40 20 6 0\n").unwrap();
        assert_eq!(a.all, 1000);
        assert!((b.steal_since(a) - 0.1).abs() < 1e-12);
        assert_eq!(b.steal_since(b), 0.0);
        assert_eq!(b.stolen(), Duration::from_millis(200));
        assert!(b.disturbed_since(a) && !b.disturbed_since(b));
        let c = HostCpuTimes {
            all: b.all + 40,
            steal: b.steal + 1,
            ..b
        };
        assert!(!c.disturbed_since(b), "one tick of forty is not resolved");
        assert_eq!(HostCpuTimes::parse("nothing"), None);
    }

    #[test]
    fn busy_time_excludes_idle_and_stolen_time() {
        let a = HostCpuTimes::parse("cpu  0 0 0 100 0 0 0 0\ncpu0 0\ncpu1 0\nintr 1").unwrap();
        let b = HostCpuTimes::parse("cpu  9 9 9 130 10 9 9 20\ncpu0 0\ncpu1 0\nintr 1").unwrap();
        let busy = b.busy_since(a, Duration::from_secs(1));
        assert_eq!(busy, Duration::from_millis(2000 - 300 - 100 - 200));
        assert_eq!(b.busy_since(a, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn waits_are_parsed() {
        assert_eq!(parse_run_delay("77685 56244 2\n"), Some(56244));
        let status = "Name:\tx\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(parse_preemptions(status), Some(7));
        assert_eq!((parse_run_delay(""), parse_preemptions("")), (None, None));
    }

    #[test]
    fn cores_and_softirq_threads_are_found() {
        assert!(!cores().is_empty());
        assert!(kernel_threads(&["no such thread "]).is_empty());
    }
}
