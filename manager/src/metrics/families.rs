//! The metrics of a machine. `docs/metrics.md` lists them.

use super::gather::Snapshot;
use super::make::{Families, sample, seconds, vifs_of};
use super::names::SeriesNames;
use super::ports;
use super::text::{LE, MetricSample, SamplePart};
use super::vm;
use abi::XenbusState;
use abi::machine::{DomainStatus, Program};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Upper bounds of the buckets of LRO waits, as text and in nanoseconds.
const WAIT_BOUNDS: [(&str, u64); 10] = [
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
/// Maximum depth of the search in a domain's statistics.
const DEPTH_MAX: usize = 6;

/// Returns all families of a snapshot.
pub(crate) fn metric_families(snapshot: &Snapshot, names: &mut SeriesNames) -> Families {
    let domains_now = &snapshot.status.domains;
    names.retain(
        |name| domains_now.iter().any(|domain| domain.name == name),
        &vifs_of(snapshot),
    );
    let mut all = Families::default();
    machine(snapshot, &mut all);
    domains(snapshot, &mut all);
    processors(snapshot, names, &mut all);
    traffic(snapshot, names, &mut all);
    ports::add(snapshot, names, &mut all);
    vm::add(snapshot, &mut all);
    lro(snapshot, names, &mut all);
    grants(snapshot, &mut all);
    all
}

fn machine(snapshot: &Snapshot, all: &mut Families) {
    let status = &snapshot.status;
    let build = [
        ("machine", status.name.as_str()),
        ("version", env!("CARGO_PKG_VERSION")),
    ];
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
    all.add("grantway_build_info", vec![sample(build, 1)]);
    all.add("grantway_up_seconds", vec![seconds([], status.up_ns)]);
    all.add(
        "grantway_scrape_duration_seconds",
        vec![seconds([], snapshot.took.as_nanos() as u64)],
    );
    all.add("grantway_connection_up", connections.collect());
}

fn program_of(domain: &DomainStatus) -> &'static str {
    match domain.program {
        Program::Driver => "driver",
        Program::Guest => "guest",
        Program::Device => "device",
    }
}

fn domains(snapshot: &Snapshot, all: &mut Families) {
    let status = &snapshot.status.domains;
    let each = |value: &dyn Fn(&DomainStatus) -> u64| -> Vec<MetricSample> {
        let sample_of = |domain| sample([("domain", name_of(domain))], value(domain));
        status.iter().map(sample_of).collect()
    };
    let up = status.iter().map(|domain| {
        let labels = [("domain", name_of(domain)), ("program", program_of(domain))];
        sample(labels, domain.alive.into())
    });
    let restarted = status.iter().filter_map(|domain| {
        let count = domain.restarts.as_ref()?.count;
        Some(sample([("domain", name_of(domain))], count))
    });
    let outages = status.iter().filter_map(|domain| {
        let ns = domain.restarts.as_ref()?.connected_ns?;
        Some(seconds([("domain", name_of(domain))], ns))
    });
    let taken = status.iter().flat_map(outages_of);
    let removed = |domain: &DomainStatus| domain.removed.len() as u64;
    let answered = |domain: &DomainStatus| snapshot.stats.contains_key(&domain.name).into();
    all.add("grantway_domain_up", up.collect());
    all.add("grantway_domain_answered", each(&answered));
    all.add("grantway_domain_removed_interfaces", each(&removed));
    all.add("grantway_domain_restarts", restarted.collect());
    all.add("grantway_domain_last_outage_seconds", outages.collect());
    all.add("grantway_domain_outage_seconds", taken.collect());
    all.add("grantway_hypercalls", each(&|domain| domain.hypercalls));
    all.add(
        "grantway_hypercall_operations",
        each(&|domain| domain.operations),
    );
}

/// Returns the samples of a domain's outage histogram.
fn outages_of(domain: &DomainStatus) -> Vec<MetricSample> {
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

/// Returns the samples of a domain's histogram: cumulative buckets, and the sum of all values.
fn samples_of(domain: &str, buckets: Vec<(String, u64)>, sum_ns: u64) -> Vec<MetricSample> {
    let all = buckets.last().map_or(0, |(_, count)| *count);
    let bucket = |(le, count): (String, u64)| {
        sample([("domain", domain), (LE, &le)], count).of(SamplePart::Bucket)
    };
    let mut samples: Vec<MetricSample> = buckets.into_iter().map(bucket).collect();
    samples.push(seconds([("domain", domain)], sum_ns).of(SamplePart::Sum));
    samples.push(sample([("domain", domain)], all).of(SamplePart::Count));
    samples
}

fn name_of(domain: &DomainStatus) -> &str {
    &domain.name
}

fn processors(snapshot: &Snapshot, names: &mut SeriesNames, all: &mut Families) {
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
        for (hop, cycles) in names.sum_by_name(domain, "hop", cycles) {
            let ns = u128::from(cycles) * 1_000_000_000 / u128::from(hz);
            let ns = u64::try_from(ns).unwrap_or(u64::MAX);
            by_hop.push(seconds([("domain", domain), ("hop", hop)], ns));
        }
    }
    all.add("grantway_cpu_seconds", parts.collect());
    let monitor = vec![seconds([], status.monitor_cpu_ns)];
    all.add("grantway_monitor_cpu_seconds", monitor);
    all.add("grantway_hop_cpu_seconds", by_hop);
}

fn traffic(snapshot: &Snapshot, names: &mut SeriesNames, all: &mut Families) {
    let (mut frames, mut bytes) = (Vec::new(), Vec::new());
    let (mut drops, mut too_big) = (Vec::new(), Vec::new());
    let vifs = vifs_of(snapshot);
    for (domain, stat) in &snapshot.stats {
        let errors = stat.get("too_big");
        let result = |key| Some((key, errors?.get(key)?.as_u64()?));
        for (result, count) in ["sent", "limited"].into_iter().filter_map(result) {
            too_big.push(sample([("domain", domain), ("result", result)], count));
        }
        let mut sums: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
        for (port, of) in object(stat.get("ports")) {
            let keys = ["in_packets", "out_packets", "in_bytes", "out_bytes"];
            let read = |key| of.get("traffic")?.get(key)?.as_u64();
            let sum = sums.entry(names.port(domain, &vifs, port)).or_default();
            for (sum, key) in sum.iter_mut().zip(keys) {
                *sum = sum.saturating_add(read(key).unwrap_or(0));
            }
        }
        for (port, [in_frames, out_frames, in_bytes, out_bytes]) in sums {
            let labels = |direction| [("domain", domain.as_str()), ("port", port), direction];
            let (inbound, outbound) = (("direction", "in"), ("direction", "out"));
            frames.push(sample(labels(inbound), in_frames));
            frames.push(sample(labels(outbound), out_frames));
            bytes.push(sample(labels(inbound), in_bytes));
            bytes.push(sample(labels(outbound), out_bytes));
        }
        let dropped = counts(object(stat.get("drops")), Value::as_u64);
        for (reason, count) in names.sum_by_name(domain, "reason", dropped) {
            drops.push(sample([("domain", domain), ("reason", reason)], count));
        }
    }
    all.add("grantway_port_frames", frames);
    all.add("grantway_port_bytes", bytes);
    all.add("grantway_drops", drops);
    all.add("grantway_icmp_too_big", too_big);
}

fn lro(snapshot: &Snapshot, names: &mut SeriesNames, all: &mut Families) {
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
        for (reason, count) in names.sum_by_name(domain, "flushed", counted) {
            flushed.push(sample([("domain", domain), ("reason", reason)], count));
        }
        let sum_ns = count("wait_sum_ns").unwrap_or(0);
        let of = object(lro.and_then(|lro| lro.get("waits_ns")));
        waits.extend(waits_of(domain, of, sum_ns));
    }
    all.add("grantway_lro_segments", segments);
    all.add("grantway_lro_aggregates", aggregates);
    all.add("grantway_lro_flushes", flushed);
    all.add("grantway_lro_wait_seconds", waits);
}

/// Appends every object with the key `flushed` within a value to `found`.
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

/// Returns the samples of a domain's histogram of waits. A reported class counts in the bucket of
/// its largest value.
fn waits_of(domain: &str, waits: &Map<String, Value>, sum_ns: u64) -> Vec<MetricSample> {
    if waits.is_empty() {
        return Vec::new();
    }
    let waits: Vec<(u64, u64)> = waits
        .iter()
        .filter_map(|(ns, count)| Some((ns.parse().ok()?, count.as_u64()?)))
        .collect();
    let bounds = WAIT_BOUNDS.iter().copied().chain([("+Inf", u64::MAX)]);
    let buckets = bounds.map(|(le, most)| {
        let within = waits.iter().filter(|(ns, _)| *ns <= most);
        let count = within.fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
        (le.to_owned(), count)
    });
    samples_of(domain, buckets.collect(), sum_ns)
}

fn grants(snapshot: &Snapshot, all: &mut Families) {
    let Some(audit) = &snapshot.audit else {
        return;
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
    all.add("grantway_grants_created", one(audit.created));
    all.add("grantway_grants_revoked", one(audit.revoked));
    all.add("grantway_grants_forced", one(audit.forced));
    all.add("grantway_grants_leaked", one(audit.leaked));
    all.add("grantway_grants_in_use", in_use);
    all.add("grantway_pages", pages);
}

/// Returns the object, or an empty one if the value is not an object.
fn object(value: Option<&Value>) -> &Map<String, Value> {
    static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    value.and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// Returns the counts in an object, by name.
fn counts(
    all: &Map<String, Value>,
    count: impl Fn(&Value) -> Option<u64>,
) -> impl Iterator<Item = (&str, u64)> {
    all.iter()
        .filter_map(move |(name, value)| Some((name.as_str(), count(value)?)))
}
