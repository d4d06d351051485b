//! Statistics of round-trip times.
//!
//! A time is recorded per round trip, not per frame, so `hdrhistogram` is fast enough.

use hdrhistogram::Histogram;

/// Precision of a time in significant decimal digits.
const DIGITS: u8 = 2;
/// Upper limit of recorded times: an hour, in nanoseconds.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Histogram of round-trip times.
#[derive(Clone, Debug)]
pub(crate) struct Latency {
    times: Histogram<u32>,
    max_ns: u64,
}

impl Default for Latency {
    fn default() -> Self {
        let times = Histogram::new_with_max(LONGEST_NS, DIGITS);
        Self {
            times: times.expect("both are constants within its bounds"),
            max_ns: 0,
        }
    }
}

impl Latency {
    pub(crate) fn add(&mut self, ns: u64) {
        self.times.saturating_record(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Returns the quantile `part` in nanoseconds, or 0 if no time is recorded.
    fn quantile(&self, part: f64) -> u64 {
        // The histogram returns the end of a bucket. The middle of the bucket is closer on average.
        let end = self.times.value_at_quantile(part);
        self.times.median_equivalent(end).min(self.max_ns)
    }

    /// Returns `latency_p50_ns`, `latency_p99_ns`, `latency_max_ns`.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 3] {
        [
            ("latency_p50_ns", self.quantile(0.5)),
            ("latency_p99_ns", self.quantile(0.99)),
            ("latency_max_ns", self.max_ns),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_up_to_an_hour_are_precise() {
        for ns in (0..1000).chain([4095, 4096, 46_000, 1_000_000, LONGEST_NS]) {
            let mut latency = Latency::default();
            latency.add(ns);
            latency.add(2 * LONGEST_NS);
            let [(_, p50), _, (_, max)] = latency.counters();
            assert!(p50.abs_diff(ns) <= ns / 32, "{ns} {p50}");
            assert_eq!(max, 2 * LONGEST_NS);
        }
    }

    #[test]
    fn percentiles_of_known_times() {
        let mut latency = Latency::default();
        assert_eq!(latency.counters().map(|(_, ns)| ns), [0, 0, 0]);
        (1..=100).for_each(|n| latency.add(n * 1000));
        let [p50, p99, max] = latency.counters().map(|(_, ns)| ns);
        assert!(p50.abs_diff(50_000) <= 50_000 / 32, "{p50}");
        assert!(p99.abs_diff(99_000) <= 99_000 / 32, "{p99}");
        assert_eq!(max, 100_000);
    }
}
