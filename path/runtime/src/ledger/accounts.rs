//! Cycles of each hop, and of unstamped turns until they are distributed.

use super::hop::Hop;
use std::cell::Cell;

/// Index of the cycles of unstamped turns. Lower indexes are hops.
pub(super) const UNSTAMPED: usize = Hop::COUNT;

/// Cycles by index since the start.
#[derive(Debug)]
pub(super) struct HopAccounts {
    cycles: [Cell<u64>; Hop::COUNT + 1],
    /// Recent cycles of stamped turns, by hop.
    shares: [Cell<u64>; Hop::COUNT],
}

impl HopAccounts {
    pub(super) fn new() -> Self {
        Self {
            cycles: [const { Cell::new(0) }; Hop::COUNT + 1],
            shares: [const { Cell::new(0) }; Hop::COUNT],
        }
    }

    /// Returns the cycles of a hop.
    pub(super) fn of(&self, hop: Hop) -> u64 {
        self.cycles.get(hop.index()).map_or(0, Cell::get)
    }

    /// Adds cycles that no stamp has measured.
    #[inline]
    pub(super) fn add(&self, place: usize, cycles: u64) {
        if let Some(cell) = self.cycles.get(place) {
            cell.set(cell.get().wrapping_add(cycles));
        }
    }

    /// Adds cycles between two stamps. They also determine the distribution of unstamped cycles.
    #[inline]
    pub(super) fn charge(&self, place: usize, cycles: u64) {
        self.add(place, cycles);
        if let Some(share) = self.shares.get(place) {
            share.set(share.get().wrapping_add(cycles));
        }
    }

    /// Subtracts cycles.
    pub(super) fn take(&self, place: usize, cycles: u64) {
        for account in [&self.cycles[..], &self.shares] {
            if let Some(cell) = account.get(place) {
                cell.set(cell.get().saturating_sub(cycles));
            }
        }
    }

    /// Distributes the cycles of unstamped turns among the hops in the ratio of the stamped turns.
    /// Adds the remainder to `rest`.
    pub(super) fn distribute(&self, rest: Hop) {
        let unstamped = self.cycles.get(UNSTAMPED).map_or(0, Cell::take);
        if unstamped == 0 {
            return;
        }
        let all: u64 = self.shares.iter().map(Cell::get).sum();
        let mut left = unstamped;
        for (hop, share) in self.shares.iter().enumerate() {
            let part = u128::from(unstamped) * u128::from(share.get()) / u128::from(all.max(1));
            left = left.saturating_sub(part as u64);
            self.add(hop, part as u64);
        }
        self.add(rest.index(), left);
    }

    /// Lowers the weight of earlier charges in the distribution.
    pub(super) fn age(&self) {
        for share in &self.shares {
            share.set(share.get() / 2);
        }
    }
}
