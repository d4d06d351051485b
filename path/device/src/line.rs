//! The rate of one direction of a wire.

use shmem::rate::TokenBucket;

/// The part of a second for which a direction may make up for a device that did not work.
const CATCH_UP: u64 = 5_000;

/// One direction of a wire. A frame may start when the one before it has passed, which leaves a
/// debt.
#[derive(Clone, Debug)]
pub(crate) struct Line(Option<TokenBucket>);

impl Line {
    /// Creates a direction that carries `bytes_per_s` of frames; `None`: unlimited.
    pub(crate) fn new(bytes_per_s: Option<u64>) -> Self {
        Self(bytes_per_s.map(|rate| {
            let burst = u32::try_from(rate / CATCH_UP).unwrap_or(u32::MAX);
            TokenBucket::new(rate.max(1), burst)
        }))
    }

    /// Returns the time at which it may carry the next frame.
    pub(crate) fn free_at(&self, now_ns: u64) -> Option<u64> {
        match &self.0 {
            Some(rate) => rate.ready_at(now_ns, 0),
            None => Some(now_ns),
        }
    }

    /// Returns whether it may carry a frame now.
    pub(crate) fn is_free(&self, now_ns: u64) -> bool {
        self.free_at(now_ns) == Some(now_ns)
    }

    /// Occupies it with a frame of `len` bytes.
    pub(crate) fn occupy(&mut self, now_ns: u64, len: usize) {
        if let Some(rate) = &mut self.0 {
            rate.available(now_ns);
            rate.charge(len as u32);
        }
    }
}
