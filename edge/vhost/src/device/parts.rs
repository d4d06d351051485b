//! Common parts of both directions: lengths, counters, and a cursor over buffers.

use crate::features::VirtioFeatures;
use crate::memory::VmMemory;
use crate::queue::{BadChain, SplitRing};
use nic::Caps;
use shmem::Span;

/// Bytes of an Ethernet header.
pub(super) const ETHERNET: usize = 14;
/// Bytes of a VLAN tag.
pub(super) const VLAN_TAG: usize = 4;
/// Bytes of the longest unsegmented frame.
pub(super) const GSO_FRAME_MAX: usize = 65_535 + ETHERNET + VLAN_TAG;
/// Bytes of the longest header in front of a frame.
pub(super) const HEADER_MAX: usize = 12;

/// A running ring, and the limits and features that apply to its frames.
pub(super) struct RunningRing<'a> {
    pub(super) queue: &'a mut SplitRing,
    pub(super) memory: &'a VmMemory,
    pub(super) features: VirtioFeatures,
    pub(super) caps: Caps,
}

/// Chains that were dropped, by cause.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BadChains {
    pub(super) malformed: u64,
    pub(super) fault: u64,
}

impl BadChains {
    pub(super) fn count(&mut self, bad: BadChain) {
        match bad {
            BadChain::Fault => self.fault += 1,
            _ => self.malformed += 1,
        }
    }
}

/// A cursor over spans, at which the next bytes are read or written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    /// Index of the current span.
    pub(super) at: usize,
    /// Number of the span's bytes that were used.
    pub(super) used: usize,
}

impl Cursor {
    pub(super) const START: Self = Self { at: 0, used: 0 };

    /// Returns up to `most` bytes that lie in one span, or an empty span at the end.
    #[inline]
    pub(super) fn next(
        &mut self,
        span: impl Fn(usize) -> Option<Span>,
        most: usize,
    ) -> Option<Span> {
        loop {
            let rest = span(self.at)?.skip(self.used);
            if rest.is_empty() {
                self.at += 1;
                self.used = 0;
                continue;
            }
            let part = rest.take(most);
            self.used += part.len();
            return Some(part);
        }
    }
}
