//! Instances of the machine, their domains, and readings of the domains' counters.

use super::cpus::raw_ns;
use super::markers::{Change, Counters, Restarted};
use crate::model::BridgeTraffic;
use abi::machine::{DomainStatus, Program, Status};
use client::Instance;
use figures::measure::{self, SchedWaits, waits};
use serde_json::Value;
use std::collections::BTreeMap;

/// Maximum changes of a domain's counters; later ones are not recorded. They suffice for an hour.
const CHANGES_MAX: usize = 20_000;
/// Minimum time between two audits of grants, nanoseconds. Each lists every grant of the machine.
const AUDITS_NS: u64 = 1_000_000_000;
/// Minimum pause after an audit, in durations of the audit.
const AUDIT_PAUSE: u64 = 10;

/// An instance of the machine.
pub(super) struct ObservedInstance {
    pub(super) instance: Instance,
    pub(super) monitor: u32,
    pub(super) domains: BTreeMap<String, ObservedDomain>,
    /// The last audit of grants, and its time.
    audited: Option<(u64, Counters)>,
    /// End of the pause after the last audit.
    audit_from_ns: u64,
    /// Changes of the grants.
    pub(super) granted: Vec<Change>,
    /// Whether a query has timed out. The instance is then not queried again, and its domains keep
    /// their last values.
    pub(super) silent: bool,
}

/// A domain of an instance, and all of its processes so far.
#[derive(Debug)]
pub(super) struct ObservedDomain {
    pub(super) program: Program,
    pub(super) runs: Vec<DomainRun>,
}

/// One run of a domain, from start to exit.
#[derive(Debug)]
pub(super) struct DomainRun {
    pub(super) pid: u32,
    pub(super) agent: u32,
    /// The end of an earlier process that this one replaces.
    pub(super) replaces: Option<Restarted>,
    pub(super) first: Option<Reading>,
    pub(super) last: Option<Reading>,
    /// Changes of counters between readings.
    pub(super) changes: Vec<Change>,
}

/// A domain's counters and the scheduler's account at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    pub(super) hops: BTreeMap<String, u64>,
    pub(super) stamps: u64,
    pub(super) traffic: BridgeTraffic,
    pub(super) cpu_ns: u64,
    pub(super) corrected: u64,
    pub(super) waits: SchedWaits,
    /// Time of the reading (`CLOCK_MONOTONIC_RAW`, nanoseconds).
    pub(super) at_ns: u64,
    pub(super) counters: Counters,
}

impl ObservedInstance {
    pub(super) fn new(instance: Instance, monitor: u32) -> Self {
        Self {
            instance,
            monitor,
            domains: BTreeMap::new(),
            audited: None,
            audit_from_ns: 0,
            granted: Vec::new(),
            silent: false,
        }
    }

    /// Records the domains of a status, and their restarts.
    pub(super) fn take(&mut self, status: &Status) {
        for domain in &status.domains {
            let new = || ObservedDomain {
                program: domain.program,
                runs: Vec::new(),
            };
            let known = self.domains.entry(domain.name.clone());
            known.or_insert_with(new).take(domain, raw_ns());
        }
    }

    /// Reads the counters of every domain, and those of the grants less often. If `is_last` is
    /// true, reads those of the grants even if their last reading is recent.
    pub(super) fn read(&mut self, is_last: bool) {
        self.read_domains();
        let from_ns = raw_ns();
        let is_recent = |(at_ns, _): &(u64, Counters)| from_ns.saturating_sub(*at_ns) < AUDITS_NS;
        let is_recent = !is_last && self.audited.as_ref().is_some_and(is_recent);
        if !self.silent && !is_recent && from_ns >= self.audit_from_ns {
            self.audit(from_ns);
        }
    }

    /// Reads the counters of the grants. If an answer is late, the changes appear in the next one.
    fn audit(&mut self, from_ns: u64) {
        let audit = self.instance.grants();
        let now_ns = raw_ns();
        let pause_ns = now_ns.saturating_sub(from_ns).saturating_mul(AUDIT_PAUSE);
        self.audit_from_ns = now_ns.saturating_add(pause_ns);
        let Ok(audit) = audit else {
            return;
        };
        let now = Counters::of_grants(&audit);
        if let Some((from_ns, before)) = self.audited.replace((now_ns, now.clone())) {
            add(&mut self.granted, now.since(&before, [from_ns, now_ns]));
        }
    }

    fn read_domains(&mut self) {
        for (name, running) in &mut self.domains {
            let Some(run) = running.runs.last_mut() else {
                continue;
            };
            let stat = match self.instance.stat(name) {
                Ok(stat) => stat,
                Err(client::Error::TimedOut { .. }) => {
                    self.silent = true;
                    return;
                }
                Err(_) => continue,
            };
            let Some(cpu_ns) = cpu_ns(run.pid) else {
                continue;
            };
            let mut reading = reading(&stat, cpu_ns);
            reading.waits = waits(run.pid);
            reading.at_ns = raw_ns();
            let before = match (&run.last, &run.replaces) {
                (Some(last), _) => Some((last.at_ns, last.counters.clone())),
                // The counters of a process that has replaced another one began at zero.
                (None, Some(replaces)) => Some((replaces.seen_ns, Counters::default())),
                (None, None) => None,
            };
            if let Some((from_ns, before)) = before {
                let change = reading.counters.since(&before, [from_ns, reading.at_ns]);
                add(&mut run.changes, change);
            }
            if run.first.is_none() {
                run.first = Some(reading.clone());
            }
            run.last = Some(reading);
        }
    }
}

impl ObservedDomain {
    /// Records a restart, and the duration of its outage.
    fn take(&mut self, domain: &DomainStatus, now_ns: u64) {
        let pid = domain.pid.unsigned_abs();
        let last = self.runs.last();
        // Id 0 is that of the idle task, not of a domain.
        let has_process = domain.alive && pid != 0;
        if has_process && last.is_none_or(|run| run.pid != pid) {
            let replaces = last.map(|last| Restarted::new(last.pid, now_ns));
            self.runs.push(DomainRun {
                pid,
                agent: domain.agent_pid.unsigned_abs(),
                replaces,
                first: None,
                last: None,
                changes: Vec::new(),
            });
        }
        // While the domain is dead, its status belongs to the next outage, not to this one.
        let run = self.runs.last_mut().filter(|_| domain.alive);
        let restarts = domain.restarts.as_ref();
        if let Some(replaces) = run.and_then(|run| run.replaces.as_mut())
            && let Some(outage_ns) = restarts.and_then(|restarts| restarts.connected_ns)
        {
            replaces.outage_ns = Some(outage_ns);
        }
    }
}

/// Adds a change, if there is room.
fn add(changes: &mut Vec<Change>, change: Option<Change>) {
    let has_room = changes.len() < CHANGES_MAX;
    changes.extend(change.filter(|_| has_room));
}

/// Returns the CPU time of a process, nanoseconds.
pub(super) fn cpu_ns(pid: u32) -> Option<u64> {
    measure::cpu_ns(pid.cast_signed())
}

/// Parses a domain's answer. The domain can send anything, so malformed values count as 0.
///
/// Every frame enters the bridge through exactly one port. So the sum over the ports' inputs counts
/// each frame once: from a NIC, to a NIC, and between guests.
fn reading(stat: &Value, cpu_ns: u64) -> Reading {
    let ledger = &stat["ledger"];
    let hops = ledger["hops"].as_object();
    let mut traffic = BridgeTraffic::default();
    for (_, counters) in stat["ports"].as_object().into_iter().flatten() {
        let of = |name: &str| counters["traffic"][name].as_u64().unwrap_or(0);
        traffic.frames = traffic.frames.saturating_add(of("in_packets"));
        traffic.bytes = traffic.bytes.saturating_add(of("in_bytes"));
    }
    Reading {
        hops: hops
            .into_iter()
            .flatten()
            .filter_map(|(hop, entry)| Some((hop.clone(), entry["cycles"].as_u64()?)))
            .collect(),
        stamps: ledger["stamps"].as_u64().unwrap_or(0),
        traffic,
        cpu_ns,
        corrected: ledger["corrected_cycles"].as_u64().unwrap_or(0),
        waits: SchedWaits::default(),
        at_ns: 0,
        counters: Counters::of_domain(stat),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_counters_count_as_zero() {
        let stat = serde_json::json!({
            "ledger": {"hops": {"nic": {"cycles": 7}, "copy": 3}, "stamps": 4,
                       "corrected_cycles": 6},
            "ports": {
                "nic.wire": {"traffic": {"in_packets": 2, "in_bytes": 3028,
                                          "out_packets": 1, "out_bytes": 66}},
                "vif.a-0": {"traffic": {"in_packets": 1, "in_bytes": 66}},
                "vif.b-0": "nonsense",
            },
        });
        let read = reading(&stat, 5);
        assert_eq!(read.hops, [("nic".to_owned(), 7)].into());
        assert_eq!((read.stamps, read.cpu_ns, read.corrected), (4, 5, 6));
        assert_eq!(
            read.traffic,
            BridgeTraffic {
                frames: 3,
                bytes: 3094
            }
        );
        let nothing = reading(&serde_json::json!({"ledger": [], "ports": 3}), 5);
        assert_eq!(nothing.traffic, BridgeTraffic::default());
        assert!(nothing.hops.is_empty());
    }

    #[test]
    fn each_restart_keeps_its_duration() {
        let mut domain = ObservedDomain {
            program: Program::Guest,
            runs: Vec::new(),
        };
        let mut take = |alive, pid: i32, connected_ns: Option<u64>| {
            let status = serde_json::json!({
                "name": "web", "id": 1, "program": "guest", "state": "running", "alive": alive,
                "pid": pid, "agent_pid": 1, "cpu_ns": 0, "agent_cpu_ns": 0, "worker_cpu_ns": 0,
                "hypercalls": 0, "operations": 0, "system_calls": 0,
                "restarts": {"count": 0, "in_a_row": 0, "ready_ns": null,
                             "connected_ns": connected_ns},
            });
            domain.take(&serde_json::from_value(status).unwrap(), 7);
        };
        take(true, 0, None);
        take(true, 10, None);
        for (pid, outage_ns) in [(11, 5), (12, 9)] {
            take(false, pid - 1, None);
            take(true, pid, None);
            take(true, pid, Some(outage_ns));
        }
        take(false, 12, None);
        let outage = |run: &DomainRun| (run.pid, run.replaces.and_then(|r| r.outage_ns));
        let outages: Vec<(u32, Option<u64>)> = domain.runs.iter().map(outage).collect();
        assert_eq!(outages, [(10, None), (11, Some(5)), (12, Some(9))]);
    }

    /// Frames between guests count once each, whatever else a NIC carries.
    #[test]
    fn frames_between_guests_are_counted_once() {
        let traffic = |pings: u64, frames: u64| {
            let port = |input: u64, output: u64| {
                serde_json::json!({"traffic": {"in_packets": input, "in_bytes": input * 1514,
                                               "out_packets": output, "out_bytes": output * 1514}})
            };
            let stat = serde_json::json!({"ports": {
                "nic.wire": port(pings, pings),
                "vif.a-0": port(frames + pings, 2 + pings),
                "vif.b-0": port(2, frames),
            }});
            reading(&stat, 5).traffic
        };
        let before = traffic(0, 100);
        let after = traffic(4, 900);
        assert_eq!(after.frames - before.frames, 800 + 2 * 4);
        assert_eq!(after.bytes - before.bytes, (800 + 2 * 4) * 1514);
    }
}
