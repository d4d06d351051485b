//! What this domain asks of Xen, counted by kind: hypercalls, as Linux makes them of the requests
//! of its devices, and the operations in them.
//!
//! One thread counts, any may read: the control socket's does.

use runtime::platform::Asked;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of hypercall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Hypercall {
    /// Bytes are copied from or to granted pages; an operation is one place in one page.
    Copy,
    /// Granted pages are mapped.
    Map,
    /// They are unmapped.
    Unmap,
    /// The other end of an event channel is notified.
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

/// Counts, since this process has started.
#[derive(Debug, Default)]
pub struct Tally([Counts; Hypercall::ALL.len()]);

#[derive(Debug, Default)]
struct Counts {
    calls: AtomicU64,
    operations: AtomicU64,
}

impl Tally {
    /// So many hypercalls with so many operations were made. By one thread alone.
    pub fn count(&self, kind: Hypercall, calls: u64, operations: u64) {
        // With one writer this loses nothing, and costs less than an atomic addition.
        let add = |to: &AtomicU64, n| to.store(to.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        if let Some(counts) = self.0.get(kind as usize) {
            add(&counts.calls, calls);
            add(&counts.operations, operations);
        }
    }

    /// What was counted, by kind.
    pub fn asked(&self) -> impl Iterator<Item = Asked> + '_ {
        let kinds = Hypercall::ALL.iter().zip(&self.0);
        kinds.map(|(kind, counts)| Asked {
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
    fn each_kind_has_counts_of_its_own() {
        let tally = Tally::default();
        for (n, kind) in (1..).zip(Hypercall::ALL) {
            tally.count(kind, 1, n);
            tally.count(kind, 2, n);
        }
        let counted = tally.asked().map(|of| (of.kind, of.calls, of.operations));
        let wanted = [
            ("copy", 3, 2),
            ("map", 3, 4),
            ("unmap", 3, 6),
            ("notify", 3, 8),
        ];
        assert!(counted.eq(wanted));
    }
}
