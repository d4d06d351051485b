//! Multi-queue transmit of a station. The flow of a frame determines its queue.

use crate::frame_queue::FrameQueue;
use net::packet::flow::flow_hash;
use nic::{Buffers, Frame, Offload};

/// Frames that wait for the queues. A full queue drops frames, so that a stalled queue does not
/// block the others.
#[derive(Debug, Default)]
pub(crate) struct TxQueues {
    tx_queues: Vec<TxQueue>,
    spare: Vec<Vec<u8>>,
    pub(crate) full: u64,
}

/// Frames that wait for one queue.
#[derive(Debug, Default)]
pub(crate) struct TxQueue {
    pub(crate) waiting: FrameQueue,
    /// Whether the queue is connected.
    pub(crate) open: bool,
}

impl TxQueues {
    pub(crate) fn new(queues: usize) -> Self {
        let mut tx_queues = Self::default();
        tx_queues.tx_queues.resize_with(queues, TxQueue::default);
        tx_queues
    }

    /// Appends a frame to its flow's queue, which is one of the connected queues.
    pub(crate) fn put(&mut self, bytes: &[u8], offload: Offload) {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        self.put_whole(copy, offload);
    }

    fn put_whole(&mut self, bytes: Vec<u8>, offload: Offload) {
        let open = self
            .tx_queues
            .iter()
            .filter(|tx_queue| tx_queue.open)
            .count();
        let at = (flow_hash(&bytes) as usize).checked_rem(open);
        let tx_queue = at.and_then(|at| {
            self.tx_queues
                .iter_mut()
                .filter(|tx_queue| tx_queue.open)
                .nth(at)
        });
        match tx_queue.filter(|tx_queue| !tx_queue.waiting.is_full()) {
            Some(tx_queue) => tx_queue.waiting.push(bytes, offload),
            None => {
                self.full += 1;
                self.spare.push(bytes);
            }
        }
    }

    pub(crate) fn open(&mut self, queue: usize) {
        if let Some(tx_queue) = self.tx_queues.get_mut(queue) {
            tx_queue.open = true;
        }
    }

    /// Disconnects a queue, and moves its frames to the other queues.
    pub(crate) fn close(&mut self, queue: usize) {
        if let Some(tx_queue) = self.tx_queues.get_mut(queue) {
            for (bytes, offload) in std::mem::take(tx_queue).waiting.into_frames() {
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
        let Some(tx_queue) = self.tx_queues.get_mut(queue) else {
            return 0;
        };
        tx_queue.waiting.take(budget, buffers, &mut self.spare, out)
    }

    pub(crate) fn tx_queue(&self, queue: usize) -> Option<&TxQueue> {
        self.tx_queues.get(queue)
    }
}
