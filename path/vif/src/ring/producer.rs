//! The half of a ring's end that writes slots and publishes them.

use super::format::passes;
use super::slots::Slots;
use super::words::{Index, Words};
use std::sync::atomic::Ordering;

/// Writes slots of `N` words.
///
/// The words of a slot are known when this is compiled. How many slots there are is not: the ring's
/// order is agreed on, so it is the mask of [`Slots`]. What may be written, the other half says:
/// a slot is free again once what came for it was consumed.
#[derive(Debug)]
pub(super) struct Producer<const N: usize> {
    pub(super) slots: Slots,
    /// Slots written.
    pub(super) prod: u32,
    /// Slots published: what the peer may see, and so may answer.
    pub(super) published: u32,
    /// Slots about which the peer was notified, or did not want to be.
    notified: u32,
}

impl<const N: usize> Producer<N> {
    pub(super) const fn new(slots: Slots) -> Self {
        Self {
            slots,
            prod: 0,
            published: 0,
            notified: 0,
        }
    }

    /// Goes on at slot `at`: those before it were published by another process.
    pub(super) const fn resume(&mut self, at: u32) {
        self.prod = at;
        self.published = at;
        self.notified = at;
    }

    /// Writes the next slot, which is free.
    #[inline]
    pub(super) fn write(&mut self, words: &impl Words, slot: [u32; N]) {
        self.slots.write(words, self.prod, slot);
        self.prod = self.prod.wrapping_add(1);
    }

    /// Writes the next slots, which are free.
    #[inline]
    pub(super) fn write_all(&mut self, words: &impl Words, slots: &[[u32; N]]) {
        self.slots.write_all(words, self.prod, slots);
        self.prod = self.prod.wrapping_add(slots.len() as u32);
    }

    /// Lets the peer see every slot written so far, by the index `prod`: one store for a whole
    /// batch, and none for nothing.
    #[inline]
    pub(super) fn publish(&mut self, words: &impl Words, prod: Index) {
        if self.published != self.prod {
            self.published = self.prod;
            // Release: who sees the index sees the slots.
            words.set_index(prod, self.prod, Ordering::Release);
        }
    }

    /// Slots about which [`Producer::should_notify`] was not asked yet.
    #[inline]
    pub(super) const fn unnotified(&self) -> u32 {
        self.prod.wrapping_sub(self.notified)
    }

    /// Whether the peer wants to be notified, as its index `event` says, of what was published
    /// since this was last asked.
    #[inline]
    pub(super) fn should_notify(&mut self, words: &impl Words, event: Index) -> bool {
        if self.notified == self.published {
            return false;
        }
        let event = words.index(event, Ordering::Relaxed);
        let old = std::mem::replace(&mut self.notified, self.published);
        passes(event, old, self.published)
    }
}
