//! Interrupts of receive queues, and their moderation.

/// Interrupt moderation: when arrived frames raise the interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// Nanoseconds from the first frame to the interrupt.
    pub delay_ns: u64,
    /// Number of frames that raise it earlier; 0: no number.
    pub frames: usize,
}

/// The interrupt of a receive queue, which the driver acknowledges in the queue's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueueInterrupt {
    /// The index that the driver had acknowledged last.
    acknowledged: u32,
    /// Whether the interrupt was raised since then.
    pub(super) is_raised: bool,
    /// Number of completions that the driver has not acknowledged.
    pending: u32,
    /// Time since which there are any without an interrupt.
    since_ns: Option<u64>,
}

impl QueueInterrupt {
    /// Takes notice of `pending` completions after the index `acknowledged`.
    pub(super) fn follow(&mut self, now_ns: u64, (pending, acknowledged): (u32, u32)) {
        if acknowledged != self.acknowledged {
            // Moderation begins anew with what the driver has not taken.
            *self = Self {
                acknowledged,
                ..Self::default()
            };
        }
        self.pending = pending;
        if self.waits() {
            self.since_ns.get_or_insert(now_ns);
        }
    }

    pub(super) fn waits(&self) -> bool {
        self.pending > 0 && !self.is_raised
    }

    /// Returns the time at which to raise it.
    pub(super) fn due_ns(&self, moderation: Interrupts) -> Option<u64> {
        let since_ns = self.since_ns.filter(|_| self.waits())?;
        let by_number = moderation.frames > 0 && self.pending as usize >= moderation.frames;
        let delay_ns = if by_number { 0 } else { moderation.delay_ns };
        Some(since_ns.saturating_add(delay_ns))
    }
}
