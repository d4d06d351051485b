//! Counters of a path, which only grow.

use figures::measure::{HostCpuTimes, SchedWaits};
use serde_json::Value;
use std::collections::BTreeMap;

/// Counters of a path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Sums by name, such as `drops.<reason>` and `<domain>.hop.<hop>` in cycles. `window` lists
    /// all names.
    pub sums: BTreeMap<String, f64>,
    /// Maxima since the path's start, such as `under_way`, the frames in flight from one source.
    pub maxima: BTreeMap<String, f64>,
}

impl Reading {
    /// Returns a reading of these sums.
    #[cfg(test)]
    pub(super) fn of_sums(sums: &[(&str, f64)]) -> Self {
        Self {
            sums: sums.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect(),
            ..Self::default()
        }
    }

    /// Returns the increase since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let sums = self
            .sums
            .iter()
            .map(|(name, now)| {
                let before = earlier.sums.get(name).copied().unwrap_or(0.0);
                (name.clone(), now - before)
            })
            .collect();
        Self {
            sums,
            maxima: self.maxima.clone(),
        }
    }
}

/// Prefix of the names of the driver domain's ports that are wires.
const WIRES: &str = "nic.wire";

/// Adds a domain's counters to a reading. [`super::window::Window::figures`] lists the names.
pub(super) fn add_stat(part: &str, stat: &Value, reading: &mut Reading) {
    let mut add = |name: String, value: f64| *reading.sums.entry(name).or_default() += value;
    let ledger = &stat["ledger"];
    for (hop, entry) in ledger["hops"].as_object().into_iter().flatten() {
        if let Some(cycles) = entry["cycles"].as_f64() {
            add(format!("{part}.hop.{hop}"), cycles);
        }
    }
    let hz = ledger["tsc_hz"].as_f64().unwrap_or(0.0);
    if let Some(ns) = ledger["cpu_ns"].as_f64() {
        add(format!("{part}.cpu"), ns * hz / 1e9);
        add(format!("{part}.cpu_ns"), ns);
    }
    if let Some(cycles) = ledger["corrected_cycles"].as_f64() {
        add(format!("{part}.corrected"), cycles);
    }
    for (reason, count) in stat["drops"].as_object().into_iter().flatten() {
        if let Some(count) = count.as_f64() {
            add(format!("drops.{reason}"), count);
        }
    }
    for name in ["segments", "aggregates"] {
        if let Some(count) = stat["lro"][name].as_f64() {
            add(format!("{part}.lro.{name}"), count);
        }
    }
    for (ns, count) in stat["lro"]["waits_ns"].as_object().into_iter().flatten() {
        if let Some(count) = count.as_f64() {
            add(format!("lro.waits.{ns}"), count);
        }
    }
    if let Some(ns) = stat["lro"]["wait_sum_ns"].as_f64() {
        add("lro.wait_sum_ns".to_owned(), ns);
    }
    if let Some(count) = stat["pool"]["granted_anew"].as_f64() {
        add("granted_anew".to_owned(), count);
    }
    for (port, counters) in stat["ports"].as_object().into_iter().flatten() {
        for name in ["acks", "sacks"] {
            if let Some(count) = counters[name].as_f64() {
                add(name.to_owned(), count);
            }
        }
        if !port.starts_with(WIRES) {
            continue;
        }
        for (name, counter) in [
            ("wire_received", "in_packets"),
            ("wire_sent", "out_packets"),
        ] {
            if let Some(count) = counters["traffic"][counter].as_f64() {
                add(name.to_owned(), count);
            }
        }
    }
    // Counters of a guest's endpoints: the frames that they received, and their maximum number of
    // frames in flight.
    for vif in stat["vifs"].as_object().into_iter().flatten() {
        let endpoint = &vif.1["endpoint"];
        add(
            format!("{part}.delivered"),
            endpoint["tx_packets"].as_f64().unwrap_or(0.0),
        );
        if let Some(count) = endpoint["source_under_way_max"].as_f64() {
            let most = reading.maxima.entry("under_way".to_owned()).or_default();
            *most = most.max(count);
        }
    }
}

/// Adds the waits of a domain for its CPU to a reading.
pub(super) fn add_waits(part: &str, waits: SchedWaits, reading: &mut Reading) {
    for (name, value) in [("waited_ns", waits.ns), ("preempted", waits.preempted)] {
        *reading.sums.entry(format!("{part}.{name}")).or_default() += value as f64;
    }
}

/// Adds the time that the underlying hypervisor took from all CPUs to a reading.
pub(super) fn add_steal(times: HostCpuTimes, reading: &mut Reading) {
    let ns = times.stolen().as_nanos() as f64;
    reading.sums.insert("stolen_ns".to_owned(), ns);
}

/// Adds the counters of a NIC's device in software to a reading. The driver domain counts each
/// aggregate of the device as one packet.
pub(super) fn add_device_stat(part: &str, stat: &Value, reading: &mut Reading) {
    let mut add = |name: String, value: f64| *reading.sums.entry(name).or_default() += value;
    if let Some(count) = stat["device"]["interrupts"].as_f64() {
        add("interrupts".to_owned(), count);
    }
    let lro = |name: &str| stat["lro"][name].as_f64();
    if let (Some(segments), Some(aggregates)) = (lro("segments"), lro("aggregates")) {
        add(format!("{part}.lro.segments"), segments);
        add(format!("{part}.lro.aggregates"), aggregates);
        add("wire_received".to_owned(), segments - aggregates);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domains_counters_are_digested_by_part() {
        let stat = serde_json::json!({
            "ledger": {"hops": {"nic": {"cycles": 30}, "idle": {"cycles": 10}},
                       "cpu_ns": 20, "tsc_hz": 2_000_000_000u64, "corrected_cycles": 4},
            "drops": {"no_buffer": 2, "spoofed": 0},
            "lro": {"waits_ns": {"1000": 3}, "wait_sum_ns": 2500},
            "ports": {"nic.wire": {"traffic": {"in_packets": 9, "out_packets": 2}, "acks": 1},
                      "nic.local": {"traffic": {"in_packets": 2, "out_packets": 9}}},
            "vifs": {"0": {"endpoint": {"tx_packets": 5, "source_under_way_max": 7}}},
        });
        let mut reading = Reading::default();
        add_stat("guest", &stat, &mut reading);
        add_stat("guest", &stat, &mut reading);
        assert_eq!(reading.sums["guest.hop.nic"], 60.0);
        assert_eq!(reading.sums["guest.cpu"], 80.0);
        assert_eq!(reading.sums["guest.corrected"], 8.0);
        assert_eq!(reading.sums["drops.no_buffer"], 4.0);
        assert_eq!(reading.sums["drops.spoofed"], 0.0, "zeros are also printed");
        assert_eq!(reading.sums["lro.waits.1000"], 6.0);
        assert_eq!(reading.sums["lro.wait_sum_ns"], 5000.0);
        let wire = ["wire_received", "wire_sent", "acks"].map(|name| reading.sums[name]);
        assert_eq!(wire, [18.0, 4.0, 2.0]);
        assert_eq!(reading.sums["guest.delivered"], 10.0);
        assert_eq!(reading.maxima["under_way"], 7.0);
    }

    #[test]
    fn packets_merged_by_a_device_count_as_received() {
        let device = serde_json::json!({
            "device": {"interrupts": 6},
            "lro": {"segments": 40, "aggregates": 10},
        });
        let driver = serde_json::json!({
            "ports": {"nic.wire": {"traffic": {"in_packets": 10, "out_packets": 2}}},
        });
        let mut reading = Reading::default();
        add_stat("driver", &driver, &mut reading);
        add_device_stat("nic_device", &device, &mut reading);
        let sums = ["wire_received", "interrupts", "nic_device.lro.segments"];
        assert_eq!(sums.map(|name| reading.sums[name]), [40.0, 6.0, 40.0]);
        let mut reading = Reading::default();
        add_device_stat("nic_device", &Value::Null, &mut reading);
        assert_eq!(reading, Reading::default());
    }

    #[test]
    fn malformed_counters_of_a_domain_are_ignored() {
        let mut reading = Reading::default();
        add_stat(
            "driver",
            &serde_json::json!({"ledger": 3, "drops": ["x"]}),
            &mut reading,
        );
        add_stat("driver", &Value::Null, &mut reading);
        assert!(reading.sums.values().all(|&sum| sum == 0.0));
    }

    #[test]
    fn counters_that_appear_count_from_zero() {
        let sums = |pairs: &[(&str, f64)]| Reading {
            sums: pairs.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect(),
            ..Reading::default()
        };
        let later = sums(&[("drops.a", 5.0), ("drops.b", 2.0)]);
        let grown = later.since(&sums(&[("drops.a", 1.0)]));
        assert_eq!(grown, sums(&[("drops.a", 4.0), ("drops.b", 2.0)]));
    }
}
