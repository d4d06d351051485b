//! The words of an entry, and the revoker's side, which the monitor executes.

use crate::span::Span;
use abi::counted::{Translation, announcements_at};
#[cfg(loom)]
use loom::sync::atomic::fence;
#[cfg(not(loom))]
use std::sync::atomic::fence;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A word that both sides read and one thread writes. The trait has the required part of an
/// atomic's interface, so that models can replace it. A thread of the monitor writes an entry's
/// *translation* and a table's count of announcements. The user writes an entry's *status*, which
/// counts uses.
pub trait Word<Value> {
    /// Reads the word.
    fn load(&self, order: Ordering) -> Value;
    /// Writes the word.
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

/// Returns the count of announcements of a table of `entries` entries, if its translation sub-table
/// contains it.
#[must_use]
pub fn announcements(translation: Span, entries: u32) -> Option<&'static AtomicU64> {
    translation.u64(announcements_at(entries))
}

/// The words of an entry in shared memory. In a process with a read-only translation sub-table, a
/// store to the translation faults.
#[derive(Clone, Copy, Debug)]
pub struct EntryWords {
    /// The grant of the entry.
    pub translation: &'static AtomicU64,
    /// The number of current uses.
    pub status: &'static AtomicU32,
}

impl EntryWords {
    /// Returns the words of entry `index` of both sub-tables, if they are long enough.
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

/// Executes the full fence of a user's batch; [`publish`] executes the revoker's fence. After its
/// fence, the user reads all data that the granter wrote to a page before granting it.
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}

/// Announces the revocation of a page, which prevents new uses. The caller must call [`publish`]
/// after the announcements of a batch.
#[inline]
pub fn announce(translation: &impl Word<u64>, entry: Translation) {
    translation.store(entry.revoking().0, Ordering::Relaxed);
}

/// Counts a batch of announcements. Afterwards, [`is_unused`] takes into account every use that
/// continues because its user has read the old count.
#[inline]
pub fn publish(announcements: &impl Word<u64>) {
    let before = announcements.load(Ordering::Relaxed);
    // Release: a thread that reads the new count also reads the announcements.
    announcements.store(before.wrapping_add(1), Ordering::Release);
    full_fence();
}

/// Returns whether an announced entry has no use, so that its page can be unmapped.
#[inline]
pub fn is_unused(status: &impl Word<u32>) -> bool {
    status.load(Ordering::Acquire) == 0
}
