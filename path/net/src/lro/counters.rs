//! What the engine counts.

use super::Reason;

/// Counters since the engine was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// TCP packets with payload that came in.
    pub segments: u64,
    /// TCP packets with payload that went on, those that stayed alone included.
    pub aggregates: u64,
    /// Segments that became part of another one's packet, in packets that went on.
    pub merged: u64,
    /// Packets whose IP or TCP checksum was wrong; they passed as they came.
    pub bad_checksums: u64,
    flushed: [u64; Reason::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            segments: 0,
            aggregates: 0,
            merged: 0,
            bad_checksums: 0,
            flushed: [0; Reason::ALL.len()],
        }
    }
}

impl Counters {
    /// Aggregates that went on for this reason.
    #[must_use]
    pub fn flushed(&self, reason: Reason) -> u64 {
        self.flushed.get(reason as usize).copied().unwrap_or(0)
    }

    /// Aggregates that went on, by reason, zeros too.
    pub fn reasons(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Reason::ALL
            .into_iter()
            .map(|reason| (reason.name(), self.flushed(reason)))
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
        if let Some(counter) = self.flushed.get_mut(reason as usize) {
            *counter += 1;
        }
    }
}
