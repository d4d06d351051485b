//! Metrics of ports: queues to guests, flow tables, and firewall rules.

use super::gather::Snapshot;
use super::make::{Families, sample, seconds, vifs_of};
use super::names::SeriesNames;
use super::text::MetricSample;
use abi::machine::Program;
use serde_json::Value;
use std::collections::BTreeMap;

/// The object in a port's counters, the key in the object, and the metric.
const METRICS: [(&str, &str, &str); 7] = [
    ("egress_queue", "frames", "grantway_queue_frames"),
    ("egress_queue", "bytes", "grantway_queue_bytes"),
    ("egress_queue", "oldest_ns", "grantway_queue_oldest_seconds"),
    ("flows", "flows", "grantway_flows"),
    ("flows", "admitted", "grantway_flows_admitted"),
    ("flows", "displaced", "grantway_flows_displaced"),
    ("flows", "refused", "grantway_flows_refused"),
];

/// The key in a rule's counters, and the metric.
const RULE_METRICS: [(&str, &str); 2] = [
    ("frames", "grantway_rule_frames"),
    ("bytes", "grantway_rule_bytes"),
];

/// Adds each port's metrics. Ports with the same shown name share one sample: the sum of their
/// counts, or the longest of their times.
pub(super) fn add(snapshot: &Snapshot, names: &mut SeriesNames, all: &mut Families) {
    let vifs = vifs_of(snapshot);
    for (object, key, metric) in METRICS {
        let (mut samples, is_time) = (Vec::new(), key == "oldest_ns");
        let sample: fn([_; 2], u64) -> MetricSample = if is_time { seconds } else { sample };
        for (domain, stat) in &snapshot.stats {
            let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
            let ports = stat.get("ports").and_then(Value::as_object);
            for (port, of) in ports.into_iter().flatten() {
                let Some(of) = of.get(object) else { continue };
                let count = of.get(key).and_then(Value::as_u64).unwrap_or(0);
                let sum = sums.entry(names.port(domain, &vifs, port)).or_default();
                *sum = match is_time {
                    true => count.max(*sum),
                    false => count.saturating_add(*sum),
                };
            }
            for (port, sum) in sums {
                samples.push(sample([("domain", domain), ("port", port)], sum));
            }
        }
        all.add(metric, samples);
    }
    for (key, metric) in RULE_METRICS {
        all.add(metric, rules(snapshot, names, key));
    }
}

/// Returns the counter `key` of each rule of each port of the driver domain. Other domains have no
/// rules, so their replies cannot add names.
fn rules(snapshot: &Snapshot, names: &mut SeriesNames, key: &str) -> Vec<MetricSample> {
    let vifs = vifs_of(snapshot);
    let mut samples = Vec::new();
    let is_driver = |name: &str| {
        let mut domains = snapshot.status.domains.iter();
        domains.any(|domain| domain.name == name && domain.program == Program::Driver)
    };
    let stats = snapshot.stats.iter();
    for (domain, stat) in stats.filter(|(domain, _)| is_driver(domain)) {
        let mut sums: BTreeMap<[&str; 2], u64> = BTreeMap::new();
        let ports = stat.get("ports").and_then(Value::as_object);
        for (port, of) in ports.into_iter().flatten() {
            let rules = of.get("rules").and_then(Value::as_object);
            for (rule, count) in rules.into_iter().flatten() {
                let count = count.get(key).and_then(Value::as_u64).unwrap_or(0);
                let port = names.port(domain, &vifs, port);
                let rule = names.rule(domain, port, rule);
                let sum = sums.entry([port, rule]).or_default();
                *sum = sum.saturating_add(count);
            }
        }
        for ([port, rule], sum) in sums {
            samples.push(sample(
                [("domain", domain), ("port", port), ("rule", rule)],
                sum,
            ));
        }
    }
    samples
}
