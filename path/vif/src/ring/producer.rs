//! The half of a ring's end that writes slots and publishes them.

use super::format::passes;
use super::slots::SlotPositions;
use super::words::{RingIndex, RingMemory};
use std::sync::atomic::Ordering;

/// Writer of slots of `N` words.
///
/// The size of a slot is known at compile time. The number of slots is negotiated;
/// [`SlotPositions`] holds it as a mask. The consumer bounds the writer: a slot is free again once
/// the peer's answer to it has been consumed.
#[derive(Debug)]
pub(super) struct Producer<const N: usize> {
    pub(super) slots: SlotPositions,
    /// Slots written.
    pub(super) prod: u32,
    /// Slots published, which the peer may read and answer.
    pub(super) published: u32,
    /// Slots for which the peer was notified, or did not request a notification.
    notified: u32,
}

impl<const N: usize> Producer<N> {
    pub(super) const fn new(slots: SlotPositions) -> Self {
        Self {
            slots,
            prod: 0,
            published: 0,
            notified: 0,
        }
    }

    /// Continues at slot `at`. Another process has published the slots before it.
    pub(super) const fn resume(&mut self, at: u32) {
        self.prod = at;
        self.published = at;
        self.notified = at;
    }

    /// Writes the next slot, which must be free.
    #[inline]
    pub(super) fn write(&mut self, words: &impl RingMemory, slot: [u32; N]) {
        self.slots.write(words, self.prod, slot);
        self.prod = self.prod.wrapping_add(1);
    }

    /// Writes the next slots, which must be free.
    #[inline]
    pub(super) fn write_all(&mut self, words: &impl RingMemory, slots: &[[u32; N]]) {
        self.slots.write_all(words, self.prod, slots);
        self.prod = self.prod.wrapping_add(slots.len() as u32);
    }

    /// Publishes every slot written so far to the peer by the index `prod`, with one store for a
    /// whole batch, or none if nothing was written.
    #[inline]
    pub(super) fn publish(&mut self, words: &impl RingMemory, prod: RingIndex) {
        if self.published != self.prod {
            self.published = self.prod;
            // Release: a peer that sees the index sees the slots.
            words.set_index(prod, self.prod, Ordering::Release);
        }
    }

    /// Returns the number of slots that [`Producer::should_notify`] has not covered yet.
    #[inline]
    pub(super) const fn unnotified(&self) -> u32 {
        self.prod.wrapping_sub(self.notified)
    }

    /// Returns whether the peer's index `event` requests a notification of the slots published
    /// since the last call.
    #[inline]
    pub(super) fn should_notify(&mut self, words: &impl RingMemory, event: RingIndex) -> bool {
        if self.notified == self.published {
            return false;
        }
        let event = words.index(event, Ordering::Relaxed);
        let old = std::mem::replace(&mut self.notified, self.published);
        passes(event, old, self.published)
    }
}
