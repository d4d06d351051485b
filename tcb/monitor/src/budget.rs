//! A token bucket: how often somebody may ask for something.

/// So many at once, so many a second in the long run. Time is passed in.
#[derive(Clone, Debug)]
pub struct Budget {
    burst: u64,
    interval_ns: u64,
    tokens: u64,
    since_ns: u64,
}

impl Budget {
    /// A full bucket of `burst` tokens that gets `per_second` (at least one) new ones.
    #[must_use]
    pub fn new(burst: u64, per_second: u64, now_ns: u64) -> Self {
        Self {
            burst,
            interval_ns: 1_000_000_000 / per_second.clamp(1, 1_000_000_000),
            tokens: burst,
            since_ns: now_ns,
        }
    }

    /// Takes `n` tokens, if there are as many.
    pub fn take(&mut self, n: u64, now_ns: u64) -> bool {
        self.refill(now_ns);
        if n > self.tokens {
            return false;
        }
        self.tokens -= n;
        true
    }

    /// When the next token comes; now or earlier if there is one.
    #[must_use]
    pub fn next_ns(&mut self, now_ns: u64) -> u64 {
        self.refill(now_ns);
        if self.tokens > 0 {
            now_ns
        } else {
            self.since_ns.saturating_add(self.interval_ns)
        }
    }

    fn refill(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.since_ns) / self.interval_ns;
        self.tokens = self.tokens.saturating_add(passed).min(self.burst);
        self.since_ns = self
            .since_ns
            .saturating_add(passed.saturating_mul(self.interval_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut budget = Budget::new(3, 10, 0);
        assert!(budget.take(2, 0) && budget.take(1, 0) && !budget.take(1, 99_999_999));
        assert_eq!(budget.next_ns(0), 100_000_000);
        assert!(budget.take(1, 100_000_000) && !budget.take(1, 100_000_000));
        assert!(!budget.take(4, u64::MAX) && budget.take(3, u64::MAX) && !budget.take(1, u64::MAX));
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing() {
        let mut budget = Budget::new(1, 1, 5_000_000_000);
        assert!(budget.take(1, 5_000_000_000) && !budget.take(1, 0));
    }
}
