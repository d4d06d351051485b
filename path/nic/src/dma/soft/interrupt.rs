//! Interrupts of receive queues and their moderation.

/// Parameters of interrupt moderation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptModeration {
    /// Delay from the first frame to the interrupt in nanoseconds.
    pub delay_ns: u64,
    /// Number of frames that raise the interrupt before the delay has passed; 0 means no limit.
    pub frames: usize,
}

/// The interrupt of a receive queue, which the driver acknowledges in the queue's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueueInterrupt {
    /// The index that the driver has acknowledged last.
    acknowledged: u32,
    /// Whether the interrupt was raised since the last acknowledgement.
    pub(super) is_raised: bool,
    /// Number of completions that the driver has not acknowledged.
    pending: u32,
    /// Time since which completions wait for an interrupt.
    since_ns: Option<u64>,
}

impl QueueInterrupt {
    /// Records that `pending` completions update the index `acknowledged`.
    pub(super) fn update(&mut self, now_ns: u64, (pending, acknowledged): (u32, u32)) {
        if acknowledged != self.acknowledged {
            // Moderation restarts with the completions that the driver has not taken.
            *self = Self {
                acknowledged,
                ..Self::default()
            };
        }
        self.pending = pending;
        if self.is_pending() {
            self.since_ns.get_or_insert(now_ns);
        }
    }

    pub(super) fn is_pending(&self) -> bool {
        self.pending > 0 && !self.is_raised
    }

    /// Returns the time at which to raise the interrupt, or `None` if it is not pending.
    pub(super) fn due_ns(&self, moderation: InterruptModeration) -> Option<u64> {
        let since_ns = self.since_ns.filter(|_| self.is_pending())?;
        let by_number = moderation.frames > 0 && self.pending as usize >= moderation.frames;
        let delay_ns = if by_number { 0 } else { moderation.delay_ns };
        Some(since_ns.saturating_add(delay_ns))
    }
}
