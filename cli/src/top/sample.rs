//! The counters of all domains at one moment, and the differences between two moments.

use crate::volume::Volume;
use abi::machine::{DomainStatus, Program, Status};
use client::Instance;
use config::domain::VifConfig;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowKind {
    /// A network interface of the driver domain.
    Nic,
    /// A worker of the driver domain.
    Driver,
    /// A guest.
    Guest,
    /// The device domain of a NIC.
    Device,
    /// The core, netd and the manager.
    Monitor,
}

impl RowKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nic => "nic",
            Self::Driver => "driver",
            Self::Guest => "guest",
            Self::Device => "device",
            Self::Monitor => "monitor",
        }
    }
}

/// Counters of a row, since the start of its domain or over an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowCounters {
    /// Frames that the row's ports sent to the bridge.
    pub(crate) sent: Volume,
    /// Frames that the row's ports received from the bridge.
    pub(crate) received: Volume,
    /// Dropped frames from or to the row's ports, by reason.
    pub(crate) drops: BTreeMap<String, u64>,
    pub(crate) cpu_ns: u64,
}

impl RowCounters {
    fn add(&mut self, other: &Self) {
        self.sent = self.sent.plus(other.sent);
        self.received = self.received.plus(other.received);
        for (reason, count) in &other.drops {
            self.add_dropped(reason, *count);
        }
        self.cpu_ns = self.cpu_ns.saturating_add(other.cpu_ns);
    }

    fn add_dropped(&mut self, reason: &str, count: u64) {
        let sum = self.drops.entry(reason.to_owned()).or_default();
        *sum = sum.saturating_add(count);
    }

    fn add_drops(&mut self, drops: Option<&Value>) {
        for (reason, count) in object(drops) {
            if let Some(count) = count.as_u64().filter(|count| *count > 0) {
                self.add_dropped(reason, count);
            }
        }
    }

    fn take_drops(&mut self, others: &BTreeMap<String, u64>) {
        for (reason, count) in others {
            if let Some(own) = self.drops.get_mut(reason) {
                *own = own.saturating_sub(*count);
            }
        }
    }

    /// Returns the number of dropped frames.
    pub(crate) fn dropped(&self) -> u64 {
        self.drops.values().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Returns the most frequent reason for a drop.
    pub(crate) fn reason(&self) -> Option<&str> {
        let most = self.drops.iter().max_by_key(|(_, count)| **count);
        most.filter(|(_, count)| **count > 0)
            .map(|(reason, _)| reason.as_str())
    }

    fn since(&self, before: &Self) -> Self {
        let drops = self.drops.iter().map(|(reason, count)| {
            let before = before.drops.get(reason).copied().unwrap_or(0);
            (reason.clone(), count.saturating_sub(before))
        });
        Self {
            sent: self.sent.since(before.sent),
            received: self.received.since(before.received),
            drops: drops.filter(|(_, count)| *count > 0).collect(),
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
        }
    }
}

/// A domain's name and process id. They identify one run of the domain, because a restarted domain
/// counts from zero.
type DomainRun = (String, i32);

/// The counters of each row, by the run of the domain that reports them.
type CountersByRow = BTreeMap<(RowKind, String), BTreeMap<DomainRun, RowCounters>>;

/// The counters of all rows at one moment.
#[derive(Clone, Debug)]
pub(crate) struct TopSample {
    at: Instant,
    all: CountersByRow,
    /// Running domains that have not answered. Their current counters are unknown.
    silent: BTreeSet<DomainRun>,
}

impl TopSample {
    /// Queries all domains. If a domain does not answer, other domains still report its traffic,
    /// and the monitor its CPU time.
    pub(crate) fn take(instance: &Instance) -> Result<Self, client::Error> {
        let status = instance.status()?;
        let alive = status.domains.iter().filter(|domain| domain.alive);
        let stats: BTreeMap<String, Value> = alive
            .filter_map(|domain| {
                let stat = instance.stat(&domain.name).ok()?;
                Some((domain.name.clone(), stat))
            })
            .collect();
        Ok(Self::of(Instant::now(), &status, &stats))
    }

    fn of(at: Instant, status: &Status, stats: &BTreeMap<String, Value>) -> Self {
        let domains = status.domains.iter();
        let silent = domains.filter(|d| d.alive && !stats.contains_key(&d.name));
        Self {
            at,
            all: all_counters(status, stats),
            silent: silent.map(run_of).collect(),
        }
    }

    /// Returns the difference to an earlier sample.
    pub(crate) fn since(&self, before: &Self) -> Interval {
        let rows = self.all.iter().map(|(key, by)| {
            let before_by = before.all.get(key);
            let mut counted = RowCounters::default();
            for (run_of, now) in by {
                // A domain that did not exist before has counted only in this interval.
                let nothing = RowCounters::default();
                let then = before_by.and_then(|by| by.get(run_of)).unwrap_or(&nothing);
                let mut since = now.since(then);
                if before.silent.contains(run_of) {
                    // Some of the domain's counts are older than the interval, so they are not
                    // used. CPU time is exact, because the monitor counts it.
                    since = RowCounters {
                        cpu_ns: since.cpu_ns,
                        ..nothing
                    };
                }
                counted.add(&since);
            }
            let (kind, name) = key.clone();
            TopRow {
                kind,
                name,
                counted,
            }
        });
        Interval {
            time: self.at.saturating_duration_since(before.at),
            rows: rows.collect(),
        }
    }
}

fn run_of(domain: &DomainStatus) -> DomainRun {
    (domain.name.clone(), domain.pid)
}

/// Returns the counters of every row.
fn all_counters(status: &Status, stats: &BTreeMap<String, Value>) -> CountersByRow {
    let mut all = CountersByRow::new();
    for domain in &status.domains {
        let parts = [domain.cpu_ns, domain.agent_cpu_ns, domain.worker_cpu_ns];
        let mut own = RowCounters {
            cpu_ns: parts.iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns)),
            ..RowCounters::default()
        };
        let stat = stats.get(&domain.name);
        own.add_drops(stat.and_then(|stat| stat.get("drops")));
        // Only the driver domain has ports, so the ports in other domains' reports are ignored.
        let stat = stat.filter(|_| domain.program == Program::Driver);
        for (port, of) in object(stat.and_then(|stat| stat.get("ports"))) {
            let counted = of_port(of);
            // Frames that the driver domain dropped before it knew their port count for the driver
            // domain.
            own.take_drops(&counted.drops);
            if let Some(key) = row_of_port(port, status) {
                let by = all.entry(key).or_default().entry(run_of(domain));
                by.or_default().add(&counted);
            }
        }
        let key = (kind(domain), domain.name.clone());
        let by = all.entry(key).or_default().entry(run_of(domain));
        by.or_default().add(&own);
    }
    let monitor = RowCounters {
        cpu_ns: status.monitor_cpu_ns,
        ..RowCounters::default()
    };
    let run_of = ("monitor".to_owned(), 0);
    let key = (RowKind::Monitor, "monitor".to_owned());
    all.insert(key, BTreeMap::from([(run_of, monitor)]));
    all
}

fn kind(domain: &DomainStatus) -> RowKind {
    match domain.program {
        Program::Driver => RowKind::Driver,
        Program::Guest => RowKind::Guest,
        Program::Device => RowKind::Device,
    }
}

/// Returns the counters of a port.
fn of_port(port: &Value) -> RowCounters {
    let traffic = &port["traffic"];
    let mut counted = RowCounters {
        sent: Volume::of(traffic, "in"),
        received: Volume::of(traffic, "out"),
        ..RowCounters::default()
    };
    let counters = port.get("counters");
    for way in ["from_guest_drops", "to_guest_drops"] {
        counted.add_drops(counters.and_then(|counters| counters.get(way)));
    }
    counted.add_drops(Some(&device_drops(port)));
    counted
}

/// Returns a port's counters of frames that its device or queue dropped.
fn device_drops(port: &Value) -> Value {
    let device = |key| port.get("device").and_then(|device| device.get(key));
    let queue = |key| port.get("egress_queue").and_then(|queue| queue.get(key));
    let drops = [
        ("device_full", device("tx_full")),
        ("device_fault", device("tx_fault")),
        ("device_refused", device("tx_refused")),
        ("not_connected", port.get("not_connected")),
        ("queue_full", queue("full")),
        ("queue_codel", queue("codel")),
        ("queue_late", queue("late")),
    ];
    let there = drops
        .into_iter()
        .filter_map(|(reason, count)| Some((reason.to_owned(), count?.clone())));
    Value::Object(there.collect())
}

/// Returns the row to which a port belongs.
fn row_of_port(port: &str, status: &Status) -> Option<(RowKind, String)> {
    if let Some(nic) = port.strip_prefix("nic.") {
        return Some((RowKind::Nic, nic.to_owned()));
    }
    let interface = port.strip_prefix("vif.")?;
    let guest = VifConfig::guest_of(interface)?;
    let mut domains = status.domains.iter();
    let known = domains.any(|domain| domain.program == Program::Guest && domain.name == guest);
    known.then(|| (RowKind::Guest, guest.to_owned()))
}

fn object(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flatten()
}

/// A row over an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopRow {
    pub(crate) kind: RowKind,
    pub(crate) name: String,
    pub(crate) counted: RowCounters,
}

/// An interval and the differences of all counters over it.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(crate) time: Duration,
    pub(crate) rows: Vec<TopRow>,
}

impl Interval {
    /// Returns a count as a rate.
    pub(crate) fn rate(&self, count: u64) -> f64 {
        count as f64 / self.time.as_secs_f64().max(1e-9)
    }

    /// Returns CPU time as a fraction of one CPU.
    pub(crate) fn share(&self, cpu_ns: u64) -> f64 {
        self.rate(cpu_ns) / 1e9
    }

    /// Returns the interval as JSON.
    pub(crate) fn json(&self) -> Value {
        let volume = |volume: Volume| {
            json!({
                "frames_per_s": self.rate(volume.frames),
                "bytes_per_s": self.rate(volume.bytes),
            })
        };
        let rows = self.rows.iter().map(|row| {
            let drops = row.counted.drops.iter();
            let drops: Map<String, Value> = drops
                .map(|(reason, count)| (reason.clone(), self.rate(*count).into()))
                .collect();
            json!({
                "who": row.kind.name(),
                "name": row.name,
                "sends": volume(row.counted.sent),
                "receives": volume(row.counted.received),
                "drops_per_s": drops,
                "cpus": self.share(row.counted.cpu_ns),
            })
        });
        json!({ "seconds": self.time.as_secs_f64(), "rows": rows.collect::<Vec<_>>() })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a machine whose second worker is this process.
    fn status(worker: i32) -> Status {
        let domain = |name: &str, program: &str, cpu_ns: u64| {
            let pid = if name == "driver-1" { worker } else { 1 };
            json!({
                "name": name, "id": 1, "program": program, "state": "running", "alive": true,
                "pid": pid, "agent_pid": 2, "cpu_ns": cpu_ns, "agent_cpu_ns": 10,
                "worker_cpu_ns": 5, "hypercalls": 0, "operations": 0, "system_calls": 20,
            })
        };
        let status = json!({
            "name": "x", "pid": 1, "up_ns": 1, "up_took_ns": 1, "monitor_cpu_ns": 1_000,
            "missing": [], "connections": [],
            "domains": [
                domain("driver", "driver", 100),
                domain("driver-1", "driver", 200),
                domain("web-2", "guest", 300),
            ],
        });
        serde_json::from_value(status).unwrap()
    }

    fn driver(n: u64) -> Value {
        json!({
            "drops": {"no_request": 3 * n, "no_port": 5 * n, "device_full": n, "runt": 0,
                      "queue_codel": n},
            "ports": {
                "nic.wire": {
                    "traffic": {"in_packets": 10 * n, "in_bytes": 1000 * n, "out_packets": n,
                                "out_bytes": 60 * n},
                    "device": {"tx_full": n, "tx_fault": 0, "tx_packets": 9},
                },
                "vif.web-2-0": {
                    "traffic": {"in_packets": n, "in_bytes": 60 * n, "out_packets": 7 * n,
                                "out_bytes": 700 * n},
                    "counters": {"to_guest_drops": {"no_request": 3 * n},
                                 "from_guest_drops": {"fault": 0}},
                    "not_connected": 0,
                    "egress_queue": {"full": 0, "codel": n, "late": 0, "frames": 4},
                },
                "vif.nobody-0": {"traffic": {"in_packets": 9}},
                "nonsense": 7,
            },
        })
    }

    fn sample(n: u64) -> TopSample {
        let stats = [("driver".into(), driver(n)), ("driver-1".into(), driver(n))];
        TopSample::of(Instant::now(), &status(1), &stats.into())
    }

    pub(crate) fn span(time: Duration) -> Interval {
        let (before, mut after) = (sample(1), sample(3));
        after.at = before.at + time;
        after.since(&before)
    }

    fn find<'a>(span: &'a Interval, name: &str) -> &'a TopRow {
        span.rows.iter().find(|row| row.name == name).unwrap()
    }

    #[test]
    fn traffic_and_drops_count_for_the_ports_owner() {
        let span = span(Duration::from_secs(2));
        let names: Vec<_> = span.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["wire", "driver", "driver-1", "web-2", "monitor"]);
        // Each worker has counted a part of this traffic.
        let wire = &find(&span, "wire").counted;
        assert_eq!((wire.sent.frames, wire.received.bytes), (40, 240));
        assert_eq!(wire.drops, [("device_full".to_owned(), 4)].into());
        let web = &find(&span, "web-2").counted;
        assert_eq!((web.sent.frames, web.received.frames), (4, 28));
        assert_eq!((web.reason(), web.dropped()), (Some("no_request"), 16));
        let driver = &find(&span, "driver").counted;
        assert_eq!(driver.drops, [("no_port".to_owned(), 10)].into());
        assert_eq!(span.rate(28), 14.0);
        assert_eq!(span.share(1_000_000_000), 0.5);
    }

    #[test]
    fn a_new_or_restarted_domain_counts_from_zero() {
        let (mut before, after) = (sample(3), sample(1));
        let span = after.since(&before);
        assert_eq!(find(&span, "web-2").counted.received.frames, 0);
        before.all.clear();
        let span = after.since(&before);
        assert_eq!(find(&span, "web-2").counted.received.frames, 14);
        assert!(span.rate(1).is_finite());
    }

    #[test]
    fn a_restarted_worker_does_not_hide_others() {
        let stats = [("driver".into(), driver(5)), ("driver-1".into(), driver(1))];
        let after = TopSample::of(Instant::now(), &status(9), &stats.into());
        let web = after.since(&sample(3));
        let web = &find(&web, "web-2").counted;
        assert_eq!(web.received.frames, 2 * 7 + 7);
        assert_eq!(web.dropped(), 2 * 4 + 4);
    }

    #[test]
    fn old_counts_of_a_silent_worker_are_not_new() {
        let stats = [("driver".into(), driver(3))];
        let silent = TopSample::of(Instant::now(), &status(1), &stats.into());
        for (before, after) in [(&silent, &sample(4)), (&sample(3), &silent)] {
            let span = after.since(before);
            let frames = find(&span, "web-2").counted.received.frames;
            assert!(frames <= 7, "{frames}");
        }
    }

    #[test]
    fn counts_saturate_and_only_drivers_have_ports() {
        let most = u64::MAX;
        let port = json!({
            "traffic": {"in_packets": most, "in_bytes": most},
            "counters": {"to_guest_drops": {"no_request": most},
                         "from_guest_drops": {"no_request": most}},
        });
        let ports = json!({"vif.web-2-0": port, "vif.web-2-1": port, "nic.wire": port});
        let stat = json!({"drops": {"no_request": most}, "ports": ports});
        let names = ["driver", "driver-1", "web-2"];
        let all = names.map(|name| (name.to_owned(), stat.clone()));
        let after = TopSample::of(Instant::now(), &status(1), &all.into());
        let span = after.since(&sample(1));
        let web = &find(&span, "web-2").counted;
        assert_eq!((web.sent.frames, web.dropped()), (most, most));
        assert_eq!(find(&span, "driver").counted.drops, BTreeMap::new());

        let mut guest = driver(7);
        guest["drops"] = json!({"runt": 3});
        let after = TopSample::of(
            Instant::now(),
            &status(1),
            &[("web-2".into(), guest)].into(),
        );
        let names: Vec<_> = after.all.keys().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["driver", "driver-1", "web-2", "monitor"]);
    }

    #[test]
    fn json_has_the_same_figures() {
        let json = span(Duration::from_secs(2)).json();
        assert_eq!(json["seconds"], 2.0);
        let wire = &json["rows"][0];
        assert_eq!(
            (&wire["who"], &wire["name"]),
            (&"nic".into(), &"wire".into())
        );
        assert_eq!(wire["sends"]["bytes_per_s"], 2000.0);
        assert_eq!(wire["drops_per_s"]["device_full"], 2.0);
    }
}
