//! The frontend's view of a ring: gives requests, takes responses.

use super::burst::{Slots, Window};
use super::{Index, Overrun, Words, passes};
use shmem::sync::fence;
use std::sync::atomic::Ordering;

/// The frontend's handle of a ring whose requests have `REQ` words and whose responses have `RSP`.
///
/// Indices count from 0 and wrap at 2^32; a slot's place is the index modulo the ring's size.
#[derive(Debug)]
pub struct Front<W, const REQ: usize, const RSP: usize> {
    words: W,
    requests: Slots,
    responses: Slots,
    /// Requests written.
    prod: u32,
    /// Requests published: what the back may see, and so may answer.
    published: u32,
    /// Requests about which the back was told, or did not want to be.
    told: u32,
    /// Responses consumed.
    cons: u32,
    /// `rsp_prod` as last read and found possible.
    seen: u32,
    window: Window<RSP>,
}

impl<W: Words, const REQ: usize, const RSP: usize> Front<W, REQ, RSP> {
    /// A new, empty ring: writes its indices (RING-4).
    #[must_use]
    pub fn new(words: W) -> Self {
        let (requests, responses) = Slots::of::<REQ, RSP>(&words);
        for (index, value) in [
            (Index::ReqProd, 0),
            (Index::ReqEvent, 1),
            (Index::RspProd, 0),
            (Index::RspEvent, 1),
        ] {
            words.set_index(index, value, Ordering::Relaxed);
        }
        Self {
            words,
            requests,
            responses,
            prod: 0,
            published: 0,
            told: 0,
            cons: 0,
            seen: 0,
            window: Window::new(),
        }
    }

    /// Slots of the ring.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.requests.slots
    }

    /// Requests that may be written now.
    #[must_use]
    #[inline]
    pub fn free(&self) -> u32 {
        self.slots().wrapping_sub(self.owed())
    }

    /// Requests that were written and whose response was not consumed yet.
    #[must_use]
    #[inline]
    pub fn owed(&self) -> u32 {
        self.prod.wrapping_sub(self.cons)
    }

    /// Writes a request; its index, or none if the ring is full.
    #[inline]
    pub fn request(&mut self, request: [u32; REQ]) -> Option<u32> {
        if self.free() == 0 {
            return None;
        }
        let index = self.prod;
        self.requests.write(&self.words, index, request);
        self.prod = index.wrapping_add(1);
        Some(index)
    }

    /// Writes requests, as many as the ring has room for.
    #[inline]
    pub fn request_all(&mut self, requests: &[[u32; REQ]]) {
        let count = requests.len().min(self.free() as usize);
        let requests = requests.get(..count).unwrap_or(&[]);
        self.requests.write_all(&self.words, self.prod, requests);
        self.prod = self.prod.wrapping_add(count as u32);
    }

    /// Lets the back see every request written so far: one store for a whole batch.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.prod {
            self.published = self.prod;
            // Release: who sees the index sees the requests.
            self.words
                .set_index(Index::ReqProd, self.prod, Ordering::Release);
        }
    }

    /// Whether anything was written about which [`Front::should_notify`] was not asked yet.
    #[must_use]
    #[inline]
    pub fn has_news(&self) -> bool {
        self.told != self.prod
    }

    /// Whether the back wants to be told about what was published since this was last asked.
    /// A `fence(SeqCst)` must lie between [`Front::publish`] and this (RING-9).
    #[must_use]
    #[inline]
    pub fn should_notify(&mut self) -> bool {
        if self.told == self.published {
            return false;
        }
        let event = self.words.index(Index::ReqEvent, Ordering::Relaxed);
        let old = std::mem::replace(&mut self.told, self.published);
        passes(event, old, self.published)
    }

    /// Responses that can be read without looking at the shared index again.
    #[must_use]
    #[inline]
    pub fn ready(&self) -> u32 {
        self.seen.wrapping_sub(self.cons)
    }

    /// Makes sure that `want` responses are ready, if the back published so many: the shared
    /// index is read only if it has to be. How many are ready.
    ///
    /// # Errors
    /// [`Overrun`]: responses to requests that were never made (RING-5).
    #[inline]
    pub fn ready_for(&mut self, want: u32) -> Result<u32, Overrun> {
        if self.ready() >= want {
            return Ok(self.ready());
        }
        // Acquire: the responses are read after the index that covers them.
        let prod = self.words.index(Index::RspProd, Ordering::Acquire);
        let new = prod.wrapping_sub(self.cons);
        if new > self.published.wrapping_sub(self.cons) || new < self.ready() {
            return Err(Overrun);
        }
        self.seen = prod;
        Ok(self.ready())
    }

    /// Index of the next request.
    #[must_use]
    #[inline]
    pub fn prod(&self) -> u32 {
        self.prod
    }

    /// Index of the next response.
    #[must_use]
    #[inline]
    pub fn next(&self) -> u32 {
        self.cons
    }

    /// Response number `ahead` of those that are ready; none if it is not. It is copied out with
    /// those behind it.
    #[must_use]
    #[inline(always)]
    pub fn peek(&mut self, ahead: u32) -> Option<[u32; RSP]> {
        if ahead >= self.ready() {
            return None;
        }
        let index = self.cons.wrapping_add(ahead);
        self.window
            .get(&self.words, &self.responses, index, self.seen)
    }

    /// The next `count` responses are consumed.
    #[inline]
    pub fn consume(&mut self, count: u32) {
        self.cons = self.cons.wrapping_add(count.min(self.ready()));
    }

    /// Asks the back to tell when there are more than `beyond` unconsumed responses. A
    /// `fence(SeqCst)` must lie between this and the last look at [`Front::pending`] before
    /// sleeping (RING-10).
    #[inline]
    pub fn arm(&mut self, beyond: u32) {
        let event = self.cons.wrapping_add(beyond).wrapping_add(1);
        self.words
            .set_index(Index::RspEvent, event, Ordering::Relaxed);
    }

    /// Asks the back not to tell about responses.
    #[inline]
    pub fn disarm(&mut self) {
        self.words
            .set_index(Index::RspEvent, self.cons, Ordering::Relaxed);
    }

    /// How many unconsumed responses the shared index speaks of. Any number, if the peer is
    /// hostile: only [`Front::ready_for`] judges it.
    #[must_use]
    #[inline]
    pub fn pending(&self) -> u32 {
        self.words
            .index(Index::RspProd, Ordering::Acquire)
            .wrapping_sub(self.cons)
    }

    /// [`Front::arm`], fence, [`Front::pending`]: whether sleeping is wrong because there are
    /// more than `beyond` responses after all.
    #[must_use]
    pub fn prepare_sleep(&mut self, beyond: u32) -> bool {
        self.arm(beyond);
        fence(Ordering::SeqCst);
        self.pending() > beyond
    }

    /// Where a request or response with this index lies: a number below [`Front::slots`].
    #[must_use]
    #[inline]
    pub fn slot(&self, index: u32) -> usize {
        (index & self.slots().wrapping_sub(1)) as usize
    }
}
