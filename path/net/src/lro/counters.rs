//! Counters of the LRO engine.

use super::reason::{Reason, ReasonCounts};

/// Counters since the engine was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LroCounters {
    /// TCP packets with payload received.
    pub segments: u64,
    /// TCP packets with payload delivered, including unmerged ones.
    pub aggregates: u64,
    /// Segments in delivered packets that were merged into the packet of another segment.
    pub merged: u64,
    /// Packets with an invalid IP or TCP checksum; they pass unchanged.
    pub bad_checksums: u64,
    flushed: ReasonCounts,
}

impl LroCounters {
    /// Returns the aggregates flushed for this reason.
    #[must_use]
    pub fn flushed(&self, reason: Reason) -> u64 {
        self.flushed.get(reason)
    }

    /// Iterates over the aggregates by flush reason, including zeros.
    pub fn reasons(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.flushed
            .iter()
            .map(|(reason, count)| (reason.name(), count))
    }

    /// Returns the LRO rate as the papers define it: TCP packets received per packet delivered,
    /// including unmerged ones. Pure acknowledgements do not count. Returns 1 before the first
    /// packet.
    #[must_use]
    pub fn rate(&self) -> f64 {
        match self.aggregates {
            0 => 1.0,
            aggregates => self.segments as f64 / aggregates as f64,
        }
    }

    /// Adds the counters of another engine.
    pub fn add(&mut self, other: &Self) {
        self.segments += other.segments;
        self.aggregates += other.aggregates;
        self.merged += other.merged;
        self.bad_checksums += other.bad_checksums;
        self.flushed += other.flushed;
    }

    #[inline]
    pub(super) fn count(&mut self, reason: Reason) {
        self.flushed.count(reason);
    }
}
