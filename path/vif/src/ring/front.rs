//! The frontend's end of a ring: gives requests, takes responses.

use super::end::{End, Side};
use super::slots::Slots;
use super::words::{Index, Words};
use std::sync::atomic::Ordering;

/// The frontend's handle of a ring whose requests have `REQ` words and whose responses have `RSP`.
pub type Front<W, const REQ: usize, const RSP: usize> = End<FrontSide, W, REQ, RSP>;

/// The frontend: a request is free once its response was consumed.
#[derive(Debug)]
pub struct FrontSide;

impl Side for FrontSide {
    const OUT: (Index, Index) = (Index::ReqProd, Index::ReqEvent);
    const IN: (Index, Index) = (Index::RspProd, Index::RspEvent);

    #[inline]
    fn out_end(cons: u32, slots: u32) -> u32 {
        cons.wrapping_add(slots)
    }

    #[inline]
    fn in_end(_: u32, published: u32, _: u32) -> u32 {
        published
    }
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
        Self::over(words, requests, responses)
    }

    /// Goes on as if everything before index `at` had been answered and collected.
    #[cfg(all(test, not(loom)))]
    pub(super) fn skip_to(&mut self, at: u32) {
        self.out.resume(at);
        self.peer.resume(at);
    }

    /// Requests that may be written now.
    #[must_use]
    #[inline]
    pub fn free(&self) -> u32 {
        self.room()
    }

    /// Requests that were written and whose response was not consumed yet.
    #[must_use]
    #[inline]
    pub fn owed(&self) -> u32 {
        self.out.prod.wrapping_sub(self.peer.cons)
    }

    /// Writes a request; its index, or none if the ring is full.
    #[inline]
    pub fn request(&mut self, request: [u32; REQ]) -> Option<u32> {
        self.write(request)
    }

    /// Writes requests, as many as the ring has room for.
    #[inline]
    pub fn request_all(&mut self, requests: &[[u32; REQ]]) {
        self.write_all(requests);
    }

    /// Index of the next request.
    #[must_use]
    #[inline]
    pub fn prod(&self) -> u32 {
        self.out.prod
    }

    /// Index of the next response.
    #[must_use]
    #[inline]
    pub fn next(&self) -> u32 {
        self.peer.cons
    }

    /// Asks the back not to notify of responses.
    #[inline]
    pub fn disarm(&mut self) {
        let event = self.peer.cons;
        self.words
            .set_index(Index::RspEvent, event, Ordering::Relaxed);
    }

    /// Where a request or response with this index lies: a number below [`End::slots`].
    #[must_use]
    #[inline]
    pub fn slot(&self, index: u32) -> usize {
        self.out.slots.masked(index) as usize
    }
}
