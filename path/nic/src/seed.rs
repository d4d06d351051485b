//! Reproducible random numbers.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Random numbers from SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct SeededRng(SplitMix64);

impl SeededRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64().checked_rem(bound).unwrap_or(0)
    }

    /// Returns true with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        // 53 bits fill a double's mantissa.
        let drawn = (self.0.next_u64() >> 11) as f64;
        drawn / 2f64.powi(53) < probability
    }
}
