//! The limit on what goes to a guest: a token bucket, in bytes of frames. What is above it is
//! dropped before anything is copied. Nobody waits: a guest that others flood must not hold up
//! those who also send to its neighbours.
//!
//! An aggregate counts as the one frame that it is, however it is cut for the guest afterwards. A
//! frame that is longer than the burst passes when the bucket is full, and leaves a debt.

use config::domain::Limit;
use nic::rate::TokenBucket;

/// Bytes a second of a megabit a second.
const BYTES_PER_S_PER_MBPS: f64 = 125_000.0;

/// Bytes a second; at least one, because a rate of nothing would be for ever.
#[must_use]
pub fn bytes_per_s(mbps: f64) -> u64 {
    // Numbers above what a word holds are as much as a word holds.
    ((mbps * BYTES_PER_S_PER_MBPS).round() as u64).max(1)
}

/// The limit of one guest's port.
#[derive(Debug, Default)]
pub struct GuestLimit {
    /// None: all may go.
    bucket: Option<TokenBucket>,
    /// Frames that were dropped, also by limits that it had before.
    pub dropped: u64,
}

impl GuestLimit {
    /// Name, meaning and count of why it drops frames.
    #[must_use]
    pub fn reason(&self) -> (&'static str, &'static str, u64) {
        let meaning = "Above the rate of the guest that it is for.";
        ("rate_to_guest", meaning, self.dropped)
    }

    /// It is this one from now on, and nothing has passed it yet.
    pub fn set(&mut self, limit: Option<&Limit>) {
        self.bucket =
            limit.map(|limit| TokenBucket::new(bytes_per_s(limit.rate_mbps), limit.burst_bytes));
    }

    /// Those of `pick` that may go now; `bytes` says how long each is. The others are counted.
    /// `room` is room for the answer.
    #[inline]
    pub fn admit<'a>(
        &mut self,
        now_ns: u64,
        pick: &'a [u32],
        room: &'a mut Vec<u32>,
        bytes: impl Fn(u32) -> usize,
    ) -> &'a [u32] {
        let Some(bucket) = &mut self.bucket else {
            return pick;
        };
        room.clear();
        let passes = |frame: &u32| bucket.take(now_ns, bytes(*frame) as u32);
        room.extend(pick.iter().copied().filter(passes));
        self.dropped += (pick.len() - room.len()) as u64;
        room
    }
}

#[cfg(test)]
mod tests;
