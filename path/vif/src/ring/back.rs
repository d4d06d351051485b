//! The backend's end of a ring: takes requests, gives responses.

use super::end::{End, Side};
use super::journal::Journal;
use super::slots::Slots;
use super::words::{Index, Pages, Words};
use shmem::Span;
use std::sync::atomic::Ordering;

/// The backend's handle of a ring whose requests have `REQ` words and whose responses have `RSP`.
pub type Back<W, const REQ: usize, const RSP: usize> = End<BackSide, W, RSP, REQ>;

/// The backend: it responds to what it has consumed, and nothing else.
#[derive(Debug)]
pub struct BackSide;

impl Side for BackSide {
    const OUT: (Index, Index) = (Index::RspProd, Index::RspEvent);
    const IN: (Index, Index) = (Index::ReqProd, Index::ReqEvent);

    #[inline]
    fn out_end(cons: u32, _: u32) -> u32 {
        cons
    }

    #[inline]
    fn in_end(prod: u32, _: u32, slots: u32) -> u32 {
        prod.wrapping_add(slots)
    }
}

impl<W: Words, const REQ: usize, const RSP: usize> Back<W, REQ, RSP> {
    /// A view of a ring in which no request was answered yet.
    #[must_use]
    pub fn new(words: W) -> Self {
        let (requests, responses) = Slots::of::<REQ, RSP>(&words);
        Self::over(words, responses, requests)
    }

    /// The first of the requests that are ready, as many as were copied out together: none if none
    /// is ready.
    #[must_use]
    #[inline]
    pub fn burst(&mut self) -> &[[u32; REQ]] {
        self.peer.burst(&self.words)
    }

    /// Requests that were consumed and not yet answered.
    #[must_use]
    #[inline]
    pub fn owed(&self) -> u32 {
        self.room()
    }

    /// Writes a response; whether there was a request to answer (RING-6).
    #[inline]
    pub fn respond(&mut self, response: [u32; RSP]) -> bool {
        self.write(response).is_some()
    }

    /// Writes responses, as many as there are requests to answer.
    #[inline]
    pub fn respond_all(&mut self, responses: &[[u32; RSP]]) {
        self.write_all(responses);
    }

    /// Responses about which [`End::should_notify`] was not asked yet.
    #[must_use]
    #[inline]
    pub fn unnotified(&self) -> u32 {
        self.out.unnotified()
    }
}

impl<const REQ: usize, const RSP: usize> Back<Pages, REQ, RSP> {
    /// Takes over a ring whose backend is no more (RING-16): goes on behind the responses that it
    /// has published, and has the requests behind them as they were, for of those it may have
    /// written over some. Notes in `journal` from now on what it takes. Before anything else.
    pub fn resume(&mut self, journal: Journal) {
        self.words.keep_journal(journal);
        let [published, made] = [Index::RspProd, Index::ReqProd]
            .map(|index| self.words.index(index, Ordering::Acquire));
        // More than a ring holds: the first look at the ring will say so.
        let unanswered = made.wrapping_sub(published).min(self.slots());
        for ahead in 0..unanswered {
            let index = published.wrapping_add(ahead);
            if let Some(request) = self.words.noted::<REQ>(index) {
                self.peer.put_back(&self.words, index, request);
            }
        }
        self.peer.resume(published);
        self.out.resume(published);
    }

    /// A look at whether there are more than `beyond` requests, until more are consumed.
    #[must_use]
    pub fn watch(&self, beyond: u32) -> Watch {
        Watch {
            word: self.words.word(Index::ReqProd),
            idle: self.peer.cons.wrapping_add(beyond),
        }
    }
}

/// What a ring shows while its front makes no further request. A driver with many rings looks at
/// this word of each, and at nothing else of those that are idle.
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

    /// Whether there is certainly nothing new. If not, [`End::pending`] says what there is.
    #[must_use]
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.word.load_u32(0) == Ok(self.idle)
    }
}
