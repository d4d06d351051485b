//! Resources that a machine holds while guests are attached and detached. Their amounts must not
//! grow.

use super::timeout::{SETTLE_INTERVAL, TIMEOUT, wait};
use crate::many_guests::{GuestPlace, ManyGuests};
use abi::machine::Program;
use anyhow::{Context as _, ensure};
use figures::interrupt;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Instant;

/// Helpers of the core.
pub(super) const HELPERS: [&str; 2] = [NETD, MANAGER];
/// The helper that opens and configures devices.
pub(super) const NETD: &str = "grantway-netd";
/// The helper that serves the control socket.
pub(super) const MANAGER: &str = "grantway-manager";
/// Allowed growth of a process's memory, KiB. The amount that an allocator retains depends on the
/// order of concurrent events.
const SLACK_KIB: i64 = 8 << 10;
/// Allowed growth of a driver domain's descriptors. The driver domain keeps a doorbell until the
/// guest number is reused, and a number is reused only after a quarantine.
const SLACK_DOORBELLS: i64 = 80;
/// Name of the resource that counts the driver domain's descriptors.
const DRIVER_DESCRIPTORS: &str = "descriptors.driver";

/// Resources, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resources {
    /// Resources whose amounts must not change.
    exact: BTreeMap<String, i64>,
    /// Resources that may grow slightly: descriptors of the driver domain, and memory of processes
    /// in KiB.
    pub(super) bounded: BTreeMap<String, i64>,
}

/// Returns the number of a process's open descriptors.
pub(super) fn descriptors(pid: i32) -> anyhow::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Returns the number of a process's threads.
fn threads(pid: i32) -> anyhow::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/task"))?.count())
}

/// Returns the sum over processes.
fn sum<T: std::iter::Sum>(pids: &[i32], of: fn(i32) -> anyhow::Result<T>) -> anyhow::Result<T> {
    pids.iter().map(|pid| of(*pid)).sum()
}

/// Returns the number of distinct network namespaces of these processes.
pub(super) fn namespaces(pids: &[i32]) -> usize {
    let links = pids.iter().map(|pid| format!("/proc/{pid}/ns/net"));
    let all: BTreeSet<_> = links.filter_map(|path| fs::read_link(path).ok()).collect();
    all.len()
}

impl Resources {
    /// Reads the current resources.
    fn now(many_guests: &ManyGuests, places: &[GuestPlace]) -> anyhow::Result<Self> {
        let machine = many_guests.machine();
        let status = machine.status()?;
        let mut processes = vec![("core".to_owned(), status.pid.cast_signed())];
        for helper in HELPERS {
            processes.push((helper.to_owned(), machine.helper(helper)?));
        }
        processes.push(("driver".to_owned(), machine.driver()?.pid));
        let mut all = Self::default();
        let mut put = |what: String, count: usize| all.exact.insert(what, count as i64);
        for (name, pid) in &processes {
            put(format!("descriptors.{name}"), descriptors(*pid)?);
            put(format!("threads.{name}"), threads(*pid)?);
        }
        let guests = status
            .domains
            .iter()
            .filter(|d| d.program == Program::Guest);
        let guests: Vec<i32> = guests.map(|guest| guest.pid).collect();
        put("descriptors.guests".to_owned(), sum(&guests, descriptors)?);
        put("threads.guests".to_owned(), sum(&guests, threads)?);
        let all_processes = machine.descendants();
        put("processes".to_owned(), all_processes.len());
        put("namespaces".to_owned(), namespaces(&all_processes));
        put("domains".to_owned(), status.domains.len());
        put("connections".to_owned(), status.connections.len());
        let interfaces = many_guests.interfaces()?;
        put("interfaces.neighbours".to_owned(), interfaces);
        let mut interfaces = 0;
        for place in places {
            interfaces += usize::from(place.has_interface()?);
        }
        put("interfaces.guests".to_owned(), interfaces);
        let audit = machine.audit()?;
        put("grants.leaked".to_owned(), audit.leaked as usize);
        let frames = audit.domains.iter().map(|domain| domain.owned as usize);
        put("frames".to_owned(), frames.sum());
        let drivers = all.exact.remove(DRIVER_DESCRIPTORS);
        all.bounded
            .extend(drivers.map(|count| (DRIVER_DESCRIPTORS.to_owned(), count)));
        for (name, pid) in processes {
            let kib = anonymous_kib(pid)?;
            all.bounded.insert(format!("rss_kib.{name}"), kib);
        }
        let kib = sum(&guests, anonymous_kib)?;
        all.bounded.insert("rss_kib.guests".to_owned(), kib);
        Ok(all)
    }

    /// Waits until two consecutive readings are equal, and returns the resources.
    pub(super) fn at_rest(many_guests: &ManyGuests, places: &[GuestPlace]) -> anyhow::Result<Self> {
        let began = Instant::now();
        let mut last = Self::default();
        loop {
            interrupt::sleep(SETTLE_INTERVAL)?;
            let now = Self::now(many_guests, places)?;
            if now.exact == last.exact {
                return Ok(now);
            }
            ensure!(
                began.elapsed() < TIMEOUT,
                "the machine's resources do not settle"
            );
            last = now;
        }
    }

    /// Waits until the resources equal these, or until a timeout. Returns the last reading.
    pub(super) fn wait_for(
        &self,
        many_guests: &ManyGuests,
        places: &[GuestPlace],
    ) -> anyhow::Result<Self> {
        let began = Instant::now();
        loop {
            let now = Self::now(many_guests, places)?;
            if self.grown(&now).is_empty()
                || wait("the resources differ from before", began).is_err()
            {
                interrupt::check()?;
                return Ok(now);
            }
        }
    }

    /// Returns the differences from `now` that are not allowed.
    pub(super) fn grown(&self, now: &Self) -> BTreeMap<String, i64> {
        let exact = more(&self.exact, &now.exact).filter(|(_, more)| *more != 0);
        let bounded = more(&self.bounded, &now.bounded).filter(|(name, more)| {
            let slack = match name.as_str() {
                DRIVER_DESCRIPTORS => SLACK_DOORBELLS,
                _ => SLACK_KIB,
            };
            *more > slack
        });
        exact.chain(bounded).collect()
    }
}

/// Returns the increase of each resource.
fn more<'a>(
    was: &'a BTreeMap<String, i64>,
    is: &'a BTreeMap<String, i64>,
) -> impl Iterator<Item = (String, i64)> + 'a {
    let of = |all: &BTreeMap<String, i64>, name: &str| all.get(name).copied().unwrap_or(0);
    let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let each = names.into_iter();
    each.map(move |name| (name.clone(), of(is, name) - of(was, name)))
}

fn anonymous_kib(pid: i32) -> anyhow::Result<i64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.context("no RssAnon in a process's status")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(frames: i64, core_kib: i64) -> Resources {
        Resources {
            exact: [("frames".to_owned(), frames), ("processes".to_owned(), 9)].into(),
            bounded: [
                ("rss_kib.core".to_owned(), core_kib),
                (DRIVER_DESCRIPTORS.to_owned(), core_kib),
            ]
            .into(),
        }
    }

    #[test]
    fn counts_are_exact_and_memory_has_some_slack() {
        let before = resources(7, 1000);
        assert!(
            before
                .grown(&resources(7, 1000 + SLACK_DOORBELLS))
                .is_empty()
        );
        assert!(before.grown(&resources(7, 10)).is_empty());
        let grown = before.grown(&resources(6, 1001 + SLACK_KIB));
        let expected = [
            ("frames".to_owned(), -1),
            ("rss_kib.core".to_owned(), SLACK_KIB + 1),
            (DRIVER_DESCRIPTORS.to_owned(), SLACK_KIB + 1),
        ];
        assert_eq!(grown, expected.into());
    }

    #[test]
    fn memory_of_a_process_is_read() {
        let own = std::process::id().cast_signed();
        assert!(anonymous_kib(own).unwrap() > 0);
    }
}
