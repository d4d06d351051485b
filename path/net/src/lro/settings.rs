//! Settings of LRO.

use crate::packet::segment::MAX_SEGMENTS;

/// Merge rules. See [`super::rules::RULES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MergeRules {
    /// The rules of Linux GRO: segmentation can undo every merge, byte for byte. Required for
    /// packets that are forwarded.
    #[default]
    Gro,
    /// The rules of `inet_lro`, which the papers used. For an end host.
    Lro,
}

/// Effect of a PSH flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Psh {
    /// Its segment is merged, and the aggregate is flushed immediately.
    #[default]
    Flush,
    /// No effect: the aggregate has the flag if one of its segments had it. The position of the
    /// flag is then lost, even under [`MergeRules::Gro`].
    Merge,
}

/// Layout of an aggregate's buffers (Hatori & Oi's two modes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AggregateForm {
    /// A chain of packets: the first one whole, the others without their headers.
    #[default]
    Skb,
    /// One private header, and fragments of payload. Fragments that are contiguous in memory are
    /// joined.
    Page,
}

/// When to flush aggregates that could still grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Flush {
    /// At the end of every poll.
    #[default]
    Poll,
    /// At the end of every n-th poll (n = 2 is Oi & Nakajima's delayed aggregation). 0 means 1.
    Polls(u32),
    /// When the first segment has waited for this time.
    After {
        /// Microseconds.
        us: u32,
    },
    /// When waiting is unlikely to pay off, judged by the flow's gaps and earlier waits.
    Adaptive,
}

/// The settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Merge rules.
    pub rules: MergeRules,
    /// Effect of a PSH flag.
    pub psh: Psh,
    /// Layout of an aggregate's buffers.
    pub form: AggregateForm,
    /// When to flush aggregates that could still grow.
    pub flush: Flush,
    /// Longest wait of an aggregate in microseconds, under any `flush`.
    pub hold_max_us: u32,
    /// Maximum number of held aggregates, one per flow.
    pub flows: usize,
    /// Maximum number of packets in an aggregate; capped at [`MAX_SEGMENTS`], so that it can be
    /// segmented.
    pub segments: usize,
    /// Maximum length of an aggregate in bytes, including the Ethernet header. IP's limit, 65 535
    /// bytes starting at its header, also applies.
    pub bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rules: MergeRules::Gro,
            psh: Psh::Flush,
            form: AggregateForm::Skb,
            flush: Flush::Poll,
            hold_max_us: 200,
            flows: 1024,
            segments: 64,
            bytes: 65_535,
        }
    }
}

impl Settings {
    /// Returns the maximum number of packets: at least one, and at most as many as can be
    /// segmented.
    pub(super) fn segments_max(&self) -> u32 {
        self.segments.clamp(1, MAX_SEGMENTS) as u32
    }

    /// Returns whether aggregates may wait beyond a poll.
    pub(super) fn waits(&self) -> bool {
        !matches!(self.flush, Flush::Poll | Flush::Polls(0 | 1))
    }

    /// Returns the longest wait of any aggregate in nanoseconds.
    pub(super) fn hold_ns(&self) -> u64 {
        let us = match self.flush {
            Flush::After { us } => us.min(self.hold_max_us),
            Flush::Poll => 0,
            Flush::Polls(_) | Flush::Adaptive => self.hold_max_us,
        };
        u64::from(us) * 1000
    }
}
