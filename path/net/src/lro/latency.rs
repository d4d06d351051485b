//! Waiting times of first segments: a log-linear histogram of fixed size.
//!
//! Crate `hdrhistogram`, which the lab uses, is too slow here: every flushed aggregate records a
//! value, which at a low LRO rate means every packet. At this resolution `Latency::record` takes 23
//! instructions, `Histogram::saturating_record` 48 (callgrind), and `Histogram::max` rounds up to
//! the end of a bucket.

/// Buckets per power of two: a resolution of 1/16.
const STEPS: usize = 16;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Powers of two above the first `STEPS` values: up to 2^36 ns, about a minute.
const POWERS: usize = 32;
const BUCKETS: usize = STEPS * (POWERS + 1);

/// Histogram of waiting times since the policy was set: nanoseconds from the start of the poll of a
/// first segment until its packet is flushed. An aggregate that is complete within that poll counts
/// as 0; packets that pass without being held are not included.
#[derive(Clone)]
pub struct HoldLatency {
    buckets: Box<[u64; BUCKETS]>,
    sum_ns: u64,
    max_ns: u64,
}

impl std::fmt::Debug for HoldLatency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Latency")
            .field("count", &self.count())
            .field("p50_ns", &self.quantile(0.5))
            .field("p99_ns", &self.quantile(0.99))
            .field("max_ns", &self.max_ns)
            .finish()
    }
}

impl Default for HoldLatency {
    fn default() -> Self {
        Self {
            buckets: Box::new([0; BUCKETS]),
            sum_ns: 0,
            max_ns: 0,
        }
    }
}

impl HoldLatency {
    #[inline]
    pub(super) fn record(&mut self, ns: u64) {
        if let Some(bucket) = self.buckets.get_mut(bucket_of(ns)) {
            *bucket += 1;
        }
        // On overflow the sum wraps, which readers handle like a restart.
        self.sum_ns = self.sum_ns.wrapping_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the values of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (to, from) in self.buckets.iter_mut().zip(&*other.buckets) {
            *to += from;
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    pub(super) fn reset(&mut self) {
        self.buckets.fill(0);
        self.sum_ns = 0;
        self.max_ns = 0;
    }

    /// Returns the number of recorded values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of all values in nanoseconds.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Returns the largest value in nanoseconds.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Iterates over the non-empty buckets as (largest possible value in nanoseconds, count).
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self.buckets.iter().enumerate();
        filled
            .filter(|(_, count)| **count > 0)
            .map(|(index, count)| (last_of(index), *count))
    }

    /// Returns the quantile `q` (0 … 1) in nanoseconds: the upper end of its bucket, at most 1/16
    /// too high. Returns 0 without values.
    #[must_use]
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = (q.clamp(0.0, 1.0) * self.count() as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            below += count;
            if below >= rank {
                return last_of(index).min(self.max_ns);
            }
        }
        0
    }

    /// Returns the median in nanoseconds.
    #[must_use]
    pub fn p50_ns(&self) -> u64 {
        self.quantile(0.5)
    }

    /// Returns the 99th percentile in nanoseconds.
    #[must_use]
    pub fn p99_ns(&self) -> u64 {
        self.quantile(0.99)
    }
}

/// Returns the bucket of a value. Values below `STEPS` have one bucket each; above, every power of
/// two has `STEPS` buckets.
#[inline]
fn bucket_of(ns: u64) -> usize {
    let power = (ns | (STEPS as u64 - 1)).ilog2() - (STEP_BITS - 1);
    if power == 0 {
        return ns as usize;
    }
    let step = (ns >> (power - 1)) as usize - STEPS;
    (power as usize * STEPS + step).min(BUCKETS - 1)
}

/// Returns the largest value of a bucket.
fn last_of(index: usize) -> u64 {
    let (power, step) = (index / STEPS, index % STEPS);
    match power {
        0 => step as u64,
        _ => (((STEPS + step + 1) as u64) << (power - 1)) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_begins_where_the_one_before_ends() {
        let mut at = 0;
        for index in 0..BUCKETS {
            assert_eq!(bucket_of(at), index, "{at}");
            assert_eq!(bucket_of(last_of(index)), index, "{at}");
            at = last_of(index) + 1;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_within_a_sixteenth() {
        let mut latency = HoldLatency::default();
        assert_eq!((latency.p50_ns(), latency.count()), (0, 0));
        for ns in 1..=100_000 {
            latency.record(ns);
        }
        for (q, exact) in [(0.5, 50_000.0), (0.99, 99_000.0), (0.1, 10_000.0)] {
            let found = latency.quantile(q) as f64;
            assert!(
                (exact..=exact * 17.0 / 16.0).contains(&found),
                "{q}: {found}"
            );
        }
        assert_eq!(
            (latency.quantile(1.0), latency.max_ns()),
            (100_000, 100_000)
        );
        assert_eq!(latency.quantile(0.0), 1);
        let all: u64 = latency.buckets().map(|(_, count)| count).sum();
        assert_eq!(all, 100_000);
        assert_eq!(latency.sum_ns(), 100_000 * 100_001 / 2);
        assert!(latency.buckets().is_sorted() && latency.buckets().count() < 256);
        latency.reset();
        assert_eq!(
            (latency.p99_ns(), latency.max_ns(), latency.count()),
            (0, 0, 0)
        );
        assert_eq!(latency.sum_ns(), 0);
    }
}
