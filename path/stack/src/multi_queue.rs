//! A station whose interface has several queues.

use crate::link::FrameSink;
use crate::station::StackEndpoint;
use crate::tx_queues::TxQueues;
use nic::{Buffers, Caps, Frame, Nic, TxReport};
use std::cell::RefCell;
use std::rc::Rc;

/// A station and its transmit queues.
#[derive(Debug)]
struct MultiQueueStation {
    station: StackEndpoint,
    tx_queues: TxQueues,
}

/// One queue of a station.
#[derive(Debug)]
pub struct StackQueue {
    shared: Rc<RefCell<MultiQueueStation>>,
    queue: usize,
}

impl StackEndpoint {
    /// Splits the station into `queues` devices, one per queue of an interface. All devices deliver
    /// frames to the station. The station sends each flow through one device.
    #[must_use]
    pub fn into_queues(self, queues: usize) -> Vec<StackQueue> {
        let shared = Rc::new(RefCell::new(MultiQueueStation {
            station: self,
            tx_queues: TxQueues::new(queues),
        }));
        let queue = |queue| StackQueue {
            shared: Rc::clone(&shared),
            queue,
        };
        (0..queues).map(queue).collect()
    }
}

impl Nic for StackQueue {
    fn caps(&self) -> Caps {
        self.shared.borrow().station.caps()
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let MultiQueueStation { station, tx_queues } = &mut *self.shared.borrow_mut();
        tx_queues.open(self.queue);
        if station.is_due(now_ns) {
            station.turn(now_ns, FrameSink::TxQueues(tx_queues));
        }
        tx_queues.take(self.queue, budget, buffers, out)
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        self.shared.borrow_mut().station.tx(now_ns, frames, pick)
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        let shared = self.shared.borrow();
        match shared.tx_queues.tx_queue(self.queue) {
            Some(tx_queue) if !tx_queue.waiting.is_empty() => Some(now_ns),
            _ => shared.station.next_due(now_ns),
        }
    }

    fn starved(&self) -> bool {
        let shared = self.shared.borrow();
        let tx_queue = shared.tx_queues.tx_queue(self.queue);
        tx_queue.is_some_and(|tx_queue| tx_queue.waiting.starved())
    }

    fn release(&mut self, _buffers: &mut dyn Buffers) {
        self.shared.borrow_mut().tx_queues.close(self.queue);
    }

    /// Only the first queue returns the station's counters.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        if self.queue > 0 {
            return Vec::new();
        }
        let shared = self.shared.borrow();
        let mut all = shared.station.counters();
        all.push(("stack_queue_full", shared.tx_queues.full));
        all
    }
}

#[cfg(test)]
mod tests;
