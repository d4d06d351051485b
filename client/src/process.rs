//! Detects the end of processes.

use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

/// Waits until a child has exited; returns false if that takes too long.
pub(crate) fn wait_child(child: &mut Child, limit: Duration) -> bool {
    let start = Instant::now();
    loop {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a condition is true; returns false if that takes too long.
pub(crate) fn wait_for(limit: Duration, is_so: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Returns whether a process of any user has exited, even if its parent has not waited for it.
pub(crate) fn has_exited(pid: u32) -> bool {
    stat(pid)
        .rsplit_once(") ")
        .is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Returns `PID (NAME) STATE …` of a process, or an empty text if it does not exist.
fn stat(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default()
}

/// Returns the children of any thread of a process that were not waited for.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let listed = threads
        .flatten()
        .map(|thread| thread.path().join("children"));
    let listed = listed.filter_map(|path| fs::read_to_string(path).ok());
    let pids = listed.flat_map(|text| {
        let pids = text.split_whitespace().map(str::parse);
        pids.filter_map(Result::ok).collect::<Vec<u32>>()
    });
    pids.collect()
}
