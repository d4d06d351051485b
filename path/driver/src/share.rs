//! What part of a supply of buffers frames in queues may hold: dynamic thresholds.

/// Buffers of a supply that frames in queues hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueShare {
    used: usize,
}

impl QueueShare {
    /// Whether a queue that holds `has` buffers may hold `more` of a supply of `capacity`.
    #[must_use]
    pub fn allows(self, capacity: usize, has: usize, more: usize) -> bool {
        let free = (capacity - capacity / 4).saturating_sub(self.used);
        more <= free && has.saturating_add(more) <= free.saturating_mul(2)
    }

    /// How many quarters a queue that holds `has` buffers has used of what it may hold.
    #[must_use]
    pub fn quarters(self, capacity: usize, has: usize) -> usize {
        let free = (capacity - capacity / 4).saturating_sub(self.used);
        // Alone it may come to hold two thirds of what is free and its own.
        let most = free.saturating_add(has).saturating_mul(2) / 3;
        let quarters = has.saturating_mul(4).checked_div(most);
        quarters.unwrap_or(4).min(4)
    }

    /// A frame with this many buffers was queued.
    pub fn add(&mut self, units: usize) {
        self.used += units;
    }

    /// It waits no more.
    pub fn remove(&mut self, units: usize) {
        self.used = self.used.saturating_sub(units);
    }
}
