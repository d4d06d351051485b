//! Dynamic thresholds: limits on the number of buffers that queues occupy.

/// Number of a pool's buffers that queued frames occupy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueShare {
    used: usize,
}

impl QueueShare {
    /// Returns whether a queue that occupies `has` buffers of a pool of `capacity` buffers may
    /// occupy `more` buffers in addition.
    #[must_use]
    pub fn allows(self, capacity: usize, has: usize, more: usize) -> bool {
        let free = (capacity - capacity / 4).saturating_sub(self.used);
        more <= free && has.saturating_add(more) <= free.saturating_mul(2)
    }

    /// Returns the used part of the limit of a queue with `has` buffers, in quarters (0 to 4).
    #[must_use]
    pub fn quarters(self, capacity: usize, has: usize) -> usize {
        let free = (capacity - capacity / 4).saturating_sub(self.used);
        // If only this queue grows, it reaches its limit at two thirds of the sum of the free
        // buffers and its buffers.
        let most = free.saturating_add(has).saturating_mul(2) / 3;
        let quarters = has.saturating_mul(4).checked_div(most);
        quarters.unwrap_or(4).min(4)
    }

    /// Adds the buffers of a queued frame.
    pub fn add(&mut self, units: usize) {
        self.used += units;
    }

    /// Subtracts the buffers of a queued frame.
    pub fn remove(&mut self, units: usize) {
        self.used = self.used.saturating_sub(units);
    }
}
