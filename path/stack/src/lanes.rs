//! Frames of a station on their way to several queues: each chooses its queue by its flow.

use crate::waiting::Waiting;
use net::packet::flow::flow_hash;
use nic::{Buffers, Frame, Offload};

/// Frames on their way to the queues. More than may wait for one are dropped, as a full transmit
/// queue does: a queue that is not emptied is not to hold up the others.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    spare: Vec<Vec<u8>>,
    pub(crate) full: u64,
}

/// Frames on their way to one queue.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) waiting: Waiting,
    /// Whether the queue is connected.
    pub(crate) open: bool,
}

impl Lanes {
    pub(crate) fn new(queues: usize) -> Self {
        let mut lanes = Self::default();
        lanes.lanes.resize_with(queues, Lane::default);
        lanes
    }

    /// Puts a frame into its flow's lane, one of those whose queues are connected.
    pub(crate) fn put(&mut self, bytes: &[u8], offload: Offload) {
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

    pub(crate) fn open(&mut self, queue: usize) {
        if let Some(lane) = self.lanes.get_mut(queue) {
            lane.open = true;
        }
    }

    /// A queue is not connected any more: what waits for it goes by the others.
    pub(crate) fn close(&mut self, queue: usize) {
        if let Some(lane) = self.lanes.get_mut(queue) {
            for (bytes, offload) in std::mem::take(lane).waiting.into_frames() {
                self.put_whole(bytes, offload);
            }
        }
    }

    pub(crate) fn take(
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

    pub(crate) fn lane(&self, queue: usize) -> Option<&Lane> {
        self.lanes.get(queue)
    }
}
