//! Rate and cost of the stamps and clock reads in the domains' ledgers.

use crate::lane::Lane;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Instant;

/// Rates of some domains' ledgers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) stamps: f64,
    pub(super) clock_reads: f64,
    /// Seconds that stamps and clock reads take.
    pub(super) cost: f64,
}

impl Rates {
    pub(super) fn add(&mut self, other: Self) {
        self.stamps += other.stamps;
        self.clock_reads += other.clock_reads;
        self.cost += other.cost;
    }
}

/// A ledger's counts of its operations, and their unit costs.
#[derive(Clone, Copy, Debug)]
struct Count {
    part: &'static str,
    stamps: f64,
    clock_reads: f64,
    stamp_ns: f64,
    clock_ns: f64,
}

/// The ledgers of all domains at one time.
#[derive(Clone, Debug)]
pub(super) struct Stamps {
    at: Instant,
    by_domain: BTreeMap<String, Count>,
}

/// Counts in the time between two readings.
#[derive(Clone, Debug, Default)]
pub(super) struct Stamped {
    by_part: BTreeMap<&'static str, Rates>,
    pub(super) stamp_ns: f64,
    pub(super) clock_ns: f64,
}

impl Stamps {
    pub(super) fn read(lane: &Lane) -> anyhow::Result<Self> {
        let machine = lane.machine()?;
        let mut by_domain = BTreeMap::new();
        for (part, name) in machine.domains() {
            let stat = machine.stat(name)?;
            let ledger = &stat["ledger"];
            let number = |value: &Value| value.as_f64().unwrap_or(0.0);
            let count = Count {
                part,
                stamps: number(&ledger["stamps"]),
                clock_reads: number(&ledger["clock_reads"]),
                stamp_ns: number(&ledger["cost_ns"]["stamp"]),
                clock_ns: number(&ledger["cost_ns"]["clock_read"]),
            };
            by_domain.insert(name.to_owned(), count);
        }
        Ok(Self {
            at: Instant::now(),
            by_domain,
        })
    }

    pub(super) fn since(&self, before: &Self) -> Stamped {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(1e-9);
        let mut stamped = Stamped::default();
        for (name, now) in &self.by_domain {
            let Some(earlier) = before.by_domain.get(name) else {
                continue;
            };
            let stamps = (now.stamps - earlier.stamps) / seconds;
            let clock_reads = (now.clock_reads - earlier.clock_reads) / seconds;
            stamped.by_part.entry(now.part).or_default().add(Rates {
                stamps,
                clock_reads,
                cost: (stamps * now.stamp_ns + clock_reads * now.clock_ns) / 1e9,
            });
            // If the costs of domains differ, the largest is used.
            stamped.stamp_ns = stamped.stamp_ns.max(now.stamp_ns);
            stamped.clock_ns = stamped.clock_ns.max(now.clock_ns);
        }
        stamped
    }
}

impl Stamped {
    pub(super) fn rates(&self, part: &str) -> Rates {
        self.by_part.get(part).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn stamps_become_rates() {
        let now = Instant::now();
        let stamps = |at, stamps, clock_reads| {
            let count = Count {
                part: "driver",
                stamps,
                clock_reads,
                stamp_ns: 10.0,
                clock_ns: 500.0,
            };
            Stamps {
                at,
                by_domain: [("d".to_owned(), count)].into(),
            }
        };
        let later = stamps(now + Duration::from_secs(2), 500.0, 30.0);
        let stamped = later.since(&stamps(now, 100.0, 10.0));
        let rates = stamped.rates("driver");
        assert_eq!((rates.stamps, rates.clock_reads), (200.0, 10.0));
        assert!((rates.cost - 7e-6).abs() < 1e-12, "{rates:?}");
        assert_eq!((stamped.stamp_ns, stamped.clock_ns), (10.0, 500.0));
        assert_eq!(stamped.rates("guest"), Rates::default());
    }
}
