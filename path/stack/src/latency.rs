//! Round-trip times, in buckets that are 3 % wide.

/// Buckets per power of two.
const STEPS: u64 = 32;
const BUCKETS: usize = 64 * STEPS as usize;

/// How often each time was seen.
#[derive(Clone, Debug)]
pub(crate) struct Latency {
    counts: Box<[u32]>,
    total: u64,
    max_ns: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS].into_boxed_slice(),
            total: 0,
            max_ns: 0,
        }
    }
}

/// The bucket of a value: exact below 64, then 32 to a power of two.
fn bucket(value: u64) -> usize {
    if value < 2 * STEPS {
        return value as usize;
    }
    let shift = value.ilog2() - STEPS.ilog2();
    (u64::from(shift) * STEPS + (value >> shift)) as usize
}

/// The middle of a bucket.
fn value(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    let low = (bucket - shift * STEPS) << shift;
    low + (1 << shift) / 2
}

impl Latency {
    pub(crate) fn add(&mut self, ns: u64) {
        if let Some(count) = self.counts.get_mut(bucket(ns)) {
            *count = count.saturating_add(1);
        }
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// The time that `percent` of all stay within, nanoseconds; 0 if there are none.
    fn percentile(&self, percent: u64) -> u64 {
        let rank = (self.total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank {
                return value(index).min(self.max_ns);
            }
        }
        0
    }

    /// `latency_p50_ns`, `latency_p99_ns`, `latency_max_ns`.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 3] {
        [
            ("latency_p50_ns", self.percentile(50)),
            ("latency_p99_ns", self.percentile(99)),
            ("latency_max_ns", self.max_ns),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_dense_and_close() {
        for ns in (0..1000).chain([4095, 4096, 46_000, 1_000_000, u64::MAX / 2, u64::MAX]) {
            let back = value(bucket(ns));
            assert!(back.abs_diff(ns) <= ns / 32, "{ns} {back}");
        }
        assert!((0..=bucket(u64::MAX)).all(|n| bucket(value(n)) == n));
        assert!(bucket(u64::MAX) < BUCKETS);
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
