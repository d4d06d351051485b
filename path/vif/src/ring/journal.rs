//! The journal of a ring: copies of the requests that a backend has taken, in memory that outlives
//! it (RING-15).
//!
//! In Xen's format a response overwrites its request before it is published. A backend that dies in
//! between has destroyed requests that its successor must answer. So each request is copied here
//! before its slot is overwritten, and the successor restores missing requests from here.
//!
//! ```text
//!   entry of slot n, at 32 n
//!    0  u32 index       of the request
//!    4  u32 noted       1: index and words are valid
//!    8  u32 words[3]    the request
//! ```
//!
//! OWNERSHIP. The memory belongs to this domain; no peer can access it. The process with the ring's
//! back end writes it; after a restart, its successor does.

use shmem::Span;

/// Bytes of an entry.
const ENTRY: usize = 32;
/// Maximum words of a request.
const WORDS: usize = 3;

/// A ring's journal; an empty span disables it.
#[derive(Clone, Copy, Debug)]
pub struct Journal(Span);

impl Journal {
    /// No journal.
    pub const NONE: Self = Self(Span::EMPTY);

    /// Returns the size in bytes of the journal of a ring of `slots` slots.
    #[must_use]
    pub const fn bytes(slots: u32) -> usize {
        slots as usize * ENTRY
    }

    /// Opens the journal in `memory`, which must start zeroed.
    #[must_use]
    pub const fn in_memory(memory: Span) -> Self {
        Self(memory)
    }

    /// Returns whether the ring has a journal.
    #[inline]
    pub(super) const fn exists(self) -> bool {
        !self.0.is_empty()
    }

    /// Records the request in slot `slot`. The previous request in the slot was answered; otherwise
    /// the front could not have reused the slot.
    pub(super) fn record_request(self, slot: u32, index: u32, words: &[u32]) {
        let entry = self.entry(slot);
        // The order matters: a process that is killed in between leaves either the old index, for
        // which no request is pending, or an invalid entry.
        let _ = entry.write_words(8, words.get(..WORDS).unwrap_or(words));
        let _ = entry.store_u32(0, index);
        let _ = entry.store_u32(4, 1);
    }

    /// Returns the last request recorded for slot `slot` if it has this index.
    pub(super) fn recorded_request<const N: usize>(
        self,
        slot: u32,
        index: u32,
    ) -> Option<[u32; N]> {
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
