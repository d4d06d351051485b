//! The backend's view of a ring: takes requests, gives responses.

use super::{Overrun, REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, Words, passes, place, slots};
use shmem::sync::fence;
use std::sync::atomic::Ordering;

/// The backend's handle of a ring whose slots have `N` words.
///
/// Indices count from 0 and wrap at 2^32; a slot's place is the index modulo the ring's size.
#[derive(Debug)]
pub struct Back<W, const N: usize> {
    words: W,
    slots: u32,
    /// `req_prod` as last read and found possible.
    seen: u32,
    /// Requests consumed.
    cons: u32,
    /// Responses written.
    prod: u32,
    /// Responses published: what the front may see.
    published: u32,
    /// Responses about which the front was told, or did not want to be.
    told: u32,
}

impl<W: Words, const N: usize> Back<W, N> {
    /// A view of a ring in which no request was answered yet.
    #[must_use]
    pub fn new(words: W) -> Self {
        let slots = slots(words.pages().trailing_zeros() as u8);
        Self {
            words,
            slots,
            seen: 0,
            cons: 0,
            prod: 0,
            published: 0,
            told: 0,
        }
    }

    /// Slots of the ring.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Requests that can be read without looking at the shared index again.
    #[must_use]
    #[inline]
    pub fn ready(&self) -> u32 {
        self.seen.wrapping_sub(self.cons)
    }

    /// Makes sure that `want` requests are ready, if the front published so many: the shared
    /// index is read only if it has to be (it is a cache line that the front writes). How many
    /// are ready.
    ///
    /// # Errors
    /// [`Overrun`] (RING-5).
    #[inline]
    pub fn ready_for(&mut self, want: u32) -> Result<u32, Overrun> {
        if self.ready() >= want {
            return Ok(self.ready());
        }
        // Acquire: the requests are read after the index that covers them.
        let prod = self.words.load(0, REQ_PROD, Ordering::Acquire);
        let unanswered = self.cons.wrapping_sub(self.prod);
        if prod.wrapping_sub(self.cons) > self.slots.wrapping_sub(unanswered)
            || prod.wrapping_sub(self.cons) < self.ready()
        {
            return Err(Overrun);
        }
        self.seen = prod;
        Ok(self.ready())
    }

    /// Copies out request number `ahead` of those that are ready; none if it is not.
    #[must_use]
    #[inline]
    pub fn peek(&self, ahead: u32) -> Option<[u32; N]> {
        if ahead >= self.ready() {
            return None;
        }
        let (page, offset) = self.place(self.cons.wrapping_add(ahead));
        Some(self.words.slot(page, offset))
    }

    /// The next `count` requests are consumed: each is owed a response.
    #[inline]
    pub fn consume(&mut self, count: u32) {
        self.cons = self.cons.wrapping_add(count.min(self.ready()));
    }

    /// Requests that were consumed and not yet answered.
    #[must_use]
    #[inline]
    pub fn owed(&self) -> u32 {
        self.cons.wrapping_sub(self.prod)
    }

    /// Writes a response; whether there was a request to answer (RING-6). The words that a
    /// response does not have stay as they are.
    #[inline]
    pub fn respond<const M: usize>(&mut self, response: [u32; M]) -> bool {
        const { assert!(M <= N) };
        if self.owed() == 0 {
            return false;
        }
        let (page, offset) = self.place(self.prod);
        self.words.set_slot(page, offset, response);
        self.prod = self.prod.wrapping_add(1);
        true
    }

    /// Lets the front see every response written so far: one store for a whole batch.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.prod {
            self.published = self.prod;
            // Release: who sees the index sees the responses.
            self.words.store(0, RSP_PROD, self.prod, Ordering::Release);
        }
    }

    /// Whether anything was written about which [`Back::should_notify`] was not asked yet.
    #[must_use]
    #[inline]
    pub fn has_news(&self) -> bool {
        self.told != self.prod
    }

    /// Responses about which [`Back::should_notify`] was not asked yet.
    #[must_use]
    #[inline]
    pub fn untold(&self) -> u32 {
        self.prod.wrapping_sub(self.told)
    }

    /// Whether the front wants to be told about what was published since this was last asked.
    /// A `fence(SeqCst)` must lie between [`Back::publish`] and this; one fence serves any number
    /// of rings (RING-9).
    #[must_use]
    #[inline]
    pub fn should_notify(&mut self) -> bool {
        if self.told == self.published {
            return false;
        }
        let event = self.words.load(0, RSP_EVENT, Ordering::Relaxed);
        let old = std::mem::replace(&mut self.told, self.published);
        passes(event, old, self.published)
    }

    /// Asks the front to tell when there are more than `beyond` unconsumed requests. A
    /// `fence(SeqCst)` must lie between this and the last look at [`Back::pending`] before
    /// sleeping (RING-10).
    #[inline]
    pub fn arm(&mut self, beyond: u32) {
        let event = self.cons.wrapping_add(beyond).wrapping_add(1);
        self.words.store(0, REQ_EVENT, event, Ordering::Relaxed);
    }

    /// How many unconsumed requests the shared index speaks of. Any number, if the peer is
    /// hostile: only [`Back::ready_for`] judges it.
    #[must_use]
    #[inline]
    pub fn pending(&self) -> u32 {
        self.words
            .load(0, REQ_PROD, Ordering::Acquire)
            .wrapping_sub(self.cons)
    }

    /// [`Back::arm`], fence, [`Back::pending`]: whether sleeping is wrong because there are more
    /// than `beyond` requests after all.
    #[must_use]
    pub fn prepare_sleep(&mut self, beyond: u32) -> bool {
        self.arm(beyond);
        fence(Ordering::SeqCst);
        self.pending() > beyond
    }

    #[inline]
    fn place(&self, index: u32) -> (usize, usize) {
        place::<N>(index & self.slots.wrapping_sub(1))
    }
}
