//! Adaptive flushing: holds an aggregate only while more of its flow is likely to arrive soon, and
//! only if waiting has paid off before.
//!
//! Per flow, in a fixed-size table whose entries other flows may overwrite:
//!
//! * the *gap*: the time from one poll with segments of the flow to the next such poll (an
//!   average of the gaps within the longest wait). It reflects the load of this flow, whatever the
//!   cause: the wire's rate, interrupt moderation, a busy driver.
//! * *misses*: the number of consecutive waits without a new segment. A sender that has used up its
//!   window waits for the acknowledgement that the held aggregate delays. No gap shows that; only
//!   the failed wait does. After the second miss one wait is skipped, after further misses 3, 7 …
//!   255.
//!
//! Both exist twice, for the time after a segment with PSH and after one without. So the end of a
//! message is predicted separately from its middle, and `psh = merge` does not delay
//! request-response traffic.

use super::reason::Reason;
use super::settings::{Flush, Settings};

/// A wait ends after this many gaps without a segment.
const SILENT_GAPS_MAX: u64 = 3;
/// Lower limit of a gap: the duration of a poll.
const GAP_MIN_NS: u64 = 1000;
/// Share of a new gap in the average: 1/8, as in TCP's smoothed round-trip time (RFC 6298).
const SMOOTHING: u32 = 3;
/// Largest number of misses, after which 2^8 - 1 waits are skipped.
const MISSES_MAX: u8 = 9;

/// Statistics of the time after one kind of segment.
#[derive(Clone, Copy, Debug, Default)]
struct GapStats {
    /// Average gap in nanoseconds; 0: unknown.
    gap_ns: u64,
    /// Waits without a segment; a successful wait halves it.
    misses: u8,
    /// Number of waits that the engine still skips.
    skip: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct FlowGaps {
    /// Upper half of the flow's hash.
    tag: u32,
    /// Whether the last segment had PSH.
    pushed: bool,
    /// Time of the last poll with segments.
    last_ns: u64,
    gap_stats_by_push: [GapStats; 2],
}

impl FlowGaps {
    fn gap_stats(&mut self) -> &mut GapStats {
        let [plain, pushed] = &mut self.gap_stats_by_push;
        if self.pushed { pushed } else { plain }
    }
}

/// Decision about an aggregate that could still grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Hold it until this time.
    Hold(u64),
    /// Flush it.
    Flush(Reason),
}

/// Statistics of the flows.
#[derive(Clone, Debug)]
pub(super) struct History {
    flows: Vec<FlowGaps>,
    /// Longest wait.
    bound_ns: u64,
}

impl History {
    /// Creates empty statistics. Allocates the table only if the settings use it.
    pub(super) fn new(settings: &Settings) -> Self {
        let flows = match settings.flush {
            Flush::Adaptive => settings.flows * 2,
            _ => 1,
        };
        Self {
            flows: vec![FlowGaps::default(); flows.max(1).next_power_of_two()],
            bound_ns: settings.hold_ns(),
        }
    }

    /// Returns the flow's entry, which may replace another flow's.
    fn flow(&mut self, hash: u64, now_ns: u64) -> Option<&mut FlowGaps> {
        let index = hash as usize & (self.flows.len() - 1);
        let flow = self.flows.get_mut(index)?;
        let tag = (hash >> 32) as u32;
        if flow.tag != tag {
            *flow = FlowGaps {
                tag,
                last_ns: now_ns,
                ..FlowGaps::default()
            };
        }
        Some(flow)
    }

    /// Records a poll with segments of the flow.
    pub(super) fn arrived(&mut self, hash: u64, now_ns: u64) {
        let bound_ns = self.bound_ns;
        let Some(flow) = self.flow(hash, now_ns) else {
            return;
        };
        let gap = now_ns.saturating_sub(flow.last_ns);
        flow.last_ns = now_ns;
        // For pauses only their number matters, not their length; `misses` counts them.
        if gap == 0 || gap > bound_ns {
            return;
        }
        let gap_stats = flow.gap_stats();
        gap_stats.gap_ns = match gap_stats.gap_ns {
            0 => gap,
            old => old - (old >> SMOOTHING) + (gap >> SMOOTHING),
        };
    }

    /// Records whether the flow's last segment in this poll had PSH.
    pub(super) fn ended(&mut self, hash: u64, now_ns: u64, pushed: bool) {
        if let Some(flow) = self.flow(hash, now_ns) {
            flow.pushed = pushed;
        }
    }

    /// Records a wait in which a segment arrived.
    pub(super) fn hit(&mut self, hash: u64, now_ns: u64) {
        if let Some(flow) = self.flow(hash, now_ns) {
            let gap_stats = flow.gap_stats();
            gap_stats.misses /= 2;
        }
    }

    /// Records a wait in which none arrived.
    pub(super) fn missed(&mut self, hash: u64, now_ns: u64) {
        if let Some(flow) = self.flow(hash, now_ns) {
            let gap_stats = flow.gap_stats();
            gap_stats.misses = (gap_stats.misses + 1).min(MISSES_MAX);
            gap_stats.skip = ((1u16 << (gap_stats.misses - 1)) - 1) as u8;
        }
    }

    /// Decides, at the end of a poll with segments of the flow, whether to hold an aggregate whose
    /// first segment arrived at `first_ns`.
    pub(super) fn decide(&mut self, hash: u64, now_ns: u64, first_ns: u64) -> Decision {
        let last_ns = first_ns.saturating_add(self.bound_ns);
        let Some(flow) = self.flow(hash, now_ns) else {
            return Decision::Flush(Reason::Unexpected);
        };
        let gap_stats = flow.gap_stats();
        let gap = gap_stats.gap_ns.max(GAP_MIN_NS);
        // Allow half a gap more, so that a steady flow's segment is not missed because of jitter.
        if gap_stats.gap_ns == 0 || now_ns.saturating_add(gap + gap / 2) > last_ns {
            return Decision::Flush(Reason::Unexpected);
        }
        if gap_stats.skip > 0 {
            gap_stats.skip -= 1;
            return Decision::Flush(Reason::Unexpected);
        }
        Decision::Hold(last_ns.min(now_ns.saturating_add(SILENT_GAPS_MAX * gap)))
    }
}
