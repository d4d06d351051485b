//! What there is to know of a machine, as families of metrics. `docs/metrics.md` lists them.

use super::gather::Snapshot;
use super::names::Names;
use super::text::{Family, Kind, LE, Number, Part, Sample};
use abi::XenbusState;
use abi::machine::{DomainStatus, Program};
use config::domain::VifConfig;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Families with their samples.
type Families = Vec<(Family, Vec<Sample>)>;

/// Bounds of the classes of a wait, as they are written and in nanoseconds.
const WAITS: [(&str, u64); 10] = [
    ("1e-05", 10_000),
    ("2e-05", 20_000),
    ("5e-05", 50_000),
    ("0.0001", 100_000),
    ("0.0002", 200_000),
    ("0.0005", 500_000),
    ("0.001", 1_000_000),
    ("0.002", 2_000_000),
    ("0.005", 5_000_000),
    ("0.01", 10_000_000),
];
const REMOVED: &str = "grantway_domain_removed_interfaces";
/// How deep in what a domain says its parts are looked for.
const DEPTH_MAX: usize = 6;

/// Everything that there is to say.
pub(crate) fn all(snapshot: &Snapshot, names: &mut Names) -> Families {
    names.keep(|name| snapshot.status.domains.iter().any(|d| d.name == name));
    let mut all = machine(snapshot);
    all.extend(domains(snapshot));
    all.extend(processors(snapshot, names));
    all.extend(traffic(snapshot, names));
    all.extend(lro(snapshot, names));
    all.extend(grants(snapshot));
    all
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family {
        kind: Kind::Counter,
        name,
        unit: None,
        help,
    }
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    let kind = Kind::Gauge;
    Family {
        kind,
        ..counter(name, help)
    }
}

const fn with_unit(unit: &'static str, family: Family) -> Family {
    let unit = Some(unit);
    Family { unit, ..family }
}

/// One of times.
const fn histogram(name: &'static str, help: &'static str) -> Family {
    let kind = Kind::Histogram;
    Family {
        kind,
        ..with_unit("seconds", counter(name, help))
    }
}

fn sample<const N: usize>(labels: [(&'static str, &str); N], value: u64) -> Sample {
    let labels = labels.map(|(name, value)| (name, value.to_owned()));
    Sample(labels.into(), Number::Whole(value), Part::Whole)
}

fn seconds<const N: usize>(labels: [(&'static str, &str); N], ns: u64) -> Sample {
    let labels = labels.map(|(name, value)| (name, value.to_owned()));
    Sample(labels.into(), Number::Real(ns as f64 / 1e9), Part::Whole)
}

fn machine(snapshot: &Snapshot) -> Families {
    let status = &snapshot.status;
    let build = [
        ("machine", status.name.as_str()),
        ("version", env!("CARGO_PKG_VERSION")),
    ];
    let up = with_unit(
        "seconds",
        gauge(
            "grantway_up_seconds",
            "Time since the machine was complete.",
        ),
    );
    let gathering = with_unit(
        "seconds",
        gauge(
            "grantway_scrape_duration_seconds",
            "Time that it took to ask the core and every domain.",
        ),
    );
    let connections = status.connections.iter().map(|connection| {
        let up = [connection.backend_state, connection.frontend_state]
            .iter()
            .all(|state| *state == XenbusState::Connected);
        let labels = [
            ("backend", connection.backend.as_str()),
            ("frontend", &connection.frontend),
            ("interface", &connection.handle.to_string()),
        ];
        sample(labels, up.into())
    });
    vec![
        (
            gauge(
                "grantway_build_info",
                "The version of the manager, and the name of the machine.",
            ),
            vec![sample(build, 1)],
        ),
        (up, vec![seconds([], status.up_ns)]),
        (
            gathering,
            vec![seconds([], snapshot.took.as_nanos() as u64)],
        ),
        (
            gauge(
                "grantway_connection_up",
                "Whether both ends of a guest interface are connected.",
            ),
            connections.collect(),
        ),
    ]
}

fn program_of(domain: &DomainStatus) -> &'static str {
    match domain.program {
        Program::Driver => "driver",
        Program::Guest => "guest",
    }
}

fn domains(snapshot: &Snapshot) -> Families {
    let all = &snapshot.status.domains;
    let each = |value: &dyn Fn(&DomainStatus) -> u64| -> Vec<Sample> {
        let sample_of = |domain| sample([("domain", name_of(domain))], value(domain));
        all.iter().map(sample_of).collect()
    };
    let up = all.iter().map(|domain| {
        let labels = [("domain", name_of(domain)), ("program", program_of(domain))];
        sample(labels, domain.alive.into())
    });
    let restarted = all.iter().filter_map(|domain| {
        let count = domain.restarts.as_ref()?.count;
        Some(sample([("domain", name_of(domain))], count))
    });
    let outages = all.iter().filter_map(|domain| {
        let ns = domain.restarts.as_ref()?.connected_ns?;
        Some(seconds([("domain", name_of(domain))], ns))
    });
    let taken = all.iter().flat_map(outages_of);
    let removed = |domain: &DomainStatus| domain.removed.len() as u64;
    let answered = |domain: &DomainStatus| snapshot.stats.contains_key(&domain.name).into();
    vec![
        (
            gauge("grantway_domain_up", "Whether a domain is alive."),
            up.collect(),
        ),
        (
            gauge(
                "grantway_domain_answered",
                "Whether a domain has said what it counts; if not, what it counts is missing here.",
            ),
            each(&answered),
        ),
        (
            gauge(REMOVED, "Interfaces that were removed."),
            each(&removed),
        ),
        (
            counter(
                "grantway_domain_restarts",
                "Times that a domain was started again.",
            ),
            restarted.collect(),
        ),
        (
            with_unit(
                "seconds",
                gauge(
                    "grantway_domain_last_outage_seconds",
                    "Time from the last end of a domain until the next one was connected.",
                ),
            ),
            outages.collect(),
        ),
        (
            histogram(
                "grantway_domain_outage_seconds",
                "Times from the end of a domain until the next one was connected.",
            ),
            taken.collect(),
        ),
        (
            counter(
                "grantway_hypercalls",
                "Hypercalls of the process that runs now.",
            ),
            each(&|domain| domain.hypercalls),
        ),
        (
            counter(
                "grantway_hypercall_operations",
                "Operations in hypercalls of the process that runs now.",
            ),
            each(&|domain| domain.operations),
        ),
    ]
}

/// What the outages of a domain took.
fn outages_of(domain: &DomainStatus) -> Vec<Sample> {
    let Some(restarts) = &domain.restarts else {
        return Vec::new();
    };
    let last = restarts.outages.len() - 1;
    let mut within = 0;
    let classes = restarts.outages.iter().enumerate();
    let buckets: Vec<(String, u64)> = classes
        .map(|(class, count)| {
            within += count;
            let le = match class == last {
                true => "+Inf".to_owned(),
                false => (f64::from(1u32 << class) / 1e3).to_string(),
            };
            (le, within)
        })
        .collect();
    samples_of(name_of(domain), buckets, restarts.outages_ns)
}

/// The samples of a domain's histogram: buckets by their bounds, each with what is in those before
/// it, and the sum of all values.
fn samples_of(domain: &str, buckets: Vec<(String, u64)>, sum_ns: u64) -> Vec<Sample> {
    let all = buckets.last().map_or(0, |(_, count)| *count);
    let bucket = |(le, count): (String, u64)| {
        sample([("domain", domain), (LE, &le)], count).of(Part::Bucket)
    };
    let mut samples: Vec<Sample> = buckets.into_iter().map(bucket).collect();
    samples.push(seconds([("domain", domain)], sum_ns).of(Part::Sum));
    samples.push(sample([("domain", domain)], all).of(Part::Count));
    samples
}

fn name_of(domain: &DomainStatus) -> &str {
    &domain.name
}

fn processors(snapshot: &Snapshot, names: &mut Names) -> Families {
    let status = &snapshot.status;
    let parts = status.domains.iter().flat_map(|domain| {
        let parts = [
            ("domain", domain.cpu_ns),
            ("agent", domain.agent_cpu_ns),
            ("worker", domain.worker_cpu_ns),
        ];
        parts.map(|(part, ns)| seconds([("domain", name_of(domain)), ("part", part)], ns))
    });
    let mut by_hop = Vec::new();
    for (domain, stat) in &snapshot.stats {
        let ledger = stat.get("ledger");
        let hz = ledger.and_then(|ledger| ledger.get("tsc_hz")?.as_u64());
        let Some(hz) = hz.filter(|hz| *hz > 0) else {
            continue;
        };
        let hops = object(ledger.and_then(|ledger| ledger.get("hops")));
        let cycles = counts(hops, |hop| hop.get("cycles")?.as_u64());
        for (hop, cycles) in names.sums(domain, "hop", cycles) {
            let ns = u128::from(cycles) * 1_000_000_000 / u128::from(hz);
            let ns = u64::try_from(ns).unwrap_or(u64::MAX);
            by_hop.push(seconds([("domain", domain), ("hop", hop)], ns));
        }
    }
    let cpu = |name, help| with_unit("seconds", counter(name, help));
    vec![
        (
            cpu(
                "grantway_cpu_seconds",
                "CPU time of a domain, of its agent, and of the core's thread that serves it.",
            ),
            parts.collect(),
        ),
        (
            cpu(
                "grantway_monitor_cpu_seconds",
                "CPU time of the core, netd and the manager.",
            ),
            vec![seconds([], status.monitor_cpu_ns)],
        ),
        (
            cpu(
                "grantway_hop_cpu_seconds",
                "CPU time of a domain by the hop of a packet where it was spent.",
            ),
            by_hop,
        ),
    ]
}

fn traffic(snapshot: &Snapshot, names: &mut Names) -> Families {
    let (mut frames, mut bytes, mut drops) = (Vec::new(), Vec::new(), Vec::new());
    let connections = &snapshot.status.connections;
    let vifs: BTreeSet<String> = connections
        .iter()
        .map(|c| VifConfig::name_of(&c.frontend, c.handle.into()))
        .map(|name| format!("vif.{name}"))
        .collect();
    for (domain, stat) in &snapshot.stats {
        let mut sums: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
        for (port, of) in object(stat.get("ports")) {
            // Interfaces are known of the core, the few others by what the domain says.
            let port = match vifs.contains(port) {
                true => port,
                false => names.shown(domain, "port", port),
            };
            let keys = ["in_packets", "out_packets", "in_bytes", "out_bytes"];
            let read = |key| of.get("traffic")?.get(key)?.as_u64();
            let sum = sums.entry(port).or_default();
            for (sum, key) in sum.iter_mut().zip(keys) {
                *sum = sum.saturating_add(read(key).unwrap_or(0));
            }
        }
        for (port, [in_frames, out_frames, in_bytes, out_bytes]) in sums {
            let labels = |direction| [("domain", domain.as_str()), ("port", port), direction];
            let (to_us, from_us) = (("direction", "in"), ("direction", "out"));
            frames.push(sample(labels(to_us), in_frames));
            frames.push(sample(labels(from_us), out_frames));
            bytes.push(sample(labels(to_us), in_bytes));
            bytes.push(sample(labels(from_us), out_bytes));
        }
        let dropped = counts(object(stat.get("drops")), Value::as_u64);
        for (reason, count) in names.sums(domain, "reason", dropped) {
            drops.push(sample([("domain", domain), ("reason", reason)], count));
        }
    }
    vec![
        (
            counter(
                "grantway_port_frames",
                "Frames that came in by a port of the bridge, and that went out by it.",
            ),
            frames,
        ),
        (
            with_unit(
                "bytes",
                counter(
                    "grantway_port_bytes",
                    "Bytes of the frames that came in by a port of the bridge, and went out by it.",
                ),
            ),
            bytes,
        ),
        (
            counter("grantway_drops", "Frames that a domain dropped, by reason."),
            drops,
        ),
    ]
}

fn lro(snapshot: &Snapshot, names: &mut Names) -> Families {
    let (mut segments, mut aggregates) = (Vec::new(), Vec::new());
    let (mut flushed, mut waits) = (Vec::new(), Vec::new());
    for (domain, stat) in &snapshot.stats {
        let lro = stat.get("lro");
        let count = |key| lro.and_then(|lro| lro.get(key)?.as_u64());
        for (key, to) in [("segments", &mut segments), ("aggregates", &mut aggregates)] {
            to.extend(count(key).map(|count| sample([("domain", domain)], count)));
        }
        let mut found = Vec::new();
        find_flushed(stat, DEPTH_MAX, &mut found);
        let counted = found
            .into_iter()
            .flat_map(|reasons| counts(reasons, Value::as_u64));
        for (reason, count) in names.sums(domain, "flushed", counted) {
            flushed.push(sample([("domain", domain), ("reason", reason)], count));
        }
        let sum_ns = count("wait_sum_ns").unwrap_or(0);
        let of = object(lro.and_then(|lro| lro.get("waits_ns")));
        waits.extend(waits_of(domain, of, sum_ns));
    }
    vec![
        (
            counter(
                "grantway_lro_segments",
                "TCP packets with payload that came into large receive offload.",
            ),
            segments,
        ),
        (
            counter(
                "grantway_lro_aggregates",
                "What became of them: packets that went on, those that stayed alone included.",
            ),
            aggregates,
        ),
        (
            counter(
                "grantway_lro_flushes",
                "Aggregates that went on, by what ended them.",
            ),
            flushed,
        ),
        (
            histogram(
                "grantway_lro_wait_seconds",
                "Time that the first packet of an aggregate waited for others.",
            ),
            waits,
        ),
    ]
}

/// Every object called `flushed` within a value.
fn find_flushed<'a>(value: &'a Value, depth: usize, found: &mut Vec<&'a Map<String, Value>>) {
    let Some(depth) = depth.checked_sub(1) else {
        return;
    };
    for (key, inner) in value.as_object().into_iter().flatten() {
        match (key.as_str(), inner) {
            ("flushed", Value::Object(reasons)) => found.push(reasons),
            _ => find_flushed(inner, depth, found),
        }
    }
}

/// A domain's waits, if it has any: a class counts where its largest value lies.
fn waits_of(domain: &str, waits: &Map<String, Value>, sum_ns: u64) -> Vec<Sample> {
    if waits.is_empty() {
        return Vec::new();
    }
    let waits: Vec<(u64, u64)> = waits
        .iter()
        .filter_map(|(ns, count)| Some((ns.parse().ok()?, count.as_u64()?)))
        .collect();
    let bounds = WAITS.iter().copied().chain([("+Inf", u64::MAX)]);
    let buckets = bounds.map(|(le, most)| {
        let within = waits.iter().filter(|(ns, _)| *ns <= most);
        let count = within.fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
        (le.to_owned(), count)
    });
    samples_of(domain, buckets.collect(), sum_ns)
}

fn grants(snapshot: &Snapshot) -> Families {
    let Some(audit) = &snapshot.audit else {
        return Vec::new();
    };
    let mut pages = Vec::new();
    let mut in_use = Vec::new();
    for domain in &audit.domains {
        let of = [
            ("owned", domain.owned),
            ("granted", domain.granted),
            ("mapped", domain.mapped),
            ("quarantined", domain.collateral_used),
        ];
        let of = of.map(|(state, count)| {
            sample([("domain", &domain.name), ("state", state)], count.into())
        });
        pages.extend(of);
        in_use.push(sample(
            [("domain", &domain.name)],
            domain.in_use.len() as u64,
        ));
    }
    let one = |value| vec![sample([], value)];
    vec![
        (
            counter(
                "grantway_grants_created",
                "Grants of the new mechanism that were made.",
            ),
            one(audit.created),
        ),
        (
            counter("grantway_grants_revoked", "Those that were revoked."),
            one(audit.revoked),
        ),
        (
            counter(
                "grantway_grants_forced",
                "Those that were revoked by force while they were in use.",
            ),
            one(audit.forced),
        ),
        (
            gauge(
                "grantway_grants_leaked",
                "Grants, mappings and page frames without an owner: 0, or the monitor has a bug.",
            ),
            one(audit.leaked),
        ),
        (
            gauge(
                "grantway_grants_in_use",
                "Grants of a domain's classic table that are in use now.",
            ),
            in_use,
        ),
        (
            gauge(
                "grantway_pages",
                "Page frames: of a domain, granted by it, of others and mapped by it, held back \
                 for it after a forced revocation.",
            ),
            pages,
        ),
    ]
}

/// The object that there is, or an empty one.
fn object(value: Option<&Value>) -> &Map<String, Value> {
    static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    value.and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// The counts in an object, by name.
fn counts(
    all: &Map<String, Value>,
    count: impl Fn(&Value) -> Option<u64>,
) -> impl Iterator<Item = (&str, u64)> {
    all.iter()
        .filter_map(move |(name, value)| Some((name.as_str(), count(value)?)))
}
