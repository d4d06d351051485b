//! Selection of the turns to stamp, where stamps are expensive.

use super::cost::stamp_cycles;
use std::cell::Cell;

/// The ledger stamps at least every 8th turn.
const EVERY_MAX: u32 = 8;
/// If stamps take more than 1/32 of the time, the ledger stamps fewer turns.
const SHARE_MAX_DIVISOR: u64 = 32;
/// If stamps take less than a quarter of that share, the ledger stamps more turns.
const SHARE_MIN_DIVISOR: u64 = 4;

/// Selects at random which turns are stamped.
#[derive(Debug)]
pub(super) struct Sampling {
    /// On average every n-th turn is stamped. This n is a power of two.
    every: Cell<u32>,
    lot: Cell<u32>,
    /// Cost of a stamp in cycles.
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

    /// Returns the average interval between stamped turns, in turns.
    #[inline]
    pub(super) fn every(&self) -> u32 {
        self.every.get()
    }

    /// Returns whether to stamp the next turn.
    pub(super) fn select_turn(&self) -> bool {
        // This is Marsaglia's xorshift generator. If the ledger stamped every n-th turn and turns
        // of one kind also recurred every n turns, it would stamp all of these or none. A random
        // selection stamps the same fraction of every kind.
        let mut lot = self.lot.get();
        lot ^= lot << 13;
        lot ^= lot >> 17;
        lot ^= lot << 5;
        self.lot.set(lot);
        lot & (self.every.get() - 1) == 0
    }

    /// Selects fewer turns if `stamps` stamps were expensive in `awake` cycles, and more turns if
    /// they were cheap.
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
