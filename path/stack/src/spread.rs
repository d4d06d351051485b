//! A station as the devices of an interface with several queues.

use crate::lanes::Lanes;
use crate::link::Exit;
use crate::station::StackEndpoint;
use nic::{Buffers, Caps, Frame, Nic, TxReport};
use std::cell::RefCell;
use std::rc::Rc;

/// A station and its lanes.
#[derive(Debug)]
struct Spread {
    station: StackEndpoint,
    lanes: Lanes,
}

/// One queue of a station.
#[derive(Debug)]
pub struct StackQueue {
    spread: Rc<RefCell<Spread>>,
    queue: usize,
}

impl StackEndpoint {
    /// The station as `queues` devices, each for one queue of an interface. Each of them gives to
    /// the station, and the frames of a flow from it come by one of them.
    #[must_use]
    pub fn spread(self, queues: usize) -> Vec<StackQueue> {
        let spread = Rc::new(RefCell::new(Spread {
            station: self,
            lanes: Lanes::new(queues),
        }));
        let queue = |queue| StackQueue {
            spread: Rc::clone(&spread),
            queue,
        };
        (0..queues).map(queue).collect()
    }
}

impl Nic for StackQueue {
    fn caps(&self) -> Caps {
        self.spread.borrow().station.caps()
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let Spread { station, lanes } = &mut *self.spread.borrow_mut();
        lanes.open(self.queue);
        if station.is_due(now_ns) {
            station.turn(now_ns, Exit::Lanes(lanes));
        }
        lanes.take(self.queue, budget, buffers, out)
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        self.spread.borrow_mut().station.tx(now_ns, frames, pick)
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        let spread = self.spread.borrow();
        match spread.lanes.lane(self.queue) {
            Some(lane) if !lane.waiting.is_empty() => Some(now_ns),
            _ => spread.station.next_due(now_ns),
        }
    }

    fn starved(&self) -> bool {
        let spread = self.spread.borrow();
        let lane = spread.lanes.lane(self.queue);
        lane.is_some_and(|lane| lane.waiting.starved())
    }

    fn release(&mut self, _buffers: &mut dyn Buffers) {
        self.spread.borrow_mut().lanes.close(self.queue);
    }

    /// The station's, at the first queue.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        if self.queue > 0 {
            return Vec::new();
        }
        let spread = self.spread.borrow();
        let mut all = spread.station.counters();
        all.push(("stack_queue_full", spread.lanes.full));
        all
    }
}

#[cfg(test)]
mod tests;
