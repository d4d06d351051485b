//! The choices that LRO offers.

use crate::packet::segment::MAX_SEGMENTS;

/// What may be merged. See [`super::rules::RULES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rules {
    /// Linux GRO's: segmentation can undo every merge, byte for byte. The only rules that a packet
    /// may meet before it is forwarded.
    #[default]
    Gro,
    /// `inet_lro`'s, which the papers ran: for an end host.
    Lro,
}

/// What a PSH flag does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Psh {
    /// Its segment is merged, and the aggregate goes on at once.
    #[default]
    Flush,
    /// Nothing; the aggregate has the flag if one of its segments had it. Which one had it is
    /// then lost, under [`Rules::Gro`] too.
    Merge,
}

/// What an aggregate's buffers look like (Hatori & Oi's two modes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Form {
    /// Every packet keeps its place in a chain: the first one whole, of the others what is
    /// behind their headers.
    #[default]
    Skb,
    /// The header once, private, and fragments of payload; those that are contiguous in memory
    /// are one.
    Page,
}

/// When aggregates that could still grow go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Flush {
    /// At the end of every poll.
    #[default]
    Poll,
    /// At the end of every n-th poll (Oi & Nakajima's delayed aggregation is 2). 0 is 1.
    Polls(u32),
    /// When the first segment has waited this long.
    After {
        /// Microseconds.
        us: u32,
    },
    /// When waiting does not pay, by the flow's own rhythm and the outcome of earlier waits.
    Adaptive,
}

/// The choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What may be merged.
    pub rules: Rules,
    /// What a PSH flag does.
    pub psh: Psh,
    /// What an aggregate's buffers look like.
    pub form: Form,
    /// When aggregates that could still grow go on.
    pub flush: Flush,
    /// No aggregate waits longer under any `flush`; microseconds.
    pub hold_max_us: u32,
    /// Aggregates held at a time, one per flow.
    pub flows: usize,
    /// Packets of an aggregate; at most [`MAX_SEGMENTS`] count, so that it can be cut again.
    pub segments: usize,
    /// Bytes of an aggregate, Ethernet header included. IP's own limit, 65 535 from its header
    /// on, holds beside it.
    pub bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rules: Rules::Gro,
            psh: Psh::Flush,
            form: Form::Skb,
            flush: Flush::Poll,
            hold_max_us: 200,
            flows: 1024,
            segments: 64,
            bytes: 65_535,
        }
    }
}

impl Settings {
    /// Packets of an aggregate: at least one, and no more than can be cut again.
    pub(super) fn segments_max(&self) -> u32 {
        self.segments.clamp(1, MAX_SEGMENTS) as u32
    }

    /// Whether aggregates may wait beyond a poll.
    pub(super) fn waits(&self) -> bool {
        !matches!(self.flush, Flush::Poll | Flush::Polls(0 | 1))
    }

    /// Longest wait of any aggregate, nanoseconds.
    pub(super) fn hold_ns(&self) -> u64 {
        let us = match self.flush {
            Flush::After { us } => us.min(self.hold_max_us),
            Flush::Poll => 0,
            Flush::Polls(_) | Flush::Adaptive => self.hold_max_us,
        };
        u64::from(us) * 1000
    }
}
