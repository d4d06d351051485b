//! Exact CPU time of processes and kernel threads, and what the hypervisor below took.
//!
//! The source is the scheduler's own account in nanoseconds, `/proc/PID/task/*/schedstat`. For a
//! thread that runs right now it is up to one tick old, which is why windows are long against a
//! tick (4 ms at 250 Hz).

use std::collections::BTreeMap;
use std::path::Path;

/// CPU time of a process, all its threads, nanoseconds; of threads that ended, nothing is known.
/// None: no such process.
#[must_use]
pub fn cpu_ns(pid: i32) -> Option<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut sum = 0u64;
    for task in tasks.flatten() {
        sum += std::fs::read_to_string(task.path().join("schedstat"))
            .ok()
            .and_then(|text| first_number(&text))
            .unwrap_or(0);
    }
    Some(sum)
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Kernel threads whose name begins with one of `prefixes`: `napi/IF-`, `ksoftirqd/`.
#[must_use]
pub fn kernel_threads(prefixes: &[&str]) -> Vec<i32> {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| {
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

/// The machine's CPU account, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    all: u64,
    steal: u64,
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
        Some(Self {
            all: ticks.iter().sum(),
            steal: *ticks.get(7)?,
        })
    }

    /// Whether so much was stolen since `earlier` that figures are disturbed: more than 1 %, and
    /// more than the one tick that the account cannot resolve.
    #[must_use]
    pub fn disturbed_since(self, earlier: Self) -> bool {
        self.steal.saturating_sub(earlier.steal) > 1 && self.steal_since(earlier) > STEAL_MAX
    }

    /// The share of CPU time since `earlier` that the hypervisor below gave to somebody else.
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
    use rustix::thread::{CpuSet, sched_getaffinity};
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU)
            .filter(|&cpu| set.is_set(cpu))
            .collect(),
        Err(_) => vec![0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_cpu_ns() -> u64 {
        use rustix::time::{ClockId, clock_gettime};
        let time = clock_gettime(ClockId::ProcessCPUTime);
        (time.tv_sec * 1_000_000_000 + time.tv_nsec).cast_unsigned()
    }

    #[test]
    fn own_time_grows() {
        let me = std::process::id().cast_signed();
        let before = CpuTimes::read(&[("sender", vec![me]), ("receiver", vec![i32::MAX])]);
        let start = own_cpu_ns();
        while own_cpu_ns() < start + 60_000_000 {}
        let used = CpuTimes::read(&[("sender", vec![me])]).since(&before);
        assert!(used["sender"] > 40_000_000, "{used:?}");
        assert!(!used.contains_key("receiver"));
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
        };
        assert!(!c.disturbed_since(b), "one tick of forty is not resolved");
        assert_eq!(Machine::parse("nothing"), None);
    }

    #[test]
    fn there_is_a_core_and_softirq_threads_have_names() {
        assert!(!cores().is_empty());
        assert!(kernel_threads(&["no such thread "]).is_empty());
    }
}
