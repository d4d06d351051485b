//! The frontend's end of a ring, which makes requests and takes responses.

use super::end::{RingEnd, RingSide};
use super::slots::SlotPositions;
use super::words::{RingIndex, RingMemory};
use std::sync::atomic::Ordering;

/// The frontend's handle of a ring whose requests have `REQ` words and whose responses have `RSP`.
pub type Front<W, const REQ: usize, const RSP: usize> = RingEnd<FrontSide, W, REQ, RSP>;

/// The frontend's side. A request's slot is free once its response has been consumed.
#[derive(Debug)]
pub struct FrontSide;

impl RingSide for FrontSide {
    const OUT: (RingIndex, RingIndex) = (RingIndex::ReqProd, RingIndex::ReqEvent);
    const IN: (RingIndex, RingIndex) = (RingIndex::RspProd, RingIndex::RspEvent);

    #[inline]
    fn out_end(cons: u32, slots: u32) -> u32 {
        cons.wrapping_add(slots)
    }

    #[inline]
    fn in_end(_: u32, published: u32, _: u32) -> u32 {
        published
    }
}

impl<W: RingMemory, const REQ: usize, const RSP: usize> Front<W, REQ, RSP> {
    /// Creates an empty ring by writing its indices (RING-4).
    #[must_use]
    pub fn new(words: W) -> Self {
        let (requests, responses) = SlotPositions::of::<REQ, RSP>(&words);
        for (index, value) in [
            (RingIndex::ReqProd, 0),
            (RingIndex::ReqEvent, 1),
            (RingIndex::RspProd, 0),
            (RingIndex::RspEvent, 1),
        ] {
            words.set_index(index, value, Ordering::Relaxed);
        }
        Self::with_positions(words, requests, responses)
    }

    /// Continues as if all requests before index `at` had been answered and consumed.
    #[cfg(all(test, not(loom)))]
    pub(super) fn skip_to(&mut self, at: u32) {
        self.out.resume(at);
        self.peer.resume(at);
    }

    /// Returns the number of requests that may be written now.
    #[must_use]
    #[inline]
    pub fn free(&self) -> u32 {
        self.free_slots()
    }

    /// Returns the number of requests whose responses have not been consumed yet.
    #[must_use]
    #[inline]
    pub fn unanswered(&self) -> u32 {
        self.out.prod.wrapping_sub(self.peer.cons)
    }

    /// Writes a request; returns its index, or `None` if the ring is full.
    #[inline]
    pub fn request(&mut self, request: [u32; REQ]) -> Option<u32> {
        self.write(request)
    }

    /// Writes as many of `requests` as the ring has room for.
    #[inline]
    pub fn request_all(&mut self, requests: &[[u32; REQ]]) {
        self.write_all(requests);
    }

    /// Returns the index of the next request.
    #[must_use]
    #[inline]
    pub fn prod(&self) -> u32 {
        self.out.prod
    }

    /// Returns the index of the next response.
    #[must_use]
    #[inline]
    pub fn next(&self) -> u32 {
        self.peer.cons
    }

    /// Disables the back's notifications of responses.
    #[inline]
    pub fn disarm(&mut self) {
        let event = self.peer.cons;
        self.words
            .set_index(RingIndex::RspEvent, event, Ordering::Relaxed);
    }

    /// Returns the slot number of a request or response index, which is below [`RingEnd::slots`].
    #[must_use]
    #[inline]
    pub fn slot(&self, index: u32) -> usize {
        self.out.slots.masked(index) as usize
    }
}
