//! A bounded queue with active queue management: FQ-CoDel (RFC 8290) over packets of any kind.
//!
//! Flows share the queue by deficit round robin, new flows first. [`codel`] signals each flow whose
//! queue stands, by an ECN mark if the packet is ECN-capable, otherwise by a drop. The queue has no
//! clock and no memory limit: the caller passes the time in, limits what it pushes, and drops from
//! the [longest flow](FairQueue::drop_from_longest) to make room.
//!
//! Every pushed packet leaves the queue once: by [`FairQueue::pop`], or through the `lost` callback
//! with its [`Cause`].

pub mod codel;

use codel::{Codel, Params};
use std::collections::VecDeque;

/// Number of flow queues. Flows whose hashes are equal modulo this number share a queue.
pub const FLOWS: usize = 32;
/// Bytes that a flow may send per turn: a full packet.
const QUANTUM: i64 = codel::MTU_BYTES as i64;
/// Capacity kept by an empty flow, in packets.
const KEPT: usize = 16;

/// A packet that the queue can hold.
pub trait QueuedPacket: Sized {
    /// Returns its length in bytes.
    fn bytes(&self) -> u64;
    /// Returns the units of memory that the packet holds.
    fn units(&self) -> usize;
    /// Sets the ECN mark *congestion experienced*; returns false if the packet is not ECN-capable.
    fn mark(&mut self) -> bool;
    /// Splits off the part that a single drop discards. Returns `None` if the packet is not an
    /// aggregate.
    fn shed(&mut self) -> Option<Self>;
}

abi::named_enum! {
    /// Reason for dropping a packet.
    pub enum Cause: u8 {
        /// The queue towards the guest has no room.
        Full = "queue_full",
        /// CoDel: the queue towards the guest stands.
        Codel = "queue_codel",
        /// It waited for 0.5 s in the queue towards the guest.
        Late = "queue_late",
    }
}

#[derive(Debug)]
struct Aged<P> {
    packet: P,
    since_ns: u64,
}

#[derive(Debug)]
struct FlowQueue<P> {
    packets: VecDeque<Aged<P>>,
    bytes: u64,
    deficit: i64,
    codel: Codel,
    /// Whether the flow is in one of the lists.
    listed: bool,
}

impl<P> Default for FlowQueue<P> {
    fn default() -> Self {
        Self {
            packets: VecDeque::new(),
            bytes: 0,
            deficit: 0,
            codel: Codel::default(),
            listed: false,
        }
    }
}

impl<P: QueuedPacket> FlowQueue<P> {
    fn pop(&mut self) -> Option<Aged<P>> {
        let entry = self.packets.pop_front()?;
        self.bytes = self.bytes.saturating_sub(entry.packet.bytes());
        let (len, room) = (self.packets.len(), self.packets.capacity());
        if room > KEPT && len < room / 4 {
            self.packets.shrink_to(KEPT.max(2 * len));
        }
        Some(entry)
    }
}

/// The queue.
#[derive(Debug)]
pub struct FairQueue<P> {
    /// Empty until the first packet.
    flows: Vec<FlowQueue<P>>,
    /// Flows that have just begun. `old` lists all others with packets.
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    /// The packet that is sent next.
    head: Option<Aged<P>>,
    packets: usize,
    bytes: u64,
    units: usize,
    /// Number of packets that got an ECN mark.
    marked: u64,
}

impl<P> Default for FairQueue<P> {
    fn default() -> Self {
        Self {
            flows: Vec::new(),
            new: VecDeque::new(),
            old: VecDeque::new(),
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
    /// Appends a packet to the flow with this hash.
    pub fn push(&mut self, packet: P, hash: u32, now_ns: u64) {
        if self.flows.is_empty() {
            self.flows.resize_with(FLOWS, FlowQueue::default);
        }
        let number = hash as usize % FLOWS;
        let Some(flow) = self.flows.get_mut(number) else {
            return;
        };
        self.packets += 1;
        self.bytes += packet.bytes();
        self.units += packet.units();
        flow.bytes += packet.bytes();
        flow.packets.push_back(Aged {
            packet,
            since_ns: now_ns,
        });
        if !flow.listed {
            flow.listed = true;
            flow.deficit = QUANTUM;
            self.new.push_back(number);
        }
    }

    /// Returns the packet that [`FairQueue::pop`] takes next. CoDel runs first and passes its drops
    /// to `lost`.
    pub fn head(
        &mut self,
        params: Params,
        now_ns: u64,
        mut lost: impl FnMut(Cause, P),
    ) -> Option<&mut P> {
        while self.head.is_none() {
            let number = self.next_flow()?;
            let Some(flow) = self.flows.get_mut(number) else {
                continue;
            };
            let left_bytes = flow.bytes;
            let Some(mut entry) = flow.pop() else {
                continue;
            };
            let sojourn_ns = now_ns.saturating_sub(entry.since_ns);
            if flow.codel.signals(params, now_ns, sojourn_ns, left_bytes) {
                if entry.packet.mark() {
                    self.marked += 1;
                } else {
                    let before = (entry.packet.bytes(), entry.packet.units());
                    let Some(part) = entry.packet.shed() else {
                        self.forget(before);
                        lost(Cause::Codel, entry.packet);
                        continue;
                    };
                    self.bytes = self.bytes.saturating_sub(before.0) + entry.packet.bytes();
                    self.units = self.units.saturating_sub(before.1) + entry.packet.units();
                    lost(Cause::Codel, part);
                }
            }
            if let Some(flow) = self.flows.get_mut(number) {
                flow.deficit -= i64::try_from(entry.packet.bytes()).unwrap_or(i64::MAX);
            }
            self.head = Some(entry);
        }
        self.head.as_mut().map(|entry| &mut entry.packet)
    }

    /// Takes the packet that [`FairQueue::head`] returned last.
    pub fn pop(&mut self) -> Option<P> {
        let packet = self.head.take()?.packet;
        self.forget((packet.bytes(), packet.units()));
        Some(packet)
    }

    /// Splits the head with `cut`, which returns the first part and leaves the rest. Returns `None`
    /// if `cut` does.
    pub fn cut_head(&mut self, cut: impl FnOnce(&mut P) -> Option<P>) -> Option<P> {
        let entry = self.head.as_mut()?;
        let before = (entry.packet.bytes(), entry.packet.units());
        let part = cut(&mut entry.packet)?;
        self.bytes = self.bytes.saturating_sub(before.0) + entry.packet.bytes();
        self.units = self.units.saturating_sub(before.1) + entry.packet.units();
        Some(part)
    }

    /// Drops the oldest packet of the flow with the most bytes; returns false if the queue is
    /// empty.
    pub fn drop_from_longest(&mut self, mut lost: impl FnMut(Cause, P)) -> bool {
        let longest = self.flows.iter_mut().max_by_key(|flow| flow.bytes);
        let entry = longest
            .and_then(FlowQueue::pop)
            .or_else(|| self.head.take());
        let Some(Aged { packet, .. }) = entry else {
            return false;
        };
        self.forget((packet.bytes(), packet.units()));
        lost(Cause::Full, packet);
        true
    }

    /// Signals the flow with the most bytes that the queue is running out of room: marks the oldest
    /// packet of the flow, or drops one packet of it.
    pub fn signal_longest(&mut self, mut lost: impl FnMut(Cause, P)) {
        let Some(flow) = self.flows.iter_mut().max_by_key(|flow| flow.bytes) else {
            return;
        };
        let Some(entry) = flow.packets.front_mut() else {
            return;
        };
        if entry.packet.mark() {
            self.marked += 1;
            return;
        }
        let before = (entry.packet.bytes(), entry.packet.units());
        if let Some(part) = entry.packet.shed() {
            let after = (entry.packet.bytes(), entry.packet.units());
            flow.bytes = flow.bytes.saturating_sub(before.0) + after.0;
            self.bytes = self.bytes.saturating_sub(before.0) + after.0;
            self.units = self.units.saturating_sub(before.1) + after.1;
            lost(Cause::Codel, part);
        } else if let Some(entry) = flow.pop() {
            self.forget(before);
            lost(Cause::Codel, entry.packet);
        }
    }

    /// Drops every packet pushed before `before_ns`.
    pub fn expire(&mut self, before_ns: u64, mut lost: impl FnMut(Cause, P)) {
        let is_late = |entry: &Aged<P>| entry.since_ns < before_ns;
        if let Some(entry) = self.head.take_if(|entry| is_late(entry)) {
            self.forget((entry.packet.bytes(), entry.packet.units()));
            lost(Cause::Late, entry.packet);
        }
        for number in 0..self.flows.len() {
            while let Some(flow) = self.flows.get_mut(number)
                && flow.packets.front().is_some_and(is_late)
                && let Some(entry) = flow.pop()
            {
                self.forget((entry.packet.bytes(), entry.packet.units()));
                lost(Cause::Late, entry.packet);
            }
        }
    }

    /// Returns the time at which the oldest packet was pushed.
    #[must_use]
    pub fn oldest_ns(&self) -> Option<u64> {
        let fronts = self.flows.iter().filter_map(|flow| flow.packets.front());
        let all = fronts.chain(&self.head);
        all.map(|entry| entry.since_ns).min()
    }

    /// Removes and returns all packets.
    pub fn drain(&mut self) -> impl Iterator<Item = P> {
        let Self { flows, head, .. } = std::mem::replace(
            self,
            Self {
                marked: self.marked,
                ..Self::default()
            },
        );
        let queued = flows.into_iter().flat_map(|flow| flow.packets);
        head.into_iter().chain(queued).map(|entry| entry.packet)
    }

    /// Selects the flow from which to send next. It has packets and a positive deficit.
    fn next_flow(&mut self) -> Option<usize> {
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let number = *list.front()?;
            let Some(flow) = self.flows.get_mut(number) else {
                list.pop_front();
                continue;
            };
            if flow.packets.is_empty() {
                list.pop_front();
                flow.codel.emptied();
                // A flow that empties and returns at once must not count as new (RFC 8290, 4.2).
                if is_new && !self.old.is_empty() {
                    self.old.push_back(number);
                } else {
                    flow.listed = false;
                }
                continue;
            }
            if flow.deficit > 0 {
                return Some(number);
            }
            list.pop_front();
            let is_alone = self.new.is_empty() && self.old.is_empty();
            flow.deficit = match is_alone {
                // No other flow is waiting, so its debt does not matter.
                true => QUANTUM,
                false => flow.deficit + QUANTUM,
            };
            self.old.push_back(number);
        }
    }

    fn forget(&mut self, (bytes, units): (u64, usize)) {
        self.packets = self.packets.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.units = self.units.saturating_sub(units);
    }
}

#[cfg(test)]
mod tests;
