//! One end of a ring: a producer and a consumer, which bound each other.

use super::consumer::{Consumer, Overrun};
use super::producer::Producer;
use super::slots::SlotPositions;
use super::words::{RingIndex, RingMemory};
use shmem::sync::fence;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// Differences between front and back.
pub trait RingSide {
    /// The index that publishes this end's slots, and the peer's event index for them.
    const OUT: (RingIndex, RingIndex);
    /// The peer's index that publishes its slots, and this end's event index for them.
    const IN: (RingIndex, RingIndex);

    /// Returns the first index that this end may not write yet, in a ring of `slots` slots of which
    /// it has consumed `cons`.
    fn out_end(cons: u32, slots: u32) -> u32;

    /// Returns the first index that the peer cannot have published yet, if this end has written
    /// `prod` slots and published `published` of them.
    fn in_end(prod: u32, published: u32, slots: u32) -> u32;
}

/// One end's handle of a ring: it writes slots of `OUT` words and reads slots of `IN` words.
///
/// Indices count from 0 and wrap at 2^32; a slot's position is the index modulo the ring's size.
#[derive(Debug)]
pub struct RingEnd<S, W, const OUT: usize, const IN: usize> {
    pub(super) words: W,
    pub(super) out: Producer<OUT>,
    pub(super) peer: Consumer<IN>,
    side: PhantomData<S>,
}

impl<S: RingSide, W: RingMemory, const OUT: usize, const IN: usize> RingEnd<S, W, OUT, IN> {
    pub(super) const fn with_positions(words: W, out: SlotPositions, peer: SlotPositions) -> Self {
        Self {
            words,
            out: Producer::new(out),
            peer: Consumer::new(peer),
            side: PhantomData,
        }
    }

    /// Returns the ring's number of slots.
    #[must_use]
    #[inline]
    pub const fn slots(&self) -> u32 {
        self.out.slots.count
    }

    /// Returns the number of slots that may be written now.
    #[inline]
    pub(super) fn free_slots(&self) -> u32 {
        S::out_end(self.peer.cons, self.slots()).wrapping_sub(self.out.prod)
    }

    /// Writes a slot; returns its index, or `None` if the ring has no room (RING-6).
    #[inline]
    pub(super) fn write(&mut self, slot: [u32; OUT]) -> Option<u32> {
        if self.free_slots() == 0 {
            return None;
        }
        let index = self.out.prod;
        self.out.write(&self.words, slot);
        Some(index)
    }

    /// Writes as many of `slots` as the ring has room for.
    #[inline]
    pub(super) fn write_all(&mut self, slots: &[[u32; OUT]]) {
        let count = slots.len().min(self.free_slots() as usize);
        self.out
            .write_all(&self.words, slots.get(..count).unwrap_or(&[]));
    }

    /// Publishes all slots written so far to the peer: one store for a whole batch.
    #[inline]
    pub fn publish(&mut self) {
        self.out.publish(&self.words, S::OUT.0);
    }

    /// Returns whether [`RingEnd::should_notify`] has not covered all written slots yet.
    #[must_use]
    #[inline]
    pub fn is_dirty(&self) -> bool {
        self.out.unnotified() != 0
    }

    /// Returns whether the peer has requested a notification of the slots published since the last
    /// call. A `fence(SeqCst)` must lie between [`RingEnd::publish`] and this; one fence serves any
    /// number of rings (RING-9).
    #[must_use]
    #[inline]
    pub fn should_notify(&mut self) -> bool {
        self.out.should_notify(&self.words, S::OUT.1)
    }

    /// Returns the number of slots that can be read without reading the shared index again.
    #[must_use]
    #[inline]
    pub const fn ready(&self) -> u32 {
        self.peer.ready()
    }

    /// Makes up to `want` of the peer's published slots ready, and returns the number of ready
    /// slots. Reads the shared index only if necessary.
    ///
    /// # Errors
    /// Returns [`Overrun`] if the peer claims requests for which the ring has no room, or responses
    /// to requests that were never made (RING-5).
    #[inline]
    pub fn ready_for(&mut self, want: u32) -> Result<u32, Overrun> {
        let end = S::in_end(self.out.prod, self.out.published, self.slots());
        self.peer.ready_for(&self.words, S::IN.0, want, end)
    }

    /// Returns ready slot number `ahead`, or `None` if it is not ready. Copies it out together with
    /// the slots behind it.
    #[must_use]
    #[inline(always)]
    pub fn peek(&mut self, ahead: u32) -> Option<[u32; IN]> {
        self.peer.peek(&self.words, ahead)
    }

    /// Like [`RingEnd::peek`], but first makes the slot [ready](RingEnd::ready_for) if the peer has
    /// published it.
    ///
    /// # Errors
    /// Returns [`Overrun`].
    #[inline]
    pub fn fetch(&mut self, ahead: u32) -> Result<Option<[u32; IN]>, Overrun> {
        if ahead >= self.ready() && ahead >= self.ready_for(ahead.saturating_add(1))? {
            return Ok(None);
        }
        Ok(self.peek(ahead))
    }

    /// Consumes the next `count` slots, or all ready ones if these are fewer. The back must answer
    /// each consumed request.
    #[inline]
    pub fn consume(&mut self, count: u32) {
        self.peer.consume(count);
    }

    /// Requests a notification from the peer when more than `beyond` slots are unconsumed. A
    /// `fence(SeqCst)` must lie between this and the last check of [`RingEnd::pending`] before
    /// sleeping (RING-10).
    #[inline]
    pub fn arm(&mut self, beyond: u32) {
        self.peer.arm(&self.words, S::IN.1, beyond);
    }

    /// Returns the number of unconsumed slots according to the shared index. A hostile peer can
    /// make this any number; only [`RingEnd::ready_for`] checks it.
    #[must_use]
    #[inline]
    pub fn pending(&self) -> u32 {
        self.peer.pending(&self.words, S::IN.0)
    }

    /// Calls [`RingEnd::arm`], a fence and [`RingEnd::pending`]. Returns whether this end must not
    /// sleep because more than `beyond` slots are waiting.
    #[must_use]
    pub fn prepare_sleep(&mut self, beyond: u32) -> bool {
        self.arm(beyond);
        fence(Ordering::SeqCst);
        self.pending() > beyond
    }
}
