//! How a use of a grant and its revocation meet (`specs/grants.md`, N-7 … N-12).
//!
//! ```text
//!   user, for a whole batch                     revoker (the monitor), for a batch
//!   announced: read the count                   announce: entry ← revoking, for each
//!   claim: read the entry, count one use        tell: count of announcements + 1, one full fence
//!   settle: one full fence                      idle: read the count of uses, of each
//!   undisturbed: read the count again             refused – entry ← valid, when all were looked at
//!     another one – holds: read each entry again
//!   … touches the pages …
//!   release: count one use less
//! ```
//!
//! With a full fence on both sides, either the user sees that something was announced, finds the
//! entry changed and does not touch the page, or the revoker sees the use and does not take the
//! page away. An announcement that was counted before the batch began has changed its entries
//! before that, so no use of them is claimed, unless they are valid again since: refused, or
//! granted anew. A user that does not keep to this harms itself alone: it faults.

use crate::span::Span;
use crate::sync::{Ordering, fence};
use abi::GrantRef;
use abi::counted::{Translation, announcements_at};
use std::sync::atomic::{AtomicU32, AtomicU64};

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
    translation: &'static AtomicU64,
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

/// The words of every entry of both sub-tables.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    translation: &'static [AtomicU64],
    status: &'static [AtomicU32],
    /// The count of announcements.
    pub announcements: &'static AtomicU64,
}

impl Entries {
    /// Those of the first `count` entries, if both sub-tables reach so far.
    #[must_use]
    pub fn of(translation: Span, status: Span, count: u32) -> Option<Self> {
        let announcements = announcements(translation, count)?;
        let count = count as usize;
        Some(Self {
            announcements,
            translation: translation.u64s(count)?,
            status: status.u32s(count)?,
        })
    }

    /// Those of entry `index`, if there is one.
    #[inline]
    #[must_use]
    pub fn words(&self, index: u32) -> Option<Words> {
        Some(Words {
            translation: self.translation.get(index as usize)?,
            status: self.status.get(index as usize)?,
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

/// The user begins a batch: what has been announced so far. [`undisturbed`] wants it.
#[inline]
pub fn announced(table: &impl Announcements) -> u64 {
    // Acquire: entries announced by then are seen to be so.
    table.announcements(Ordering::Acquire)
}

/// The user begins a use; whether the entry permits it. Counts only if so. [`full_fence`] must lie
/// between the claims of a batch and [`undisturbed`].
#[inline]
pub fn claim(words: &impl EntryWords, gref: GrantRef, write: bool) -> bool {
    let permits = Translation(words.translation(Ordering::Relaxed)).permits(gref, write);
    if permits {
        let uses = words.status(Ordering::Relaxed);
        words.set_status(uses.wrapping_add(1), Ordering::Relaxed);
    }
    permits
}

/// The one full fence of a batch; the revoker's is in [`publish`]. Behind it a user sees what the
/// granter put into a page before it was granted.
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}

/// Whether every use may go on that was claimed since [`announced`] said `before`: the pages stay
/// until [`release`]. Otherwise [`holds`] tells for each.
#[inline]
pub fn undisturbed(table: &impl Announcements, before: u64) -> bool {
    table.announcements(Ordering::Relaxed) == before
}

/// Whether a use that was claimed may go on: the page stays until [`release`].
#[inline]
pub fn holds(words: &impl EntryWords, gref: GrantRef, write: bool) -> bool {
    Translation(words.translation(Ordering::Acquire)).permits(gref, write)
}

/// The user ends a use that was claimed, whether it held or not.
#[inline]
pub fn release(status: &impl StatusWord) {
    let uses = status.status(Ordering::Relaxed);
    // Release: who sees the count has all accesses to the page behind it.
    status.set_status(uses.wrapping_sub(1), Ordering::Release);
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

#[cfg(all(test, not(loom)))]
mod exhaustive;
#[cfg(all(test, loom))]
mod model;
