//! The words of an entry, and the revoker's side: the monitor's.

use crate::span::Span;
use abi::counted::{Translation, announcements_at};
#[cfg(loom)]
use loom::sync::atomic::fence;
#[cfg(not(loom))]
use std::sync::atomic::fence;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A word that both sides share, and one thread writes: what of an atomic is used, so that models
/// can stand in for it. An entry's *translation* is a thread's of the monitor, and so is a table's
/// count of announcements; its *status* counts uses, and is the user's.
pub trait Word<Value> {
    /// Reads it.
    fn load(&self, order: Ordering) -> Value;
    /// Writes it.
    fn store(&self, value: Value, order: Ordering);
}

impl Word<u32> for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }
}

impl Word<u64> for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

/// The count of announcements of a table of `entries` entries, if its translation sub-table has it.
#[must_use]
pub fn announcements(translation: Span, entries: u32) -> Option<&'static AtomicU64> {
    translation.u64(announcements_at(entries))
}

/// The words of an entry in shared memory. Who may only read the translation sub-table faults if
/// it sets one.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// What it grants.
    pub translation: &'static AtomicU64,
    /// All that has to be kept of a use.
    pub status: &'static AtomicU32,
}

impl Words {
    /// Those of entry `index` of both sub-tables, if they reach so far.
    #[inline]
    #[must_use]
    pub fn of(translation: Span, status: Span, index: u32) -> Option<Self> {
        let index = index as usize;
        Some(Self {
            translation: translation.u64(index.checked_mul(8)?)?,
            status: status.u32(index.checked_mul(4)?)?,
        })
    }
}

/// The one full fence of a batch; the revoker's is in [`publish`]. Behind it a user sees what the
/// granter put into a page before it was granted.
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}

/// The revoker announces that it wants the page: no new use begins. [`publish`] follows the
/// announcements of a batch.
#[inline]
pub fn announce(translation: &impl Word<u64>, entry: Translation) {
    translation.store(entry.revoking().0, Ordering::Relaxed);
}

/// The revoker counts a batch of announcements. Behind this, [`idle`] sees every use that goes on
/// without having seen it.
#[inline]
pub fn publish(announcements: &impl Word<u64>) {
    let before = announcements.load(Ordering::Relaxed);
    // Release: who sees the count sees what was announced.
    announcements.store(before.wrapping_add(1), Ordering::Release);
    full_fence();
}

/// Whether no use of an announced entry is under way, so that the page can be taken away.
#[inline]
pub fn idle(status: &impl Word<u32>) -> bool {
    status.load(Ordering::Acquire) == 0
}
