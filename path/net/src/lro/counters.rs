//! What the engine counts.

use super::reason::{Reason, ReasonCounts};

/// Counters since the engine was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// TCP packets with payload that came in.
    pub segments: u64,
    /// TCP packets with payload that went on, those that stayed alone included.
    pub aggregates: u64,
    /// Segments that became part of another one's packet, in packets that went on.
    pub merged: u64,
    /// Packets whose IP or TCP checksum was wrong; they passed as they came.
    pub bad_checksums: u64,
    flushed: ReasonCounts,
}

impl Counters {
    /// Aggregates that went on for this reason.
    #[must_use]
    pub fn flushed(&self, reason: Reason) -> u64 {
        self.flushed.get(reason)
    }

    /// Aggregates that went on, by reason, zeros too.
    pub fn reasons(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.flushed
            .iter()
            .map(|(reason, count)| (reason.name(), count))
    }

    /// LRO rate as the papers define it: TCP packets received per packet delivered upward,
    /// singletons included. Pure acknowledgements are not counted. 1 before the first packet.
    #[must_use]
    pub fn rate(&self) -> f64 {
        match self.aggregates {
            0 => 1.0,
            aggregates => self.segments as f64 / aggregates as f64,
        }
    }

    #[inline]
    pub(super) fn count(&mut self, reason: Reason) {
        self.flushed.count(reason);
    }
}
