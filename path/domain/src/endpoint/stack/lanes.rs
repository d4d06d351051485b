//! A station behind an interface with several queues: frames from it choose theirs by their flow.

use super::StackEndpoint;
use super::link::Exit;
use crate::endpoint::waiting::Waiting;
use net::packet::flow::flow_hash;
use nic::{Buffers, Caps, Frame, Nic, Offload, TxReport};
use std::cell::RefCell;
use std::rc::Rc;

/// Frames on their way to the queues. More than may wait for one are dropped, as a full transmit queue
/// does: a queue that nobody empties is not to hold up the others.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    spare: Vec<Vec<u8>>,
    full: u64,
}

/// Frames on their way to one queue.
#[derive(Debug, Default)]
struct Lane {
    waiting: Waiting,
    /// Whether the queue is connected.
    open: bool,
}

impl Lanes {
    fn new(queues: usize) -> Self {
        let mut lanes = Self::default();
        lanes.lanes.resize_with(queues, Lane::default);
        lanes
    }

    /// Puts a frame into its flow's lane, one of those whose queues are connected.
    pub(super) fn put(&mut self, bytes: &[u8], offload: Offload) {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        self.put_whole(copy, offload);
    }

    fn put_whole(&mut self, bytes: Vec<u8>, offload: Offload) {
        let open = self.lanes.iter().filter(|lane| lane.open).count();
        let at = (flow_hash(&bytes) as usize).checked_rem(open);
        let lane = at.and_then(|at| self.lanes.iter_mut().filter(|lane| lane.open).nth(at));
        match lane.filter(|lane| !lane.waiting.is_full()) {
            Some(lane) => lane.waiting.push(bytes, offload),
            None => {
                self.full += 1;
                self.spare.push(bytes);
            }
        }
    }

    fn open(&mut self, queue: usize) {
        if let Some(lane) = self.lanes.get_mut(queue) {
            lane.open = true;
        }
    }

    /// A queue is not connected any more: what waits for it goes by the others.
    fn close(&mut self, queue: usize) {
        if let Some(lane) = self.lanes.get_mut(queue) {
            for (bytes, offload) in std::mem::take(lane).waiting.into_frames() {
                self.put_whole(bytes, offload);
            }
        }
    }

    fn take(
        &mut self,
        queue: usize,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let Some(lane) = self.lanes.get_mut(queue) else {
            return 0;
        };
        lane.waiting.take(budget, buffers, &mut self.spare, out)
    }

    fn lane(&self, queue: usize) -> Option<&Lane> {
        self.lanes.get(queue)
    }
}

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
    /// The station as `queues` devices, each for one queue of an interface: what any of them is given
    /// is for the station, and the frames of a flow from it come by one of them.
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
