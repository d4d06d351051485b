//! Token buckets: a rate of bytes (or frames) per second, and a burst.

/// Level of one token, and nanoseconds per second. A bucket counts billionths of a token, so that
/// its arithmetic is exact and needs no division per frame.
const SCALE: u64 = 1_000_000_000;

/// A token bucket. A *token* is a byte, or another unit that the caller counts.
///
/// A cost above the burst passes when the bucket is full, and leaves a debt, so that the average
/// rate is exact for any mix of sizes.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    per_s: u64,
    burst: u32,
    /// Billionths of tokens; negative values are a debt.
    level: i64,
    filled_ns: Option<u64>,
}

impl TokenBucket {
    /// Creates a full bucket, which gains `per_s` tokens per second and holds up to `burst` tokens
    /// (at least one).
    #[must_use]
    pub fn new(per_s: u64, burst: u32) -> Self {
        let burst = burst.max(1);
        Self {
            per_s,
            burst,
            level: scaled(burst),
            filled_ns: None,
        }
    }

    /// Adds the tokens accrued until `now_ns`. Adds none if the clock has not advanced.
    fn fill(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.filled_ns.unwrap_or(now_ns));
        let accrued = i64::try_from(elapsed_ns.saturating_mul(self.per_s)).unwrap_or(i64::MAX);
        self.level = self.level.saturating_add(accrued).min(scaled(self.burst));
        self.filled_ns = Some(now_ns.max(self.filled_ns.unwrap_or(now_ns)));
    }

    /// Returns the level that the bucket needs for `cost` tokens to pass.
    fn needed(&self, cost: u32) -> i64 {
        scaled(cost.min(self.burst))
    }

    /// Takes `cost` tokens if they may pass now. Returns whether it took them.
    pub fn take(&mut self, now_ns: u64, cost: u32) -> bool {
        self.fill(now_ns);
        let passes = self.level >= self.needed(cost);
        if passes {
            self.charge(cost);
        }
        passes
    }

    /// Takes `cost` tokens at any level, for a cost that is known only after the event. May leave a
    /// debt.
    pub fn charge(&mut self, cost: u32) {
        self.level = self.level.saturating_sub(scaled(cost));
    }

    /// Returns the number of tokens that may be taken now.
    pub fn available(&mut self, now_ns: u64) -> u32 {
        self.fill(now_ns);
        u32::try_from(self.level / SCALE as i64).unwrap_or(0)
    }

    /// Returns the earliest time at which `cost` tokens may pass: `now_ns` if they may pass now,
    /// `None` if they never may.
    #[must_use]
    pub fn ready_at(&self, now_ns: u64, cost: u32) -> Option<u64> {
        let mut then = self.clone();
        then.fill(now_ns);
        let missing = u64::try_from(then.needed(cost).saturating_sub(then.level)).unwrap_or(0);
        if missing == 0 {
            return Some(now_ns);
        }
        (self.per_s > 0).then(|| now_ns.saturating_add(missing.div_ceil(self.per_s)))
    }
}

fn scaled(tokens: u32) -> i64 {
    // 2³² billion is below 2⁶³.
    i64::from(tokens) * SCALE as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_full_bucket_passes_a_burst_then_the_rate() {
        let mut bucket = TokenBucket::new(1_000_000, 3000);
        assert!(bucket.take(0, 1500));
        assert!(bucket.take(0, 1500));
        assert!(!bucket.take(0, 1));
        assert_eq!(bucket.ready_at(0, 1500), Some(1_500_000));
        assert!(!bucket.take(1_499_999, 1500));
        assert!(bucket.take(1_500_000, 1500));
    }

    #[test]
    fn tokens_never_exceed_the_burst() {
        let mut bucket = TokenBucket::new(1_000_000, 100);
        assert_eq!(bucket.available(0), 100);
        assert_eq!(bucket.available(u64::MAX), 100);
        assert!(bucket.take(u64::MAX, 100));
        assert_eq!(bucket.available(u64::MAX), 0);
    }

    #[test]
    fn a_cost_above_the_burst_passes_and_leaves_a_debt() {
        let mut bucket = TokenBucket::new(1_000, 100);
        assert!(bucket.take(0, 1100));
        assert_eq!(bucket.available(0), 0);
        assert_eq!(bucket.ready_at(0, 1), Some(1001 * MS));
        assert!(!bucket.take(1000 * MS, 1));
        assert!(bucket.take(1001 * MS, 1));
    }

    #[test]
    fn charging_needs_no_tokens() {
        let mut bucket = TokenBucket::new(1_000, 10);
        bucket.charge(20);
        assert_eq!(bucket.ready_at(5, 1), Some(5 + 11 * MS));
    }

    #[test]
    fn without_a_rate_only_the_burst_passes() {
        let mut bucket = TokenBucket::new(0, 5);
        assert_eq!(bucket.ready_at(7, 5), Some(7));
        assert!(bucket.take(7, 5));
        assert_eq!(bucket.ready_at(7, 1), None);
        assert!(!bucket.take(u64::MAX, 1));
    }

    #[test]
    fn a_burst_of_0_counts_as_1() {
        let mut bucket = TokenBucket::new(1, 0);
        assert!(bucket.take(0, 1));
        assert!(!bucket.take(0, 1));
    }

    #[test]
    fn a_backward_clock_adds_nothing() {
        let mut bucket = TokenBucket::new(1_000, 10);
        assert!(bucket.take(50 * MS, 10));
        assert!(!bucket.take(0, 1));
        assert!(!bucket.take(50 * MS, 1));
        assert!(bucket.take(51 * MS, 1));
    }

    proptest! {
        #[test]
        fn the_rate_holds_for_any_costs(
            per_s in 1u64..10_000_000_000,
            burst in 1u32..200_000,
            requests in prop::collection::vec((0u64..2_000_000, 1u32..70_000), 1..200),
        ) {
            let mut bucket = TokenBucket::new(per_s, burst);
            let (mut now, mut passed, mut largest) = (0u64, 0u128, 0u32);
            for (wait, cost) in requests {
                now += wait;
                let ready = bucket.ready_at(now, cost).unwrap();
                let took = bucket.take(now, cost);
                prop_assert_eq!(took, ready == now);
                if took {
                    passed += u128::from(cost);
                    largest = largest.max(cost);
                } else {
                    let mut later = bucket.clone();
                    prop_assert!(!later.clone().take(ready - 1, cost));
                    prop_assert!(later.take(ready, cost));
                }
                let allowed = u128::from(now) * u128::from(per_s) / u128::from(SCALE);
                prop_assert!(passed <= allowed + u128::from(burst) + u128::from(largest));
            }
        }
    }
}
