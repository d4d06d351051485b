//! Selection of the turns to stamp, where stamps are expensive.

use super::cost::stamp_cycles;
use std::cell::Cell;

/// At least every 8th turn is stamped.
const EVERY_MAX: u32 = 8;
/// If stamps take more than 1/32 of the time, fewer turns are stamped.
const SHARE_MAX_DIVISOR: u64 = 32;
/// If stamps take less than a quarter of that share, more turns are stamped.
const SHARE_MIN_DIVISOR: u64 = 4;

/// Draws whether a turn is stamped.
#[derive(Debug)]
pub(super) struct Sampling {
    /// Every n-th turn is stamped on average; a power of two.
    every: Cell<u32>,
    lot: Cell<u32>,
    /// Cycles of a stamp.
    price: u64,
}

impl Sampling {
    pub(super) fn new() -> Self {
        Self {
            every: Cell::new(1),
            lot: Cell::new(1),
            price: stamp_cycles(),
        }
    }

    /// Returns n, if every n-th turn is stamped on average.
    #[inline]
    pub(super) fn every(&self) -> u32 {
        self.every.get()
    }

    /// Returns whether the next turn is stamped.
    pub(super) fn draw(&self) -> bool {
        // Marsaglia's xorshift. With a fixed interval, stamped turns could always or never coincide
        // with a pattern of turns; random ones coincide with it in proportion.
        let mut lot = self.lot.get();
        lot ^= lot << 13;
        lot ^= lot >> 17;
        lot ^= lot << 5;
        self.lot.set(lot);
        lot & (self.every.get() - 1) == 0
    }

    /// Stamps fewer turns if `stamps` in `awake` cycles were expensive, more if they were cheap.
    pub(super) fn adapt(&self, stamps: u64, awake: u64) {
        let parts = stamps
            .saturating_mul(self.price)
            .saturating_mul(SHARE_MAX_DIVISOR);
        let every = self.every.get();
        if parts > awake {
            self.every.set(EVERY_MAX.min(every * 2));
        } else if parts < awake / SHARE_MIN_DIVISOR {
            self.every.set(1.max(every / 2));
        }
    }
}
