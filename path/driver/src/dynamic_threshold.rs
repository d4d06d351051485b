//! Limits on the buffers that queues hold, by dynamic thresholds.

/// Count of a supply's buffers that queued frames hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueShare {
    used: usize,
}

impl QueueShare {
    /// Returns whether a queue that holds `has` buffers of a supply of `capacity` may hold `more`
    /// in addition.
    #[must_use]
    pub fn allows(self, capacity: usize, has: usize, more: usize) -> bool {
        let free = (capacity - capacity / 4).saturating_sub(self.used);
        more <= free && has.saturating_add(more) <= free.saturating_mul(2)
    }

    /// Returns the number of quarters of its limit that a queue with `has` buffers uses.
    #[must_use]
    pub fn quarters(self, capacity: usize, has: usize) -> usize {
        let free = (capacity - capacity / 4).saturating_sub(self.used);
        // A single queue may hold up to two thirds of the sum of the free buffers and its own.
        let most = free.saturating_add(has).saturating_mul(2) / 3;
        let quarters = has.saturating_mul(4).checked_div(most);
        quarters.unwrap_or(4).min(4)
    }

    /// Adds a queued frame's buffers.
    pub fn add(&mut self, units: usize) {
        self.used += units;
    }

    /// Removes a queued frame's buffers.
    pub fn remove(&mut self, units: usize) {
        self.used = self.used.saturating_sub(units);
    }
}
