//! Hardware events of a window by part, as `perf stat` counts them: instructions, and misses of the
//! last-level cache and of both TLBs. They require a PMU.

use super::running::is_rival;
use figures::measure::CpuPart;
use std::collections::BTreeMap;
use xenoprof::count::{self, Counting, EventCounts};
use xenoprof::event::Event;

/// Counters of a window.
#[derive(Debug)]
pub struct PerfEvents(Option<Counting>);

impl PerfEvents {
    /// Starts to count events of these processes. Counts nothing if the machine has no PMU, or if
    /// this user may not count other processes.
    #[must_use]
    pub fn start(of: &[(CpuPart, Vec<i32>)]) -> Self {
        Self(Counting::start(of, count::possible()).ok())
    }

    /// Stops and returns the counts.
    #[must_use]
    pub fn end(self) -> EventCounts {
        let counted = self.0.and_then(|mut counting| counting.read().ok());
        counted.unwrap_or_default()
    }
}

/// Metric of [`EventCounts::least_share`]. It exists if any event was counted.
pub const EVENTS_COUNTED: &str = "events_counted";

/// Returns whether a metric is a count of hardware events, so that it requires a PMU.
#[must_use]
pub fn requires_counters(metric: &str) -> bool {
    let counted = metric.split("_per_").next().unwrap_or_default();
    let mut events = count::PER_PACKET_EVENTS.iter();
    events.any(|event| metric_of(*event) == counted)
}

/// Returns an event's name in metrics.
fn metric_of(event: Event) -> String {
    event.name().replace('-', "_")
}

/// Adds the figures `<event>_per_<unit>.<part>` and `.total`, and [`EVENTS_COUNTED`].
pub fn figures(counts: &EventCounts, unit: &str, units: f64, out: &mut BTreeMap<String, f64>) {
    if units <= 0.0 {
        return;
    }
    let mut totals = BTreeMap::new();
    for ((part, event), count) in &counts.sums {
        let name = format!("{}_per_{unit}", metric_of(*event));
        out.insert(format!("{name}.{part}"), count / units);
        // Events of rivals belong to other packets, and devices in software represent hardware, so
        // both are in no total.
        if !is_rival(part) {
            *totals.entry(name).or_insert(0.0) += count / units;
        }
    }
    let totals = totals.into_iter();
    out.extend(totals.map(|(name, total)| (format!("{name}.total"), total)));
    if let Some(share) = counts.least_share {
        out.insert(EVENTS_COUNTED.to_owned(), share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::running::{NIC_DEVICE, RIVALS};
    use xenoprof::event::Event;

    #[test]
    fn counts_of_events_require_counters() {
        for (metric, required) in [
            ("instructions_per_packet.total", true),
            ("dtlb_misses_per_second.driver", true),
            ("cycles_per_packet.total", false),
            ("throughput", false),
        ] {
            assert_eq!(requires_counters(metric), required, "{metric}");
        }
    }

    #[test]
    fn events_of_rivals_and_nic_devices_are_in_no_total() {
        let counts = EventCounts {
            sums: [
                (("driver", Event::Instructions), 600.0),
                (("guest", Event::Instructions), 200.0),
                ((RIVALS, Event::Instructions), 900.0),
                ((NIC_DEVICE, Event::Instructions), 70.0),
                (("guest", Event::DtlbMisses), 4.0),
            ]
            .into(),
            least_share: Some(0.5),
        };
        let mut out = BTreeMap::new();
        figures(&counts, "packet", 2.0, &mut out);
        let expected = [
            ("instructions_per_packet.driver", 300.0),
            ("instructions_per_packet.guest", 100.0),
            ("instructions_per_packet.nic_device", 35.0),
            ("instructions_per_packet.rivals", 450.0),
            ("instructions_per_packet.total", 400.0),
            ("dtlb_misses_per_packet.guest", 2.0),
            ("dtlb_misses_per_packet.total", 2.0),
            ("events_counted", 0.5),
        ];
        let expected: BTreeMap<String, f64> = expected
            .map(|(name, value)| (name.to_owned(), value))
            .into();
        assert_eq!(out, expected);
        out.clear();
        figures(&EventCounts::default(), "packet", 2.0, &mut out);
        figures(&counts, "packet", 0.0, &mut out);
        assert!(out.is_empty());
    }
}
