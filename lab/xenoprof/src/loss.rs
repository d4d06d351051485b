//! The loss ledger: for each CPU and domain, the expected samples and their outcomes.
//!
//! `expected = delivered + kernel_lost + throttled + ring_dropped + steal + silent` always holds.
//! Each event has a separate ledger. Only a clock has a known number of samples; for other events
//! the delivered and the known lost samples are the expected ones.
//!
//! `silent` is the unexplained rest: periods that the timer missed because interrupts were off or
//! the machine did not run. It is negative if the row has samples that belong to the time of other
//! domains.

use crate::unit::Unit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Returns whether an event is the first one, which files omit.
pub(crate) const fn is_first(event: &u32) -> bool {
    *event == 0
}

/// Maximum share of missing samples without a warning.
pub const MISSING_MAX: f64 = 0.01;

/// A row of the ledger, in samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// CPU.
    pub cpu: u32,
    /// Domain. `None`: the whole CPU, including losses that have no known domain.
    pub domain: Option<u32>,
    /// Event, by its number.
    #[serde(default, skip_serializing_if = "is_first")]
    pub event: u32,
    /// CPU time ÷ period for a clock.
    pub expected: u64,
    /// Received samples.
    pub delivered: u64,
    /// Samples that the kernel could not write to its ring.
    pub kernel_lost: u64,
    /// Periods in which the kernel had stopped sampling; for events that are not a clock, an
    /// estimate from the CPU's rate at other times.
    #[serde(default)]
    pub throttled: u64,
    /// Samples for which a domain's ring or the sampler's memory had no space.
    pub ring_dropped: u64,
    /// Periods that the underlying hypervisor stole.
    pub steal: u64,
    /// The unexplained rest.
    pub silent: i64,
}

impl Loss {
    /// Returns the row with `silent` set.
    #[must_use]
    pub fn closed(mut self) -> Self {
        let known = [
            self.delivered,
            self.kernel_lost,
            self.throttled,
            self.ring_dropped,
            self.steal,
        ];
        let known: u64 = known.iter().fold(0, |sum, n| sum.saturating_add(*n));
        self.silent = self
            .expected
            .cast_signed()
            .saturating_sub(known.cast_signed());
        self
    }

    /// Returns the known losses.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.kernel_lost
            .saturating_add(self.throttled)
            .saturating_add(self.ring_dropped)
    }

    /// Returns a sentence about the missing samples if more than [`MISSING_MAX`] are missing, with
    /// their main cause.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let causes = [
            (
                self.kernel_lost,
                "the kernel's ring was full: use a lower rate or a longer period",
            ),
            (
                self.throttled,
                "the kernel stopped sampling: use a lower rate or a longer period",
            ),
            (self.ring_dropped, "a ring or the memory was full"),
            (self.steal, "the hypervisor ran something else"),
            (
                self.silent.max(0).unsigned_abs(),
                "interrupts were off, or the timer was late",
            ),
        ];
        let missing = causes
            .iter()
            .fold(0u64, |sum, (n, _)| sum.saturating_add(*n));
        let share = missing as f64 / self.expected.max(1) as f64;
        let (most, cause) = causes.into_iter().max_by_key(|(count, _)| *count)?;
        (share > MISSING_MAX && self.expected > 0).then(|| {
            format!(
                "CPU {}: {:.1} % of the samples are missing, {:.1} % because {cause}",
                self.cpu,
                share * 100.0,
                most as f64 / self.expected as f64 * 100.0
            )
        })
    }
}

/// Counts of one event at the end of a session.
#[derive(Clone, Debug, Default)]
pub struct LossCounts {
    /// Samples by CPU and domain.
    pub delivered: BTreeMap<(u32, u32), u64>,
    /// By CPU.
    pub kernel_lost: BTreeMap<u32, u64>,
    /// Nanoseconds by CPU.
    pub throttled_ns: BTreeMap<u32, u64>,
    /// By CPU and domain.
    pub ring_dropped: BTreeMap<(u32, u32), u64>,
    /// Nanoseconds by CPU.
    pub steal_ns: BTreeMap<u32, u64>,
    /// Exact CPU time by domain, nanoseconds.
    pub cpu_ns: BTreeMap<u32, u64>,
}

impl LossCounts {
    /// Returns the ledger's rows. Each CPU has a row for each domain that ran there, and a row for
    /// the whole CPU.
    ///
    /// The time of a domain that ran on several CPUs is split in proportion to its samples, because
    /// the scheduler's exact account is by process, not by CPU.
    #[must_use]
    pub fn ledger(&self, cpus: &[u32], ran_ns: u64, period: u64, unit: Unit) -> Vec<Loss> {
        match unit {
            Unit::Nanoseconds => self.of_clock(cpus, ran_ns, period.max(1)),
            Unit::Cycles | Unit::Occurrences => self.of_counter(cpus, ran_ns),
        }
    }

    fn of_counter(&self, cpus: &[u32], ran_ns: u64) -> Vec<Loss> {
        let known = |row: Loss| Loss {
            expected: row.delivered.saturating_add(row.lost()),
            ..row
        };
        let mut rows = Vec::new();
        for &cpu in cpus {
            let at = |map: &BTreeMap<u32, u64>| map.get(&cpu).copied().unwrap_or(0);
            let row = Loss {
                cpu,
                delivered: of_cpu(&self.delivered, cpu),
                kernel_lost: at(&self.kernel_lost),
                ring_dropped: of_cpu(&self.ring_dropped, cpu),
                ..Loss::default()
            };
            let stopped_ns = at(&self.throttled_ns);
            let samples = u128::from(row.delivered.saturating_add(row.lost()));
            let sampled_ns = u128::from(ran_ns.saturating_sub(stopped_ns).max(1));
            let throttled = samples * u128::from(stopped_ns) / sampled_ns;
            rows.push(known(Loss {
                throttled: u64::try_from(throttled).unwrap_or(u64::MAX),
                ..row
            }));
            for (&(_, domain), &delivered) in self.delivered.range((cpu, 0)..=(cpu, u32::MAX)) {
                rows.push(known(Loss {
                    cpu,
                    domain: Some(domain),
                    delivered,
                    ring_dropped: self.ring_dropped.get(&(cpu, domain)).copied().unwrap_or(0),
                    ..Loss::default()
                }));
            }
        }
        rows
    }

    fn of_clock(&self, cpus: &[u32], ran_ns: u64, period: u64) -> Vec<Loss> {
        let mut by_domain: BTreeMap<u32, u64> = BTreeMap::new();
        for ((_, domain), count) in &self.delivered {
            *by_domain.entry(*domain).or_default() += count;
        }
        let mut rows = Vec::new();
        for &cpu in cpus {
            let at = |map: &BTreeMap<u32, u64>| map.get(&cpu).copied().unwrap_or(0);
            rows.push(
                Loss {
                    cpu,
                    expected: ran_ns / period,
                    delivered: of_cpu(&self.delivered, cpu),
                    kernel_lost: at(&self.kernel_lost),
                    throttled: at(&self.throttled_ns) / period,
                    ring_dropped: of_cpu(&self.ring_dropped, cpu),
                    steal: at(&self.steal_ns) / period,
                    ..Loss::default()
                }
                .closed(),
            );
            for (&(_, domain), &delivered) in self.delivered.range((cpu, 0)..=(cpu, u32::MAX)) {
                let all = by_domain.get(&domain).copied().unwrap_or(0).max(1);
                let periods = self.cpu_ns.get(&domain).copied().unwrap_or(0) / period;
                let expected = u128::from(periods) * u128::from(delivered) / u128::from(all);
                rows.push(
                    Loss {
                        cpu,
                        domain: Some(domain),
                        expected: u64::try_from(expected).unwrap_or(u64::MAX),
                        delivered,
                        ring_dropped: self.ring_dropped.get(&(cpu, domain)).copied().unwrap_or(0),
                        ..Loss::default()
                    }
                    .closed(),
                );
            }
        }
        rows
    }
}

/// Returns the sum over the domains of a CPU.
fn of_cpu(map: &BTreeMap<(u32, u32), u64>, cpu: u32) -> u64 {
    map.range((cpu, 0)..=(cpu, u32::MAX)).map(|(_, n)| n).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts() -> impl Strategy<Value = LossCounts> {
        let pairs = || proptest::collection::btree_map((0u32..3, 0u32..4), 0u64..10_000, 0..10);
        let cpus = || proptest::collection::btree_map(0u32..3, 0u64..1_000_000_000, 0..3);
        let times = proptest::collection::btree_map(0u32..4, 0u64..10_000_000_000, 0..4);
        (pairs(), cpus(), cpus(), pairs(), cpus(), times).prop_map(
            |(delivered, kernel_lost, throttled_ns, ring_dropped, steal_ns, cpu_ns)| LossCounts {
                delivered,
                kernel_lost,
                throttled_ns,
                ring_dropped,
                steal_ns,
                cpu_ns,
            },
        )
    }

    proptest! {
        #[test]
        fn rows_close_and_sum_to_cpus(counts in counts()) {
            let rows = counts.ledger(&[0, 1, 2], 5_000_000_000, 1_000_000, Unit::Nanoseconds);
            for row in &rows {
                let known = row.delivered + row.lost() + row.steal;
                prop_assert_eq!(row.expected.cast_signed(), known.cast_signed() + row.silent);
            }
            for cpu in 0..3 {
                let whole = rows.iter().find(|r| r.cpu == cpu && r.domain.is_none()).unwrap();
                let parts: u64 = rows
                    .iter()
                    .filter(|r| r.cpu == cpu && r.domain.is_some())
                    .map(|r| r.delivered)
                    .sum();
                prop_assert_eq!(whole.delivered, parts);
                prop_assert_eq!(whole.expected, 5000);
            }
        }
    }

    #[test]
    fn missing_samples_are_reported_with_their_cause() {
        let row = |expected, delivered, throttled| {
            let row = Loss {
                cpu: 1,
                expected,
                delivered,
                throttled,
                ..Loss::default()
            };
            row.closed().warning()
        };
        assert_eq!(row(1000, 990, 0), None);
        let silent = "CPU 1: 16.0 % of the samples are missing, 16.0 % because interrupts were off";
        assert!(row(1000, 840, 0).unwrap().starts_with(silent));
        let throttled = "CPU 1: 5.0 % of the samples are missing, 4.0 % because the kernel stopped";
        assert!(row(1000, 950, 40).unwrap().starts_with(throttled));
        assert_eq!(row(0, 10, 0), None, "the number of events was unknown");
    }

    #[test]
    fn counted_events_expect_what_is_known() {
        let counts = LossCounts {
            delivered: [((0, 1), 60), ((0, 2), 20)].into(),
            kernel_lost: [(0, 10)].into(),
            throttled_ns: [(0, 50_000_000)].into(),
            ring_dropped: [((0, 2), 10)].into(),
            steal_ns: [(0, 10_000_000)].into(),
            cpu_ns: [(1, 80_000_000)].into(),
        };
        let rows = counts.ledger(&[0, 1], 150_000_000, 1, Unit::Occurrences);
        let parts = |row: &Loss| (row.cpu, row.domain, row.expected, row.throttled, row.silent);
        // 100 samples in 100 ms, so 50 in the 50 ms without sampling.
        let expected = [
            (0, None, 150, 50, 0),
            (0, Some(1), 60, 0, 0),
            (0, Some(2), 30, 0, 0),
            (1, None, 0, 0, 0),
        ];
        assert_eq!(rows.iter().map(parts).collect::<Vec<_>>(), expected);
        let warning = rows[0].warning().unwrap();
        assert!(
            warning.contains("46.7 %") && warning.contains("stopped"),
            "{warning}"
        );
    }

    #[test]
    fn a_domains_time_is_split_by_samples() {
        let counts = LossCounts {
            delivered: [((0, 1), 30), ((1, 1), 10)].into(),
            cpu_ns: [(1, 80_000_000)].into(),
            ..LossCounts::default()
        };
        let rows = counts.ledger(&[0, 1], 100_000_000, 1_000_000, Unit::Nanoseconds);
        let of = |cpu| rows.iter().find(|r| r.cpu == cpu && r.domain == Some(1));
        assert_eq!(of(0).map(|r| (r.expected, r.silent)), Some((60, 30)));
        assert_eq!(of(1).map(|r| (r.expected, r.silent)), Some((20, 10)));
    }
}
