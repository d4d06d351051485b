//! The user's side: a domain's.

use super::revoker::{Word, Words, announcements};
use crate::span::Span;
use crate::sync::Ordering;
use abi::GrantRef;
use abi::counted::Translation;
use std::sync::atomic::{AtomicU32, AtomicU64};

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

/// The user begins a batch: what has been announced so far. [`undisturbed`] wants it.
#[inline]
pub fn announced(announcements: &impl Word<u64>) -> u64 {
    // Acquire: entries announced by then are seen to be so.
    announcements.load(Ordering::Acquire)
}

/// The user begins a use; whether the entry permits it. Counts only if so. [`super::full_fence`]
/// must lie between the claims of a batch and [`undisturbed`].
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

/// Whether every use may go on that was claimed since [`announced`] said `before`: the pages stay
/// until [`release`]. Otherwise [`holds`] tells for each.
#[inline]
pub fn undisturbed(announcements: &impl Word<u64>, before: u64) -> bool {
    announcements.load(Ordering::Relaxed) == before
}

/// Whether a use that was claimed may go on: the page stays until [`release`].
#[inline]
pub fn holds(translation: &impl Word<u64>, gref: GrantRef, write: bool) -> bool {
    Translation(translation.load(Ordering::Acquire)).permits(gref, write)
}

/// The user ends a use that was claimed, whether it held or not.
#[inline]
pub fn release(status: &impl Word<u32>) {
    let uses = status.load(Ordering::Relaxed);
    // Release: who sees the count has all accesses to the page behind it.
    status.store(uses.wrapping_sub(1), Ordering::Release);
}
