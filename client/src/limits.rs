//! Checks, before a start, that this process's limits suffice for a machine.

use crate::Error;
use abi::layout::fd;
use abi::machine::Machine;
use rustix::process::{Resource, geteuid, getrlimit, setrlimit};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Number of guests for which the limits must suffice, in addition to those in the machine's file.
const SPARE_GUESTS: u64 = 16;
/// Descriptors of the core, without domains.
const CORE_FILES: u64 = 48;
/// Descriptors that the core needs for a domain, its devices and its connections.
const DOMAIN_FILES: u64 = 20;
/// Processes and threads of the command and the monitor, without domains.
const MONITOR_TASKS: u64 = 16;
/// A domain's process, its agent, and the core's worker for it.
const DOMAIN_TASKS: u64 = 3;
/// Maximum number of processes and threads of one user (the manager's) if the monitor's parts and
/// the domains have separate users.
const OWN_USERS_TASKS: u64 = 4;

/// Sizes of a machine that determine its needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Requirement {
    domains: u64,
    connections: u64,
}

impl Requirement {
    fn of(machine: &Machine) -> Self {
        let room = machine.live.as_ref().map_or(0, |_| SPARE_GUESTS);
        Self {
            domains: machine.domains.len() as u64 + room,
            connections: machine.connections.len() as u64 + room,
        }
    }

    /// Returns the largest number of open files of a process: the core, or a driver domain, which
    /// has a doorbell for each connection.
    fn files(self) -> u64 {
        let of_core = CORE_FILES + self.domains * DOMAIN_FILES;
        let of_driver = u64::from(fd::DOORBELL.unsigned_abs()) + self.connections;
        of_core.max(of_driver)
    }

    /// Returns the processes and threads of this user.
    fn tasks(self) -> u64 {
        MONITOR_TASKS + self.domains * DOMAIN_TASKS
    }
}

/// Checks that the smallest machine, a driver domain and a guest, can run, before a command has
/// described its machine.
///
/// # Errors
///
/// Returns the errors of [`check_limits`].
pub fn check_smallest() -> Result<(), Error> {
    check(Requirement {
        domains: 2,
        connections: 1,
    })
}

/// Checks that a machine and some guests that are attached later can run, and raises the soft limit
/// of open files to the hard one, for this process and its children.
///
/// # Errors
///
/// Returns [`Error::Limit`] with the limit, its value and the machine's need.
pub fn check_limits(machine: &Machine) -> Result<(), Error> {
    check(Requirement::of(machine))
}

fn check(need: Requirement) -> Result<(), Error> {
    let mut files = getrlimit(Resource::Nofile);
    if let Some(limit) = files.maximum.filter(|limit| *limit < need.files()) {
        return Err(Error::Limit {
            what: "open files of a process (`ulimit -Hn`)",
            limit,
            need: need.files(),
            used: String::new(),
        });
    }
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).map_err(|e| {
        let what = "raise the limit of open files";
        Error::io(what, e.into())
    })?;
    let Some(limit) = getrlimit(Resource::Nproc).current else {
        return Ok(());
    };
    let (need, used) = match is_root_of_the_system() {
        true => (OWN_USERS_TASKS, 0),
        false => (need.tasks(), tasks()),
    };
    if limit >= need.saturating_add(used) {
        return Ok(());
    }
    Err(Error::Limit {
        what: "processes and threads of a user (`ulimit -u`)",
        limit,
        need: need.saturating_add(used),
        used: match used {
            0 => String::new(),
            used => format!(", {used} of them for running processes"),
        },
    })
}

/// Returns whether this user is root outside of user namespaces: the kernel does not limit root's
/// processes, and the domains have separate users.
fn is_root_of_the_system() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let all = ["0", "0", "4294967295"];
    geteuid().is_root() && map.split_whitespace().eq(all)
}

/// Returns the number of this user's processes and threads that `/proc` shows.
fn tasks() -> u64 {
    let own = geteuid().as_raw();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = entries.filter(|entry| entry.metadata().is_ok_and(|meta| meta.uid() == own));
    let threads = own.filter_map(|entry| {
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("Threads:"))?;
        line.trim().parse::<u64>().ok()
    });
    threads.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_needs_more_with_each_guest() {
        let need = |domains, connections| Requirement {
            domains,
            connections,
        };
        assert_eq!(need(2, 1).files(), 513);
        assert_eq!(need(18, 300).files(), 812);
        assert!(need(66, 64).files() > 1024);
        assert!(need(66, 64).tasks() > need(2, 1).tasks());
    }

    #[test]
    fn own_threads_are_counted() {
        let before = tasks();
        let (ends, waits) = std::sync::mpsc::channel::<()>();
        let threads = std::thread::spawn(move || waits.recv().unwrap_err());
        assert!(before > 0 && tasks() > 0);
        drop(ends);
        threads.join().unwrap();
    }
}
