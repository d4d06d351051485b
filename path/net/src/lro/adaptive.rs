//! Adaptive flushing: hold an aggregate only while more of its flow may be expected soon, and only
//! if waiting has paid before.
//!
//! Per flow, in a table of fixed size whose entries are lost when another flow needs them:
//!
//! * the *gap*: how long after one poll with segments of the flow the next one comes (an average of
//!   those gaps that are within the longest wait). It is the load as this flow sees it, from any
//!   cause: the wire's rate, interrupt moderation, a busy driver.
//! * *misses*: how often in a row waiting brought nothing. A sender that has sent all that its
//!   window allows waits for the acknowledgement that we hold back; no gap shows that, only the
//!   outcome does. After the second miss the next time is skipped, after more the next 3, 7 … 255
//!   times.
//!
//! Both twice: after a segment with PSH and after one without. A message's end is predicted apart
//! from its middle, so that `psh = merge` costs request-response nothing.

use super::reason::Reason;
use super::settings::{Flush, Settings};

/// A wait ends after this many gaps without a segment.
const PATIENCE: u64 = 3;
/// No gap counts as shorter: a poll's own time.
const GAP_MIN_NS: u64 = 1000;
/// Share of a new gap in the average: 1/8, as in TCP's smoothed round-trip time (RFC 6298).
const SMOOTHING: u32 = 3;
/// Misses that are told apart: at most 2^8 - 1 times are skipped.
const MISSES_MAX: u8 = 9;

/// What is known about the time after one kind of segment.
#[derive(Clone, Copy, Debug, Default)]
struct Habit {
    /// Average gap, nanoseconds; 0: not known.
    gap_ns: u64,
    /// Waits that brought nothing; halved by one that brought something.
    misses: u8,
    /// Times to go on without waiting.
    skip: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Upper half of the flow's hash.
    tag: u32,
    /// The last segment had PSH.
    pushed: bool,
    /// The last poll with segments.
    last_ns: u64,
    habits: [Habit; 2],
}

impl Flow {
    fn habit(&mut self) -> &mut Habit {
        let [plain, pushed] = &mut self.habits;
        if self.pushed { pushed } else { plain }
    }
}

/// What to do with an aggregate that could still grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Hold it until this moment.
    Hold(u64),
    /// Send it on.
    Flush(Reason),
}

/// The flows' habits.
#[derive(Clone, Debug)]
pub(super) struct History {
    flows: Vec<Flow>,
    /// Longest wait.
    bound_ns: u64,
}

impl History {
    /// No flow's habits are known. Room for them only where the settings ask for it.
    pub(super) fn new(settings: &Settings) -> Self {
        let flows = match settings.flush {
            Flush::Adaptive => settings.flows * 2,
            _ => 1,
        };
        Self {
            flows: vec![Flow::default(); flows.max(1).next_power_of_two()],
            bound_ns: settings.hold_ns(),
        }
    }

    /// The flow's entry; a new one if another flow has it.
    fn flow(&mut self, hash: u64, now_ns: u64) -> Option<&mut Flow> {
        let index = hash as usize & (self.flows.len() - 1);
        let flow = self.flows.get_mut(index)?;
        let tag = (hash >> 32) as u32;
        if flow.tag != tag {
            *flow = Flow {
                tag,
                last_ns: now_ns,
                ..Flow::default()
            };
        }
        Some(flow)
    }

    /// A poll had a segment of the flow.
    pub(super) fn arrived(&mut self, hash: u64, now_ns: u64) {
        let bound_ns = self.bound_ns;
        let Some(flow) = self.flow(hash, now_ns) else {
            return;
        };
        let gap = now_ns.saturating_sub(flow.last_ns);
        flow.last_ns = now_ns;
        // Nothing is learned from a pause: how long it is does not matter, and whether one comes
        // is what misses tell.
        if gap == 0 || gap > bound_ns {
            return;
        }
        let habit = flow.habit();
        habit.gap_ns = match habit.gap_ns {
            0 => gap,
            old => old - (old >> SMOOTHING) + (gap >> SMOOTHING),
        };
    }

    /// The flow's last segment in this poll had PSH, or had not.
    pub(super) fn ended(&mut self, hash: u64, now_ns: u64, pushed: bool) {
        if let Some(flow) = self.flow(hash, now_ns) {
            flow.pushed = pushed;
        }
    }

    /// A wait brought a segment.
    pub(super) fn hit(&mut self, hash: u64, now_ns: u64) {
        if let Some(flow) = self.flow(hash, now_ns) {
            let habit = flow.habit();
            habit.misses /= 2;
        }
    }

    /// A wait brought nothing.
    pub(super) fn missed(&mut self, hash: u64, now_ns: u64) {
        if let Some(flow) = self.flow(hash, now_ns) {
            let habit = flow.habit();
            habit.misses = (habit.misses + 1).min(MISSES_MAX);
            habit.skip = ((1u16 << (habit.misses - 1)) - 1) as u8;
        }
    }

    /// Whether to wait, at the end of a poll that had segments of the flow, with an aggregate whose
    /// first segment came at `first_ns`.
    pub(super) fn decide(&mut self, hash: u64, now_ns: u64, first_ns: u64) -> Decision {
        let last_ns = first_ns.saturating_add(self.bound_ns);
        let Some(flow) = self.flow(hash, now_ns) else {
            return Decision::Flush(Reason::Unexpected);
        };
        let habit = flow.habit();
        let gap = habit.gap_ns.max(GAP_MIN_NS);
        // Half a gap more: a steady flow's segment must not be missed for its jitter.
        if habit.gap_ns == 0 || now_ns.saturating_add(gap + gap / 2) > last_ns {
            return Decision::Flush(Reason::Unexpected);
        }
        if habit.skip > 0 {
            habit.skip -= 1;
            return Decision::Flush(Reason::Unexpected);
        }
        Decision::Hold(last_ns.min(now_ns.saturating_add(PATIENCE * gap)))
    }
}
