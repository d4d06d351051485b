//! The rate limit of one direction of a wire.

use shmem::rate::TokenBucket;

/// The burst of a direction is the number of bytes that its rate allows in 1/5000 s. After a pause
/// of the device, these bytes may pass without waiting.
const BURSTS_PER_S: u64 = 5_000;

/// One direction of a wire. Each frame occupies the direction for the time that the frame takes at
/// the rate; the next frame may start after that.
#[derive(Clone, Debug)]
pub(crate) struct LinkRate(Option<TokenBucket>);

impl LinkRate {
    /// Creates a direction with a rate of `bytes_per_s`; `None`: unlimited.
    pub(crate) fn new(bytes_per_s: Option<u64>) -> Self {
        Self(bytes_per_s.map(|rate| {
            let burst = u32::try_from(rate / BURSTS_PER_S).unwrap_or(u32::MAX);
            TokenBucket::new(rate.max(1), burst)
        }))
    }

    /// Returns the time at which the next frame may start.
    pub(crate) fn free_at(&self, now_ns: u64) -> Option<u64> {
        match &self.0 {
            Some(rate) => rate.ready_at(now_ns, 0),
            None => Some(now_ns),
        }
    }

    /// Returns whether a frame may start now.
    pub(crate) fn is_free(&self, now_ns: u64) -> bool {
        self.free_at(now_ns) == Some(now_ns)
    }

    /// Starts a frame of `len` bytes.
    pub(crate) fn start_frame(&mut self, now_ns: u64, len: usize) {
        if let Some(rate) = &mut self.0 {
            rate.available(now_ns);
            rate.charge(len as u32);
        }
    }
}
