//! The backend's end of a ring, which takes requests and writes responses.

use super::end::{RingEnd, RingSide};
use super::journal::Journal;
use super::slots::SlotPositions;
use super::words::{GrantedRingPages, RingIndex, RingMemory};
use shmem::Span;
use std::sync::atomic::Ordering;

/// The backend's handle of a ring whose requests have `REQ` words and whose responses have `RSP`.
pub type Back<W, const REQ: usize, const RSP: usize> = RingEnd<BackSide, W, RSP, REQ>;

/// The backend's side. It responds only to requests that it has consumed.
#[derive(Debug)]
pub struct BackSide;

impl RingSide for BackSide {
    const OUT: (RingIndex, RingIndex) = (RingIndex::RspProd, RingIndex::RspEvent);
    const IN: (RingIndex, RingIndex) = (RingIndex::ReqProd, RingIndex::ReqEvent);

    #[inline]
    fn out_end(cons: u32, _: u32) -> u32 {
        cons
    }

    #[inline]
    fn in_end(prod: u32, _: u32, slots: u32) -> u32 {
        prod.wrapping_add(slots)
    }
}

impl<W: RingMemory, const REQ: usize, const RSP: usize> Back<W, REQ, RSP> {
    /// Opens a ring in which no request has been answered yet.
    #[must_use]
    pub fn new(words: W) -> Self {
        let (requests, responses) = SlotPositions::of::<REQ, RSP>(&words);
        Self::with_positions(words, responses, requests)
    }

    /// Returns the ready requests at the head of the ring that were copied out together; empty if
    /// none is ready.
    #[must_use]
    #[inline]
    pub fn burst(&mut self) -> &[[u32; REQ]] {
        self.peer.burst(&self.words)
    }

    /// Returns the number of requests consumed and not yet answered.
    #[must_use]
    #[inline]
    pub fn unanswered(&self) -> u32 {
        self.free_slots()
    }

    /// Writes a response. Returns false, without effect, if no consumed request lacks one (RING-6).
    #[inline]
    pub fn respond(&mut self, response: [u32; RSP]) -> bool {
        self.write(response).is_some()
    }

    /// Writes responses, at most one for each consumed request without one.
    #[inline]
    pub fn respond_all(&mut self, responses: &[[u32; RSP]]) {
        self.write_all(responses);
    }

    /// Returns the number of responses that [`RingEnd::should_notify`] has not covered yet.
    #[must_use]
    #[inline]
    pub fn unnotified(&self) -> u32 {
        self.out.unnotified()
    }
}

impl<const REQ: usize, const RSP: usize> Back<GrantedRingPages, REQ, RSP> {
    /// Takes over a ring whose backend died (RING-16): continues behind that backend's published
    /// responses, and restores the following requests, some of which it may have overwritten. From
    /// now on, records taken requests in `journal`. The caller must call this before any other
    /// function of the ring.
    pub fn resume(&mut self, journal: Journal) {
        self.words.keep_journal(journal);
        let [published, made] = [RingIndex::RspProd, RingIndex::ReqProd]
            .map(|index| self.words.index(index, Ordering::Acquire));
        // If the front claims more than the ring's slots, the first read of the ring reports the
        // overrun.
        let unanswered = made.wrapping_sub(published).min(self.slots());
        for ahead in 0..unanswered {
            let index = published.wrapping_add(ahead);
            if let Some(request) = self.words.recorded_slot::<REQ>(index) {
                self.peer.put_back(&self.words, index, request);
            }
        }
        self.peer.resume(published);
        self.out.resume(published);
    }

    /// Returns a check for more than `beyond` unconsumed requests, valid until more are consumed.
    #[must_use]
    pub fn watch(&self, beyond: u32) -> RingWatch {
        RingWatch {
            word: self.words.word(RingIndex::ReqProd),
            idle: self.peer.cons.wrapping_add(beyond),
        }
    }
}

/// A check for new requests in a ring. A driver with many rings reads only one word of each idle
/// ring.
#[derive(Clone, Copy, Debug)]
pub struct RingWatch {
    word: Span,
    idle: u32,
}

impl RingWatch {
    /// A watch without a ring. [`RingWatch::is_idle`] always returns false for it.
    pub const NONE: Self = Self {
        word: Span::EMPTY,
        idle: 0,
    };

    /// Returns true only if the front has made no further request. If this is false, check
    /// [`RingEnd::pending`].
    #[must_use]
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.word.load_u32(0) == Ok(self.idle)
    }
}
