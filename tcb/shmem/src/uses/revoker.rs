//! The words of an entry, and the revoker's side: the monitor's.

use crate::span::Span;
use crate::sync::fence;
use abi::counted::{Translation, announcements_at};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Uses of an entry. One thread counts them.
pub trait StatusWord {
    /// Reads the status sub-table's word.
    fn status(&self, order: Ordering) -> u32;
    /// Writes it.
    fn set_status(&self, value: u32, order: Ordering);
}

/// The two words of an entry. A thread of the monitor's changes the translation.
pub trait EntryWords: StatusWord {
    /// Reads the translation sub-table's word.
    fn translation(&self, order: Ordering) -> u64;
    /// Writes it.
    fn set_translation(&self, value: u64, order: Ordering);
}

/// The count of announcements. The same thread of the monitor's changes it.
pub trait Announcements {
    /// Reads it.
    fn announcements(&self, order: Ordering) -> u64;
    /// Writes it.
    fn set_announcements(&self, value: u64, order: Ordering);
}

impl Announcements for AtomicU64 {
    #[inline]
    fn announcements(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn set_announcements(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

/// The count of announcements of a table of `entries` entries, if its translation sub-table has it.
#[must_use]
pub fn announcements(translation: Span, entries: u32) -> Option<&'static AtomicU64> {
    translation.u64(announcements_at(entries))
}

impl StatusWord for AtomicU32 {
    #[inline]
    fn status(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn set_status(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }
}

/// The words of an entry in shared memory. Who may only read the translation sub-table faults if
/// it sets one.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    pub(super) translation: &'static AtomicU64,
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

impl StatusWord for Words {
    #[inline]
    fn status(&self, order: Ordering) -> u32 {
        self.status.status(order)
    }

    #[inline]
    fn set_status(&self, value: u32, order: Ordering) {
        self.status.set_status(value, order);
    }
}

impl EntryWords for Words {
    #[inline]
    fn translation(&self, order: Ordering) -> u64 {
        self.translation.load(order)
    }

    #[inline]
    fn set_translation(&self, value: u64, order: Ordering) {
        self.translation.store(value, order);
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
pub fn announce(words: &impl EntryWords, entry: Translation) {
    words.set_translation(entry.revoking().0, Ordering::Relaxed);
}

/// The revoker counts a batch of announcements. Behind this, [`idle`] sees every use that goes on
/// without having seen it.
#[inline]
pub fn publish(table: &impl Announcements) {
    let before = table.announcements(Ordering::Relaxed);
    // Release: who sees the count sees what was announced.
    table.set_announcements(before.wrapping_add(1), Ordering::Release);
    full_fence();
}

/// Whether no use of an announced entry is under way, so that the page can be taken away.
#[inline]
pub fn idle(status: &impl StatusWord) -> bool {
    status.status(Ordering::Acquire) == 0
}
