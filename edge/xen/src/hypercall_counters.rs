//! Counts of this domain's hypercalls by kind, which Linux makes for requests to its devices, and
//! of the operations in them.
//!
//! One thread increments the counters; other threads, such as the control socket's, read them.

use runtime::platform::HypercallCount;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of hypercall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Hypercall {
    /// Copies of bytes from or to granted pages. An operation copies one range of one page.
    Copy,
    /// Maps of granted pages.
    Map,
    /// Unmaps of granted pages.
    Unmap,
    /// Notifications of the other end of an event channel.
    Notify,
}

impl Hypercall {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Copy, Self::Map, Self::Unmap, Self::Notify];

    const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Map => "map",
            Self::Unmap => "unmap",
            Self::Notify => "notify",
        }
    }
}

/// Counts since the start of this process.
#[derive(Debug, Default)]
pub struct HypercallCounters([HypercallCounts; Hypercall::ALL.len()]);

#[derive(Debug, Default)]
struct HypercallCounts {
    calls: AtomicU64,
    operations: AtomicU64,
}

impl HypercallCounters {
    /// Counts `calls` hypercalls with `operations` operations. Only one thread may call this.
    pub fn count(&self, kind: Hypercall, calls: u64, operations: u64) {
        // With a single writer this loses no count, and is cheaper than an atomic addition.
        let add = |to: &AtomicU64, n| to.store(to.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        if let Some(counts) = self.0.get(kind as usize) {
            add(&counts.calls, calls);
            add(&counts.operations, operations);
        }
    }

    /// Returns the counts, by kind.
    pub fn counts(&self) -> impl Iterator<Item = HypercallCount> + '_ {
        let kinds = Hypercall::ALL.iter().zip(&self.0);
        kinds.map(|(kind, counts)| HypercallCount {
            kind: kind.name(),
            calls: counts.calls.load(Ordering::Relaxed),
            operations: counts.operations.load(Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_separate_counts() {
        let tally = HypercallCounters::default();
        for (n, kind) in (1..).zip(Hypercall::ALL) {
            tally.count(kind, 1, n);
            tally.count(kind, 2, n);
        }
        let counted = tally.counts().map(|of| (of.kind, of.calls, of.operations));
        let wanted = [
            ("copy", 3, 2),
            ("map", 3, 4),
            ("unmap", 3, 6),
            ("notify", 3, 8),
        ];
        assert!(counted.eq(wanted));
    }
}
