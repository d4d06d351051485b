//! CPUs and clocks of this host.

use figures::measure;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the wall-clock time, nanoseconds since 1970.
pub(crate) fn unix_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos() as u64)
}

/// Returns `CLOCK_MONOTONIC_RAW`, the clock of the samples, in nanoseconds.
pub(crate) fn raw_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicRaw);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Returns all online CPUs, including those that this process may not use.
pub(crate) fn online_cpus() -> Vec<u32> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    match parse_cpus(text.trim()) {
        Some(cpus) if !cpus.is_empty() => cpus,
        _ => measure::cores().iter().map(|&cpu| cpu as u32).collect(),
    }
}

fn parse_cpus(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(cpus)
}

/// Returns the time stolen by the underlying hypervisor in nanoseconds, by CPU.
pub(crate) fn steal_ns() -> BTreeMap<u32, u64> {
    parse_steal(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn parse_steal(stat: &str) -> BTreeMap<u32, u64> {
    /// Unit of `/proc/stat`: hundredths of a second.
    const TICK_NS: u64 = 10_000_000;
    stat.lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("cpu")?.split_whitespace();
            let cpu = words.next()?.parse().ok()?;
            let ticks: u64 = words.nth(7)?.parse().ok()?;
            Some((cpu, ticks * TICK_NS))
        })
        .collect()
}

/// Returns the steal since an earlier reading.
pub(crate) fn steal_since(before: &BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
    let mut now = steal_ns();
    for (cpu, ns) in &mut now {
        *ns = ns.saturating_sub(before.get(cpu).copied().unwrap_or(0));
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_parsed() {
        assert_eq!(parse_cpus("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_cpus("x"), None);
    }

    #[test]
    fn steal_is_by_cpu() {
        let stat =
            "cpu  1 2 3 4 5 6 7 80 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 0 0 0 0 0 0 0 9 0 0\n";
        assert_eq!(parse_steal(stat), [(0, 80_000_000), (1, 90_000_000)].into());
    }
}
