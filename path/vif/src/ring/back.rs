//! The backend's view of a ring: takes requests, gives responses.

use super::Pages;
use super::burst::{Slots, Window};
use super::{Index, Overrun, Words, passes};
use shmem::Span;
use shmem::sync::fence;
use std::sync::atomic::Ordering;

/// The backend's handle of a ring whose requests have `REQ` words and whose responses have `RSP`.
///
/// Indices count from 0 and wrap at 2^32; a slot's place is the index modulo the ring's size.
#[derive(Debug)]
pub struct Back<W, const REQ: usize, const RSP: usize> {
    words: W,
    requests: Slots,
    responses: Slots,
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
    window: Window<REQ>,
}

impl<W: Words, const REQ: usize, const RSP: usize> Back<W, REQ, RSP> {
    /// A view of a ring in which no request was answered yet.
    #[must_use]
    pub fn new(words: W) -> Self {
        let (requests, responses) = Slots::of::<REQ, RSP>(&words);
        Self {
            words,
            requests,
            responses,
            seen: 0,
            cons: 0,
            prod: 0,
            published: 0,
            told: 0,
            window: Window::new(),
        }
    }

    /// Slots of the ring.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.requests.slots
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
        let prod = self.words.index(Index::ReqProd, Ordering::Acquire);
        let unanswered = self.cons.wrapping_sub(self.prod);
        if prod.wrapping_sub(self.cons) > self.slots().wrapping_sub(unanswered)
            || prod.wrapping_sub(self.cons) < self.ready()
        {
            return Err(Overrun);
        }
        self.seen = prod;
        Ok(self.ready())
    }

    /// Request number `ahead` of those that are ready; none if it is not. It is copied out with
    /// those behind it.
    #[must_use]
    #[inline(always)]
    pub fn peek(&mut self, ahead: u32) -> Option<[u32; REQ]> {
        if ahead >= self.ready() {
            return None;
        }
        let index = self.cons.wrapping_add(ahead);
        self.window
            .get(&self.words, &self.requests, index, self.seen)
    }

    /// The first of the requests that are ready, as many as were copied out together: none if none is ready.
    #[must_use]
    #[inline]
    pub fn burst(&mut self) -> &[[u32; REQ]] {
        if self.ready() == 0 {
            return &[];
        }
        self.window
            .burst(&self.words, &self.requests, self.cons, self.seen)
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

    /// Writes a response; whether there was a request to answer (RING-6).
    #[inline]
    pub fn respond(&mut self, response: [u32; RSP]) -> bool {
        if self.owed() == 0 {
            return false;
        }
        self.responses.write(&self.words, self.prod, response);
        self.prod = self.prod.wrapping_add(1);
        true
    }

    /// Writes responses, as many as there are requests to answer.
    #[inline]
    pub fn respond_all(&mut self, responses: &[[u32; RSP]]) {
        let count = responses.len().min(self.owed() as usize);
        let responses = responses.get(..count).unwrap_or(&[]);
        self.responses.write_all(&self.words, self.prod, responses);
        self.prod = self.prod.wrapping_add(count as u32);
    }

    /// Lets the front see every response written so far: one store for a whole batch.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.prod {
            self.published = self.prod;
            // Release: who sees the index sees the responses.
            self.words
                .set_index(Index::RspProd, self.prod, Ordering::Release);
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
        let event = self.words.index(Index::RspEvent, Ordering::Relaxed);
        let old = std::mem::replace(&mut self.told, self.published);
        passes(event, old, self.published)
    }

    /// Asks the front to tell when there are more than `beyond` unconsumed requests. A
    /// `fence(SeqCst)` must lie between this and the last look at [`Back::pending`] before
    /// sleeping (RING-10).
    #[inline]
    pub fn arm(&mut self, beyond: u32) {
        let event = self.cons.wrapping_add(beyond).wrapping_add(1);
        self.words
            .set_index(Index::ReqEvent, event, Ordering::Relaxed);
    }

    /// How many unconsumed requests the shared index speaks of. Any number, if the peer is
    /// hostile: only [`Back::ready_for`] judges it.
    #[must_use]
    #[inline]
    pub fn pending(&self) -> u32 {
        self.words
            .index(Index::ReqProd, Ordering::Acquire)
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
}

impl<const REQ: usize, const RSP: usize> Back<Pages, REQ, RSP> {
    /// A look at whether there are more than `beyond` requests, until more are consumed.
    #[must_use]
    pub fn watch(&self, beyond: u32) -> Watch {
        Watch {
            word: self.words.word(Index::ReqProd),
            idle: self.cons.wrapping_add(beyond),
        }
    }
}

/// What a ring shows while its front makes no further request: whoever has many rings looks at this
/// word of each, and at nothing else of those that are idle.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    word: Span,
    idle: u32,
}

impl Watch {
    /// Of no ring: never idle.
    pub const NONE: Self = Self {
        word: Span::EMPTY,
        idle: 0,
    };

    /// Whether there is certainly nothing new. If not, [`Back::pending`] says what there is.
    #[must_use]
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.word.load_u32(0) == Ok(self.idle)
    }
}
