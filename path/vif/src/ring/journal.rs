//! The journal of a ring: copies of the requests that a backend has taken, in memory that outlives
//! it (RING-15).
//!
//! In Xen's format a response overwrites its request before it is published. A backend that dies in
//! between has destroyed requests which its successor has to answer. So each request is copied here
//! before anything is written over it, and the successor puts back what the ring lacks.
//!
//! ```text
//!   entry of slot n, at 32 n
//!    0  u32 index       of the request
//!    4  u32 noted       1: index and words are there
//!    8  u32 words[3]    the request
//! ```
//!
//! OWNERSHIP. The memory is this domain's own; no peer can touch it. The process that
//! has the ring's back end writes it, one process after the other.

use shmem::Span;

/// Bytes of an entry.
const ENTRY: usize = 32;
/// Words that an entry has room for.
const WORDS: usize = 3;

/// A ring's journal; an empty span keeps none.
#[derive(Clone, Copy, Debug)]
pub struct Journal(Span);

impl Journal {
    /// A ring that has none.
    pub const NONE: Self = Self(Span::EMPTY);

    /// Bytes of the journal of a ring of `slots` slots.
    #[must_use]
    pub const fn bytes(slots: u32) -> usize {
        slots as usize * ENTRY
    }

    /// The journal in `memory`; it was made full of zeros.
    #[must_use]
    pub const fn over(memory: Span) -> Self {
        Self(memory)
    }

    /// Whether there is one.
    #[inline]
    pub(super) const fn is_kept(self) -> bool {
        !self.0.is_empty()
    }

    /// Notes a request of slot `slot`. What was there before was answered long ago: the front could
    /// not have made this request otherwise.
    pub(super) fn note(self, slot: u32, index: u32, words: &[u32]) {
        let entry = self.entry(slot);
        // In this order: a process that is killed in between leaves the old index, which is not
        // looked for any more, or no entry at all.
        let _ = entry.write_words(8, words.get(..WORDS).unwrap_or(words));
        let _ = entry.store_u32(0, index);
        let _ = entry.store_u32(4, 1);
    }

    /// The request of slot `slot`, if it was the one with this index that was noted last.
    pub(super) fn noted<const N: usize>(self, slot: u32, index: u32) -> Option<[u32; N]> {
        const { assert!(N <= WORDS) };
        let entry = self.entry(slot);
        let is_noted = entry.load_u32(4) == Ok(1) && entry.load_u32(0) == Ok(index);
        let mut words = [0; N];
        (is_noted && entry.read_words(8, &mut words).is_ok()).then_some(words)
    }

    fn entry(self, slot: u32) -> Span {
        let entry = self.0.sub(slot as usize * ENTRY, ENTRY);
        entry.unwrap_or(Span::EMPTY)
    }
}
