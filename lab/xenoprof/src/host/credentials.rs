//! Whether a process is all its user's own.

use crate::host::cpus::raw_ns;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// Since when (`CLOCK_MONOTONIC_RAW`, nanoseconds) everything that a process does is what its user
/// `uid` could do without it; none: it is not, or has gone.
///
/// It is the kernel's rule for who may trace whom: all ids are the user's, no capability, and it
/// was not made unreadable by credentials that it had since its last exec. Such a process gets
/// other credentials by an exec only, so this stays true until its next one.
#[must_use]
pub fn plain_since(pid: u32, uid: u32) -> Option<u64> {
    let since = raw_ns();
    let file = |name: &str| format!("/proc/{pid}/{name}");
    // An exec says that it happens before it takes the new credentials. Opening this file waits
    // until an exec under way has done both; one that begins later says so later than `since`.
    let _settled = fs::File::open(file("maps")).ok()?;
    // Root's, unless who has the process's ids may read its memory.
    let reader = fs::metadata(file("maps")).ok()?.uid();
    let status = fs::read_to_string(file("status")).ok()?;
    // In a user namespace of its own a capability is about what is the user's there.
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

/// What `/proc/PID/status` says of a process's credentials.
#[derive(Debug, PartialEq, Eq)]
struct Ids {
    /// Real, effective, saved, of files.
    users: [u32; 4],
    groups: [u32; 4],
    /// Permitted ones.
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
    fn a_status_is_read() {
        let status =
            "Name:\tsu\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\nCapPrm:\t000001ffffffffff\n";
        let ids = Ids::parse(status).unwrap();
        assert_eq!((ids.users, ids.groups), ([1000, 0, 0, 0], [5; 4]));
        assert_eq!(ids.capabilities, 0x1ff_ffff_ffff);
        assert_eq!(Ids::parse("Uid:\t1 2 3\n"), None);
    }

    #[test]
    fn nobody_is_somebody_else() {
        let own = std::process::id();
        let uid = fs::metadata("/proc/self").unwrap().uid();
        assert_eq!(plain_since(own, uid + 1), None);
        assert_eq!(plain_since(u32::MAX >> 1, uid), None);
    }
}
