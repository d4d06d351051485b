//! The dedicated queues of a TAP. Each has a descriptor, which is read like the TAP's descriptor.

use super::rx::{Receiver, RxLimits};
use nic::vmq::{QueueId, ReceiveSide, VmqReceived};
use nic::{Buffers, Frame};
use std::os::fd::{AsFd, OwnedFd};

/// The receive side of a TAP's queues.
#[derive(Debug)]
pub(super) struct TapQueues {
    /// Descriptors, which are `None` after the interface was removed, and their receivers.
    queues: Vec<(Option<OwnedFd>, Receiver)>,
    limits: RxLimits,
}

impl TapQueues {
    pub(super) fn new(fds: Vec<OwnedFd>, limits: RxLimits) -> Self {
        let queue = |fd| (Some(fd), Receiver::default());
        Self {
            queues: fds.into_iter().map(queue).collect(),
            limits,
        }
    }

    /// Closes the descriptors of a removed interface. Keeps the buffers until
    /// [`ReceiveSide::release`].
    pub(super) fn close(&mut self) {
        self.queues.iter_mut().for_each(|(fd, _)| *fd = None);
    }
}

impl ReceiveSide for TapQueues {
    fn queues(&self) -> usize {
        self.queues.len()
    }

    fn receive(
        &mut self,
        queue: QueueId,
        _now_ns: u64,
        budget: usize,
        split: bool,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> VmqReceived {
        let Some((Some(fd), receiver)) = self.queues.get_mut(queue.0 as usize) else {
            return VmqReceived {
                empty: true,
                ..VmqReceived::default()
            };
        };
        // The backend completes a guest's posted buffers in order.
        let limits = RxLimits {
            split,
            in_order: true,
            ..self.limits
        };
        let frames = receiver.receive_batch(fd.as_fd(), limits, budget, buffers, out);
        VmqReceived {
            frames,
            empty: receiver.empty,
        }
    }

    fn release(&mut self, queue: QueueId, buffers: &mut dyn Buffers) {
        if let Some((_, receiver)) = self.queues.get_mut(queue.0 as usize) {
            receiver.release(buffers);
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all: Vec<(&'static str, u64)> = Vec::new();
        for (_, receiver) in &self.queues {
            let list = receiver.counters.queue_list();
            if all.is_empty() {
                all.extend(list);
            } else {
                for (sum, (_, count)) in all.iter_mut().zip(list) {
                    sum.1 += count;
                }
            }
        }
        all
    }
}
