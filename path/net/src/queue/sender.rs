//! The queue of one sender: its flows.

use super::codel::{Codel, Params};
use super::packet::{QueuedItem, QueuedPacket, Signal};
use super::turns::Turns;
use std::collections::VecDeque;

/// Number of flow queues of a sender. Flows whose hashes are equal modulo this number share a
/// queue.
pub const FLOWS: usize = 32;
/// Capacity kept by an empty flow, in packets.
const IDLE_CAPACITY: usize = 16;

#[derive(Debug)]
struct FlowQueue<P> {
    packets: VecDeque<QueuedItem<P>>,
    bytes: u64,
    units: usize,
    codel: Codel,
}

impl<P> Default for FlowQueue<P> {
    fn default() -> Self {
        Self {
            packets: VecDeque::new(),
            bytes: 0,
            units: 0,
            codel: Codel::default(),
        }
    }
}

impl<P: QueuedPacket> FlowQueue<P> {
    fn pop(&mut self) -> Option<QueuedItem<P>> {
        let entry = self.packets.pop_front()?;
        self.bytes = self.bytes.saturating_sub(entry.packet.bytes());
        self.units = self.units.saturating_sub(entry.packet.units());
        let (len, room) = (self.packets.len(), self.packets.capacity());
        if room > IDLE_CAPACITY && len < room / 4 {
            self.packets.shrink_to(IDLE_CAPACITY.max(2 * len));
        }
        Some(entry)
    }
}

/// A packet that is due, and the queue from which it was removed.
pub(super) struct Due<P> {
    /// Number of its flow queue.
    pub(super) flow: usize,
    pub(super) entry: QueuedItem<P>,
    /// Whether CoDel signals its sender.
    pub(super) signals: bool,
}

/// The flows of one sender.
#[derive(Debug)]
pub(super) struct SenderQueue<P> {
    flows: Vec<FlowQueue<P>>,
    turns: Turns,
    packets: usize,
    units: usize,
}

impl<P> Default for SenderQueue<P> {
    fn default() -> Self {
        let mut flows = Vec::new();
        flows.resize_with(FLOWS, FlowQueue::default);
        Self {
            flows,
            turns: Turns::default(),
            packets: 0,
            units: 0,
        }
    }
}

impl<P: QueuedPacket> SenderQueue<P> {
    pub(super) fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Returns the units of memory that its packets hold.
    pub(super) fn units(&self) -> usize {
        self.units
    }

    /// Appends a packet to the flow with this hash.
    pub(super) fn push(&mut self, entry: QueuedItem<P>, hash: u32) {
        let number = hash as usize % FLOWS;
        if let Some(flow) = self.flows.get_mut(number) {
            self.packets += 1;
            self.units += entry.packet.units();
            flow.bytes += entry.packet.bytes();
            flow.units += entry.packet.units();
            flow.packets.push_back(entry);
            self.turns.begin(number);
        }
    }

    /// Removes the packet that is due, after CoDel has judged it. The caller
    /// [charges](Self::charge) a packet that it sends.
    pub(super) fn take_next(&mut self, params: Params, now_ns: u64) -> Option<Due<P>> {
        let flows = &mut self.flows;
        let number = self.turns.next(|number| {
            let flow = flows.get_mut(number);
            flow.is_some_and(|flow| {
                let has_packets = !flow.packets.is_empty();
                if !has_packets {
                    flow.codel.reset_empty();
                }
                has_packets
            })
        })?;
        let left_bytes = self.flows.get(number)?.bytes;
        let entry = self.pop(number)?;
        let sojourn_ns = now_ns.saturating_sub(entry.since_ns);
        let codel = &mut self.flows.get_mut(number)?.codel;
        Some(Due {
            flow: number,
            signals: codel.should_signal(params, now_ns, sojourn_ns, left_bytes),
            entry,
        })
    }

    /// Takes a sent packet's bytes from its flow's deficit.
    pub(super) fn charge(&mut self, flow: usize, bytes: u64) {
        self.turns.charge(flow, bytes);
    }

    /// Removes the oldest packet of the flow whose packets hold the most memory.
    pub(super) fn pop_longest(&mut self) -> Option<QueuedItem<P>> {
        let longest = self.longest()?;
        self.pop(longest)
    }

    /// Signals congestion to the flow whose packets hold the most memory, by its oldest packet. The
    /// caller removes a packet that must be [dropped](Signal::Dropped).
    pub(super) fn signal_longest(&mut self) -> Option<Signal<P>> {
        let longest = self.longest()?;
        let flow = self.flows.get_mut(longest)?;
        let signal = flow.packets.front_mut()?.signal();
        if let Signal::Shed { before, after, .. } = &signal {
            flow.bytes = flow.bytes.saturating_sub(before.0) + after.0;
            flow.units = flow.units.saturating_sub(before.1) + after.1;
            self.units = self.units.saturating_sub(before.1) + after.1;
        }
        Some(signal)
    }

    /// Moves packets for which `is_late` holds from the front of each flow to `late`.
    pub(super) fn expire(
        &mut self,
        is_late: impl Fn(&QueuedItem<P>) -> bool,
        late: &mut Vec<QueuedItem<P>>,
    ) {
        for number in 0..self.flows.len() {
            while let Some(flow) = self.flows.get(number)
                && flow.packets.front().is_some_and(&is_late)
                && let Some(entry) = self.pop(number)
            {
                late.push(entry);
            }
        }
    }

    /// Returns the time at which the oldest packet was pushed.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        let fronts = self.flows.iter().filter_map(|flow| flow.packets.front());
        fronts.map(|entry| entry.since_ns).min()
    }

    /// Returns all packets.
    pub(super) fn into_packets(self) -> impl Iterator<Item = QueuedItem<P>> {
        self.flows.into_iter().flat_map(|flow| flow.packets)
    }

    fn longest(&self) -> Option<usize> {
        let all = self.flows.iter().enumerate();
        let longest = all
            .filter(|(_, flow)| !flow.packets.is_empty())
            .max_by_key(|(_, flow)| flow.units);
        longest.map(|(number, _)| number)
    }

    fn pop(&mut self, number: usize) -> Option<QueuedItem<P>> {
        let entry = self.flows.get_mut(number)?.pop()?;
        self.packets = self.packets.saturating_sub(1);
        self.units = self.units.saturating_sub(entry.packet.units());
        Some(entry)
    }
}
