//! How a use of a grant and its revocation meet (`specs/grants.md`, N-7 … N-12).
//!
//! ```text
//!   user, for a whole batch                     revoker (the monitor)
//!   claim: read the entry, count one use
//!   settle: one full fence                      announce: entry ← revoking
//!   holds: read the entry again                 settle: one full fence
//!   … touches the page …                        idle: read the count
//!   release: count one use less
//! ```
//!
//! With a full fence on both sides, either the user sees the entry changed and does not touch the
//! page, or the revoker sees the count and does not take the page away. A user that does not
//! keep to this harms itself alone: it faults.

use crate::Span;
use crate::sync::{Ordering, fence};
use abi::GrantRef;
use abi::ngm::Translation;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The two words of an entry. One thread counts uses; another one (the monitor's) changes the
/// translation.
pub trait EntryWords {
    /// Reads the translation sub-table's word.
    fn translation(&self, order: Ordering) -> u64;
    /// Writes it.
    fn set_translation(&self, value: u64, order: Ordering);
    /// Reads the status sub-table's word.
    fn status(&self, order: Ordering) -> u32;
    /// Writes it.
    fn set_status(&self, value: u32, order: Ordering);
}

/// The words of an entry in shared memory. Who may only read the translation sub-table faults if
/// it sets one.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    translation: &'static AtomicU64,
    status: &'static AtomicU32,
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
}

impl Entries {
    /// Those of the first `count` entries, if both sub-tables reach so far.
    #[must_use]
    pub fn of(translation: Span, status: Span, count: u32) -> Option<Self> {
        let count = count as usize;
        Some(Self {
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

impl EntryWords for Words {
    #[inline]
    fn translation(&self, order: Ordering) -> u64 {
        self.translation.load(order)
    }

    #[inline]
    fn set_translation(&self, value: u64, order: Ordering) {
        self.translation.store(value, order);
    }

    #[inline]
    fn status(&self, order: Ordering) -> u32 {
        self.status.load(order)
    }

    #[inline]
    fn set_status(&self, value: u32, order: Ordering) {
        self.status.store(value, order);
    }
}

/// The user begins a use; whether the entry permits it. Counts only if so. [`settle`] must lie
/// between the claims of a batch and the first [`holds`].
#[inline]
pub fn claim(words: &impl EntryWords, gref: GrantRef, write: bool) -> bool {
    let permits = Translation(words.translation(Ordering::Relaxed)).permits(gref, write);
    if permits {
        let uses = words.status(Ordering::Relaxed);
        words.set_status(uses.wrapping_add(1), Ordering::Relaxed);
    }
    permits
}

/// The one full fence of a batch, on either side.
#[inline]
pub fn settle() {
    fence(Ordering::SeqCst);
}

/// Whether a use that was claimed may go on: the page stays until [`release`].
#[inline]
pub fn holds(words: &impl EntryWords, gref: GrantRef, write: bool) -> bool {
    // Acquire: what the granter put into the page before it was granted is seen.
    Translation(words.translation(Ordering::Acquire)).permits(gref, write)
}

/// The user ends a use that was claimed, whether it held or not.
#[inline]
pub fn release(words: &impl EntryWords) {
    let uses = words.status(Ordering::Relaxed);
    // Release: who sees the count has all accesses to the page behind it.
    words.set_status(uses.wrapping_sub(1), Ordering::Release);
}

/// The revoker announces that it wants the page: no new use begins. [`settle`] must lie between
/// the announcements of a batch and the first [`idle`].
#[inline]
pub fn announce(words: &impl EntryWords, entry: Translation) {
    words.set_translation(entry.revoking().0, Ordering::Relaxed);
}

/// Whether no use of an announced entry is under way, so that the page can be taken away.
#[inline]
pub fn idle(words: &impl EntryWords) -> bool {
    words.status(Ordering::Acquire) == 0
}

#[cfg(all(test, not(loom)))]
mod exhaustive;
#[cfg(all(test, loom))]
mod model;
