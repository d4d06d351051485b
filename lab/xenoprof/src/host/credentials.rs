//! Checks whether a process has only its user's privileges.

use crate::host::cpus::raw_ns;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// Returns the time (`CLOCK_MONOTONIC_RAW`, nanoseconds) since which a process has had only the
/// privileges of its user `uid`. Returns `None` if it has others or has exited.
///
/// This is the kernel's rule for tracing: all ids are the user's, the process has no capability,
/// and it is still readable after all changes of its credentials since its last exec. Only an exec
/// can give that process other credentials, so the result stays valid until its next exec.
#[must_use]
pub fn plain_since(pid: u32, uid: u32) -> Option<u64> {
    let since = raw_ns();
    let file = |name: &str| format!("/proc/{pid}/{name}");
    // The kernel reports an exec before the new credentials take effect. Opening this file waits
    // until the kernel has reported an exec in progress and applied its credentials. The kernel
    // reports any later exec after `since`.
    let _settled = fs::File::open(file("maps")).ok()?;
    // The file belongs to root unless a process with the same ids may read the process's memory.
    let reader = fs::metadata(file("maps")).ok()?.uid();
    let status = fs::read_to_string(file("status")).ok()?;
    // In a separate user namespace, a capability covers the objects that the user owns there.
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/user")).ok();
    let has_power = || match (namespace("self"), namespace(&pid.to_string())) {
        (Some(own), Some(its)) => own == its,
        _ => true,
    };
    let ids = Ids::parse(&status)?;
    let is_plain = reader == uid
        && ids.users.iter().all(|id| *id == uid)
        && ids.groups.iter().all(|id| Some(id) == ids.groups.first())
        && (ids.capabilities == 0 || !has_power());
    is_plain.then_some(since)
}

/// Credentials of a process, from `/proc/PID/status`.
#[derive(Debug, PartialEq, Eq)]
struct Ids {
    /// Real, effective, saved and file-system ids.
    users: [u32; 4],
    groups: [u32; 4],
    /// Permitted capabilities.
    capabilities: u64,
}

impl Ids {
    fn parse(status: &str) -> Option<Self> {
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let four = |name: &str| -> Option<[u32; 4]> {
            let ids: Option<Vec<u32>> = line(name)?
                .split_whitespace()
                .map(|id| id.parse().ok())
                .collect();
            ids?.try_into().ok()
        };
        Some(Self {
            users: four("Uid:")?,
            groups: four("Gid:")?,
            capabilities: u64::from_str_radix(line("CapPrm:")?.trim(), 16).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_parsed() {
        let status =
            "Name:\tsu\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\nCapPrm:\t000001ffffffffff\n";
        let ids = Ids::parse(status).unwrap();
        assert_eq!((ids.users, ids.groups), ([1000, 0, 0, 0], [5; 4]));
        assert_eq!(ids.capabilities, 0x1ff_ffff_ffff);
        assert_eq!(Ids::parse("Uid:\t1 2 3\n"), None);
    }

    #[test]
    fn no_process_passes_for_another_user() {
        let own = std::process::id();
        let uid = fs::metadata("/proc/self").unwrap().uid();
        assert_eq!(plain_since(own, uid + 1), None);
        assert_eq!(plain_since(u32::MAX >> 1, uid), None);
    }
}
