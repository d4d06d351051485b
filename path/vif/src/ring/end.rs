//! One end of a ring: the two halves and what each lets the other do.

use super::consumer::{Consumer, Overrun};
use super::producer::Producer;
use super::slots::Slots;
use super::words::{Index, Words};
use shmem::sync::fence;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// What tells the front from the back.
pub trait Side {
    /// The index that publishes what this end writes, and the one by which the peer asks for it.
    const OUT: (Index, Index);
    /// The index by which the peer publishes, and the one by which this end asks for it.
    const IN: (Index, Index);

    /// The first index that this end may not write yet, of a ring of `slots` slots of which it has
    /// consumed `cons`.
    fn out_end(cons: u32, slots: u32) -> u32;

    /// The first index that the peer cannot have published yet, if this end has written `prod`
    /// slots and published `published` of them.
    fn in_end(prod: u32, published: u32, slots: u32) -> u32;
}

/// One end's handle of a ring: it writes slots of `OUT` words and reads slots of `IN` words.
///
/// Indices count from 0 and wrap at 2^32; a slot's place is the index modulo the ring's size.
#[derive(Debug)]
pub struct End<S, W, const OUT: usize, const IN: usize> {
    pub(super) words: W,
    pub(super) out: Producer<OUT>,
    pub(super) peer: Consumer<IN>,
    side: PhantomData<S>,
}

impl<S: Side, W: Words, const OUT: usize, const IN: usize> End<S, W, OUT, IN> {
    pub(super) const fn over(words: W, out: Slots, peer: Slots) -> Self {
        Self {
            words,
            out: Producer::new(out),
            peer: Consumer::new(peer),
            side: PhantomData,
        }
    }

    /// Slots of the ring.
    #[must_use]
    #[inline]
    pub const fn slots(&self) -> u32 {
        self.out.slots.count
    }

    /// Slots that may be written now.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        S::out_end(self.peer.cons, self.slots()).wrapping_sub(self.out.prod)
    }

    /// Writes a slot; its index, or none if there is no room (RING-6).
    #[inline]
    pub(super) fn write(&mut self, slot: [u32; OUT]) -> Option<u32> {
        if self.room() == 0 {
            return None;
        }
        let index = self.out.prod;
        self.out.write(&self.words, slot);
        Some(index)
    }

    /// Writes slots, as many as there is room for.
    #[inline]
    pub(super) fn write_all(&mut self, slots: &[[u32; OUT]]) {
        let count = slots.len().min(self.room() as usize);
        self.out
            .write_all(&self.words, slots.get(..count).unwrap_or(&[]));
    }

    /// Lets the peer see everything that was written so far: one store for a whole batch.
    #[inline]
    pub fn publish(&mut self) {
        self.out.publish(&self.words, S::OUT.0);
    }

    /// Whether anything was written about which [`End::should_notify`] was not asked yet.
    #[must_use]
    #[inline]
    pub fn is_dirty(&self) -> bool {
        self.out.unnotified() != 0
    }

    /// Whether the peer wants to be notified of what was published since this was last asked.
    /// A `fence(SeqCst)` must lie between [`End::publish`] and this; one fence serves any number
    /// of rings (RING-9).
    #[must_use]
    #[inline]
    pub fn should_notify(&mut self) -> bool {
        self.out.should_notify(&self.words, S::OUT.1)
    }

    /// What can be read without looking at the shared index again.
    #[must_use]
    #[inline]
    pub const fn ready(&self) -> u32 {
        self.peer.ready()
    }

    /// Makes sure that `want` of the peer's slots are ready, if it published so many: the shared
    /// index is read only if it has to be. How many are ready.
    ///
    /// # Errors
    /// [`Overrun`]: requests for which there is no room, or responses to requests that were never
    /// made (RING-5).
    #[inline]
    pub fn ready_for(&mut self, want: u32) -> Result<u32, Overrun> {
        let end = S::in_end(self.out.prod, self.out.published, self.slots());
        self.peer.ready_for(&self.words, S::IN.0, want, end)
    }

    /// Slot number `ahead` of those that are ready; none if it is not. It is copied out with
    /// those behind it.
    #[must_use]
    #[inline(always)]
    pub fn peek(&mut self, ahead: u32) -> Option<[u32; IN]> {
        self.peer.peek(&self.words, ahead)
    }

    /// [`End::peek`] of a slot that is made [ready](End::ready_for) if the peer has published it.
    ///
    /// # Errors
    /// [`Overrun`].
    #[inline]
    pub fn fetch(&mut self, ahead: u32) -> Result<Option<[u32; IN]>, Overrun> {
        if ahead >= self.ready() && ahead >= self.ready_for(ahead.saturating_add(1))? {
            return Ok(None);
        }
        Ok(self.peek(ahead))
    }

    /// The next `count` slots are consumed, as far as they are ready. Requests are owed a response
    /// from then on.
    #[inline]
    pub fn consume(&mut self, count: u32) {
        self.peer.consume(count);
    }

    /// Asks the peer to notify when there are more than `beyond` unconsumed slots. A
    /// `fence(SeqCst)` must lie between this and the last look at [`End::pending`] before
    /// sleeping (RING-10).
    #[inline]
    pub fn arm(&mut self, beyond: u32) {
        self.peer.arm(&self.words, S::IN.1, beyond);
    }

    /// How many unconsumed slots the shared index speaks of. Any number, if the peer is
    /// hostile: only [`End::ready_for`] checks it.
    #[must_use]
    #[inline]
    pub fn pending(&self) -> u32 {
        self.peer.pending(&self.words, S::IN.0)
    }

    /// [`End::arm`], fence, [`End::pending`]: whether sleeping is wrong because there are more
    /// than `beyond` slots after all.
    #[must_use]
    pub fn prepare_sleep(&mut self, beyond: u32) -> bool {
        self.arm(beyond);
        fence(Ordering::SeqCst);
        self.pending() > beyond
    }
}
