//! Processes that others have started.

use std::fs;
use std::path::Path;

/// The child of a process that has this name.
#[must_use]
pub fn child_of(parent: u64, name: &str) -> Option<u64> {
    // The kernel keeps 15 bytes of a name, and the children of each thread.
    let kept = name.get(..15).unwrap_or(name);
    let is_named = |pid: &u64| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
        comm.is_ok_and(|comm| comm.trim_end() == kept)
    };
    let of_thread = |thread: &Path| {
        let children = fs::read_to_string(thread.join("children")).unwrap_or_default();
        let mut pids = children
            .split_whitespace()
            .filter_map(|pid| pid.parse::<u64>().ok());
        pids.find(is_named)
    };
    let threads = fs::read_dir(format!("/proc/{parent}/task")).ok()?;
    let mut threads = threads.flatten();
    threads.find_map(|thread| of_thread(&thread.path()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_is_found_by_its_name() {
        let this = u64::from(std::process::id());
        // It has its name when this returns, and waits for its input to end.
        let mut tail = Command::new("tail")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        assert_eq!(child_of(this, "tail"), Some(tail.id().into()));
        assert_eq!(child_of(this, "tai"), None);
        assert_eq!(child_of(tail.id().into(), "tail"), None);
        drop(tail.stdin.take());
        tail.wait().unwrap();
        assert_eq!(child_of(this, "tail"), None);
    }
}
