//! A stretch: the time between two reads of the CPU clock, and its longest charges, which may
//! include preemptions.

use std::cell::Cell;

/// Number of longest charges that a stretch records.
const LONGEST_CHARGES: usize = 16;

/// State since the last read of the CPU clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MeasuredInterval {
    pub from_tsc: u64,
    pub from_cpu_ns: u64,
    pub from_stamps: u64,
    /// Cycles between the stamps around the sleeps of the stretch.
    pub asleep: u64,
    pub sleeps: u64,
}

impl MeasuredInterval {
    /// Returns the cycles from the start of the stretch to the stamp `last`.
    pub(super) fn age(&self, last: u64) -> u64 {
        last.wrapping_sub(self.from_tsc)
    }

    /// Returns the cycles from the start of the stretch to the stamp `last`, without its sleeps.
    pub(super) fn awake(&self, last: u64) -> u64 {
        self.age(last).saturating_sub(self.asleep)
    }
}

/// The longest charges of a stretch as (cycles, index), unsorted.
#[derive(Debug)]
pub(super) struct LongestCharges([Cell<(u64, usize)>; LONGEST_CHARGES]);

impl LongestCharges {
    pub(super) fn new() -> Self {
        Self([const { Cell::new((0, 0)) }; LONGEST_CHARGES])
    }

    /// Records a charge if it is among the longest.
    #[cold]
    pub(super) fn remember(&self, place: usize, cycles: u64) {
        let shortest = self.0.iter().min_by_key(|long| long.get().0);
        if let Some(shortest) = shortest.filter(|long| long.get().0 < cycles) {
            shortest.set((cycles, place));
        }
    }

    /// Returns the recorded charges as (cycles, index), longest first.
    pub(super) fn sorted(&self) -> [(u64, usize); LONGEST_CHARGES] {
        let mut all = self.0.each_ref().map(Cell::get);
        all.sort_unstable_by_key(|charge| std::cmp::Reverse(charge.0));
        all
    }

    pub(super) fn clear(&self) {
        self.0.iter().for_each(|long| long.set((0, 0)));
    }
}
