//! Finds the processes that have access to the memory of a virtual machine.

use crate::machine::Machine;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Maximum time that a profiler keeps a file open.
const MOMENT: Duration = Duration::from_secs(10);

/// A file, identified by device and inode.
type File = (u64, u64);

/// Returns the mapped files of a process whose paths begin with one of these prefixes.
fn mapped(pid: u64, paths: &[&str]) -> BTreeSet<File> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let file = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let path = words.get(5)?;
        paths.iter().find(|begin| path.starts_with(*begin))?;
        let (major, minor) = words[3].split_once(':')?;
        let number = |text| u32::from_str_radix(text, 16).ok();
        let device = rustix::fs::makedev(number(major)?, number(minor)?);
        Some((device, words[4].parse().ok()?))
    };
    maps.lines().filter_map(file).collect()
}

/// Returns the open files of a process.
fn open(pid: u64) -> BTreeSet<File> {
    let folder = fs::read_dir(format!("/proc/{pid}/fd"));
    let files = folder.into_iter().flatten().flatten();
    files
        .filter_map(|entry| fs::metadata(entry.path()).ok())
        .map(|data| (data.dev(), data.ino()))
        .collect()
}

/// Returns the processes that have the memory of this monitor's virtual machine open, except for
/// the monitor, its group, the shim and its agent. Ignores short accesses, because a host profiler,
/// such as that of a concurrent test, opens every mapped file for a moment.
pub(super) fn holders(machine: &Machine, vmm: u64) -> Vec<String> {
    let until = Instant::now() + MOMENT;
    loop {
        let found = holders_now(machine, vmm);
        if found.is_empty() || Instant::now() > until {
            return found;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn holders_now(machine: &Machine, vmm: u64) -> Vec<String> {
    let memory = mapped(vmm, &["/dev/shm/", "/memfd:vm", "/memfd:memory"]);
    assert!(!memory.is_empty(), "the monitor's memory is not found");
    let status = machine.ask(&["status"]);
    let domains = status["domains"].as_array().unwrap();
    let shim = domains.iter().find(|domain| domain["name"] == "vm");
    let shim = ["pid", "agent_pid"].map(|key| shim.unwrap()[key].as_u64().unwrap());
    let has = |pid: u64| {
        let files = mapped(pid, &["/"]);
        !memory.is_disjoint(&files) || !memory.is_disjoint(&open(pid))
    };
    assert!(
        shim.into_iter().all(has),
        "the shim has not mapped the memory"
    );
    let group = |pid: u64| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, fields) = stat.rsplit_once(") ")?;
        fields.split(' ').nth(2)?.parse::<u64>().ok()
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != vmm && !shim.contains(pid) && group(*pid) != Some(vmm))
        .filter(|pid| has(*pid))
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{} ({pid})", name.trim())
        })
        .collect()
}
