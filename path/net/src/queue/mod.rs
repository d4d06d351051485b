//! A bounded queue with active queue management: FQ-CoDel (RFC 8290) over packets of any kind, with
//! fairness between senders.
//!
//! Senders share the queue by deficit round robin. The flows of each sender also share its turns by
//! deficit round robin, and new flows precede others. A sender that begins many flows gains
//! nothing. [`codel`] signals each flow with a standing queue, by an ECN mark if the packet is
//! ECN-capable, otherwise by a drop. The queue has no clock and no memory limit: the caller passes
//! the time, limits what it pushes, and drops from the [longest flow](FairQueue::drop_from_longest)
//! to make room.
//!
//! Every pushed packet leaves the queue once: by [`FairQueue::pop`], or through the `lost` callback
//! with its [`QueueDropReason`].

pub mod codel;
mod packet;
mod sender;
mod senders;
mod turns;

use codel::Params;
use packet::{QueuedItem, Signal, Size};
use sender::SenderQueue;
use senders::Senders;

pub use packet::QueuedPacket;
pub use sender::FLOWS;

abi::named_enum! {
    /// Reason for dropping a packet.
    pub enum QueueDropReason: u8 {
        /// The queue towards the guest has no room.
        Full = "queue_full",
        /// CoDel: packets have waited too long in the queue towards the guest.
        Codel = "queue_codel",
        /// It waited for 0.5 s in the queue towards the guest.
        Late = "queue_late",
    }
}

/// The queue.
#[derive(Debug)]
pub struct FairQueue<P> {
    senders: Senders<P>,
    /// The packet that is sent next.
    head: Option<QueuedItem<P>>,
    packets: usize,
    bytes: u64,
    units: usize,
    /// Number of packets that got an ECN mark.
    marked: u64,
}

impl<P> Default for FairQueue<P> {
    fn default() -> Self {
        Self {
            senders: Senders::default(),
            head: None,
            packets: 0,
            bytes: 0,
            units: 0,
            marked: 0,
        }
    }
}

impl<P> FairQueue<P> {
    /// Returns whether the queue is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Returns the number of packets in the queue.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Returns the number of bytes in the queue.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the units of memory that the queued packets hold.
    #[must_use]
    pub fn units(&self) -> usize {
        self.units
    }

    /// Returns the number of packets that got an ECN mark so far.
    #[must_use]
    pub fn marked(&self) -> u64 {
        self.marked
    }
}

impl<P: QueuedPacket> FairQueue<P> {
    /// Appends a packet to the flow of `sender` with this hash. Senders have small numbers: the
    /// queue has a table of them.
    pub fn push(&mut self, packet: P, (sender, hash): (usize, u32), now_ns: u64) {
        self.packets += 1;
        self.bytes += packet.bytes();
        self.units += packet.units();
        let entry = QueuedItem {
            packet,
            since_ns: now_ns,
        };
        let place = self.senders.begin(sender);
        self.senders.change(place, |queue| queue.push(entry, hash));
    }

    /// Returns the packet that [`FairQueue::pop`] takes next. CoDel runs first and passes its drops
    /// to `lost`.
    pub fn head(
        &mut self,
        params: Params,
        now_ns: u64,
        mut lost: impl FnMut(QueueDropReason, P),
    ) -> Option<&mut P> {
        while self.head.is_none() {
            let place = self.senders.next()?;
            let due = self
                .senders
                .change(place, |queue| queue.take_next(params, now_ns))??;
            let mut entry = due.entry;
            if due.signals {
                match entry.signal() {
                    Signal::Marked => self.marked += 1,
                    Signal::Dropped => {
                        self.forget(entry.size());
                        lost(QueueDropReason::Codel, entry.packet);
                        continue;
                    }
                    Signal::Shed {
                        part,
                        before,
                        after,
                    } => {
                        self.resize(before, after);
                        lost(QueueDropReason::Codel, part);
                    }
                }
            }
            let bytes = entry.packet.bytes();
            self.senders.charge(place, bytes);
            self.senders
                .change(place, |queue| queue.charge(due.flow, bytes));
            self.head = Some(entry);
        }
        self.head.as_mut().map(|entry| &mut entry.packet)
    }

    /// Takes the packet that [`FairQueue::head`] returned last.
    pub fn pop(&mut self) -> Option<P> {
        let entry = self.head.take()?;
        self.forget(entry.size());
        Some(entry.packet)
    }

    /// Splits the head with `cut`, which returns the first part and leaves the rest. Returns `None`
    /// if `cut` does.
    pub fn cut_head(&mut self, cut: impl FnOnce(&mut P) -> Option<P>) -> Option<P> {
        let entry = self.head.as_mut()?;
        let before = entry.size();
        let part = cut(&mut entry.packet)?;
        let after = entry.size();
        self.resize(before, after);
        Some(part)
    }

    /// Drops the oldest packet of the longest flow; returns false if the queue is empty.
    pub fn drop_from_longest(&mut self, mut lost: impl FnMut(QueueDropReason, P)) -> bool {
        let Some(entry) = self.pop_longest().or_else(|| self.head.take()) else {
            return false;
        };
        self.forget(entry.size());
        lost(QueueDropReason::Full, entry.packet);
        true
    }

    fn pop_longest(&mut self) -> Option<QueuedItem<P>> {
        let longest = self.senders.longest()?;
        self.senders.change(longest, SenderQueue::pop_longest)?
    }

    /// Signals the longest flow that the queue is running out of room: marks the oldest packet of
    /// the flow, or drops one packet of it.
    pub fn signal_longest(&mut self, mut lost: impl FnMut(QueueDropReason, P)) {
        let longest = self.senders.longest();
        let signal = longest.and_then(|place| {
            let signal = self.senders.change(place, SenderQueue::signal_longest);
            signal.flatten()
        });
        match signal {
            Some(Signal::Marked) => self.marked += 1,
            Some(Signal::Dropped) => {
                if let Some(entry) = self.pop_longest() {
                    self.forget(entry.size());
                    lost(QueueDropReason::Codel, entry.packet);
                }
            }
            Some(Signal::Shed {
                part,
                before,
                after,
            }) => {
                self.resize(before, after);
                lost(QueueDropReason::Codel, part);
            }
            None => {}
        }
    }

    /// Drops every packet pushed before `before_ns`.
    pub fn expire(&mut self, before_ns: u64, mut lost: impl FnMut(QueueDropReason, P)) {
        let is_late = |entry: &QueuedItem<P>| entry.since_ns < before_ns;
        let mut late = Vec::from_iter(self.head.take_if(|entry| is_late(entry)));
        for place in 0..self.senders.len() {
            self.senders
                .change(place, |queue| queue.expire(is_late, &mut late));
        }
        for entry in late {
            self.forget(entry.size());
            lost(QueueDropReason::Late, entry.packet);
        }
        self.senders.trim();
    }

    /// Returns the time at which the oldest packet was pushed.
    #[must_use]
    pub fn oldest_ns(&self) -> Option<u64> {
        let queued = self.senders.queues().filter_map(SenderQueue::oldest_ns);
        let head = self.head.as_ref().map(|entry| entry.since_ns);
        queued.chain(head).min()
    }

    /// Removes and returns all packets.
    pub fn drain(&mut self) -> impl Iterator<Item = P> {
        let Self { senders, head, .. } = std::mem::replace(
            self,
            Self {
                marked: self.marked,
                ..Self::default()
            },
        );
        let queued = senders.into_queues().flat_map(SenderQueue::into_packets);
        head.into_iter().chain(queued).map(|entry| entry.packet)
    }

    /// Adapts the totals to a packet that was split.
    fn resize(&mut self, before: Size, after: Size) {
        self.bytes = self.bytes.saturating_sub(before.0) + after.0;
        self.units = self.units.saturating_sub(before.1) + after.1;
    }

    fn forget(&mut self, (bytes, units): Size) {
        self.packets = self.packets.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.units = self.units.saturating_sub(units);
        if self.packets == 0 {
            self.senders.trim();
        }
    }
}

#[cfg(test)]
mod tests;
