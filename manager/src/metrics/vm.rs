//! Metrics of virtual machines.

use super::gather::Snapshot;
use super::make::{Families, sample};
use serde_json::Value;

/// Maximum number of interfaces of a domain. Bounds the samples of a hostile domain, which may
/// report any number.
const INTERFACES_MAX: u32 = 8;
const FAMILIES: [(&str, &str); 4] = [
    ("grantway_vm_connected", "vm_connected"),
    ("grantway_vm_connections", "vm_connections"),
    ("grantway_vm_link_up", "vm_link_up"),
    ("grantway_vm_queue_pairs", "vm_queue_pairs"),
];

/// Adds the state of every virtual machine's interface.
pub(super) fn add(snapshot: &Snapshot, all: &mut Families) {
    for (family, key) in FAMILIES {
        let mut samples = Vec::new();
        for (domain, stat) in &snapshot.stats {
            for number in (0..INTERFACES_MAX).map(|number| number.to_string()) {
                // If the interface has several queues, the first reports for all.
                let endpoint =
                    |queue| stat.pointer(&format!("/vifs/{number}{queue}/endpoint/{key}"));
                let value = endpoint("").or_else(|| endpoint(".0"));
                let labels = [("domain", domain.as_str()), ("interface", &number)];
                samples.extend(
                    value
                        .and_then(Value::as_u64)
                        .map(|value| sample(labels, value)),
                );
            }
        }
        all.add(family, samples);
    }
}
