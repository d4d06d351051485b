//! The user's side, which domains execute.

use super::revoker::{EntryWords, Word, announcements};
use crate::span::Span;
use crate::sync::Ordering;
use abi::GrantRef;
use abi::counted::Translation;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The words of every entry of both sub-tables.
#[derive(Clone, Copy, Debug)]
pub struct TableWords {
    translation: &'static [AtomicU64],
    status: &'static [AtomicU32],
    /// The count of announcements.
    pub announcements: &'static AtomicU64,
}

impl TableWords {
    /// Returns the words of the first `count` entries, if both sub-tables are long enough.
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

    /// Returns the words of entry `index`, if it exists.
    #[inline]
    #[must_use]
    pub fn words(&self, index: u32) -> Option<EntryWords> {
        Some(EntryWords {
            translation: self.translation.get(index as usize)?,
            status: self.status.get(index as usize)?,
        })
    }
}

/// Begins a batch of uses. Returns the count of announcements so far, for [`is_unchanged`].
#[inline]
pub fn announced(announcements: &impl Word<u64>) -> u64 {
    // Acquire: the announcements counted so far are visible.
    announcements.load(Ordering::Acquire)
}

/// Begins a use. Returns whether the entry permits it, and counts the use only in this case. After
/// the claims of a batch, the caller must call [`super::full_fence`] and then [`is_unchanged`].
#[inline]
pub fn claim(
    translation: &impl Word<u64>,
    status: &impl Word<u32>,
    gref: GrantRef,
    write: bool,
) -> bool {
    let permits = Translation(translation.load(Ordering::Relaxed)).permits(gref, write);
    if permits {
        let uses = status.load(Ordering::Relaxed);
        status.store(uses.wrapping_add(1), Ordering::Relaxed);
    }
    permits
}

/// Returns whether all uses claimed since the call of [`announced`] that returned `before` may
/// continue: their pages stay mapped until [`release`]. If it returns false, check each use by
/// [`still_permits`].
#[inline]
pub fn is_unchanged(announcements: &impl Word<u64>, before: u64) -> bool {
    announcements.load(Ordering::Relaxed) == before
}

/// Returns whether a claimed use may continue: the page stays mapped until [`release`].
#[inline]
pub fn still_permits(translation: &impl Word<u64>, gref: GrantRef, write: bool) -> bool {
    Translation(translation.load(Ordering::Acquire)).permits(gref, write)
}

/// Ends a claimed use, whatever [`still_permits`] returned.
#[inline]
pub fn release(status: &impl Word<u32>) {
    let uses = status.load(Ordering::Relaxed);
    // Release: all accesses to the page precede the new count.
    status.store(uses.wrapping_sub(1), Ordering::Release);
}
