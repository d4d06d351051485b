//! Dedicated queues of a software NIC. The contract of [`crate::vmq`] requires that no buffer stays
//! posted between polls. So a poll posts one buffer per frame that waits in the device, and
//! withdraws unused buffers.

use super::local::LocalDevice;
use super::wire::Wire;
use crate::buffer::Buffers;
use crate::dma::queue::DmaError;
use crate::frame::Frame;
use crate::vmq::{QueueId, ReceiveSide, Steering, VmqError, VmqReceived};
use std::cell::RefCell;
use std::rc::Rc;

/// Returns the number of the device's receive queue for a dedicated queue. The device's queue 0 is
/// the shared queue.
fn number(queue: QueueId) -> usize {
    (queue.0 as usize).saturating_add(1)
}

/// The device's MAC filter. A change applies to every frame that arrives later.
#[derive(Debug)]
pub struct MacFilter<W>(pub(super) Rc<RefCell<LocalDevice<W>>>);

impl<W: Wire> Steering for MacFilter<W> {
    fn steer(&mut self, mac: [u8; 6], queue: Option<QueueId>) -> Result<u64, VmqError> {
        let device = &mut self.0.borrow_mut().device;
        device.steer(mac, queue.map(number));
        Ok(0)
    }

    fn effective(&mut self) -> u64 {
        0
    }
}

/// The receive side of the queues.
#[derive(Debug)]
pub struct DedicatedRings<W> {
    core: Rc<RefCell<LocalDevice<W>>>,
    queues: usize,
}

impl<W: Wire> DedicatedRings<W> {
    pub(super) fn new(core: Rc<RefCell<LocalDevice<W>>>) -> Self {
        let queues = core.borrow().dedicated.len();
        Self { core, queues }
    }
}

impl<W: Wire> LocalDevice<W> {
    fn poll(
        &mut self,
        queue: QueueId,
        now_ns: u64,
        budget: usize,
        split: bool,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> Result<VmqReceived, DmaError> {
        self.device.poll(now_ns, &self.table);
        let waiting = self.device.waiting(number(queue));
        let Some(rings) = self.dedicated.get_mut(queue.0 as usize) else {
            return Ok(VmqReceived::default());
        };
        let needed = waiting.min(budget);
        if needed > 0 {
            rings.post(&mut self.table, needed, split, buffers)?;
            self.device.poll(now_ns, &self.table);
        }
        let frames = rings.receive(&mut self.table, budget, buffers, out)?;
        let empty = self.device.waiting(number(queue)) == 0;
        Ok(VmqReceived { frames, empty })
    }
}

impl<W: Wire> ReceiveSide for DedicatedRings<W> {
    fn queues(&self) -> usize {
        self.queues
    }

    fn receive(
        &mut self,
        queue: QueueId,
        now_ns: u64,
        budget: usize,
        split: bool,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> VmqReceived {
        let core = &mut *self.core.borrow_mut();
        let before = out.len();
        let closed = VmqReceived {
            frames: 0,
            empty: true,
        };
        if core.close_reason.is_some() {
            return closed;
        }
        let polled = core.poll(queue, now_ns, budget, split, buffers, out);
        polled.unwrap_or_else(|error| {
            core.close(error);
            VmqReceived {
                frames: out.len() - before,
                ..closed
            }
        })
    }

    fn release(&mut self, queue: QueueId, buffers: &mut dyn Buffers) {
        let core = &mut *self.core.borrow_mut();
        if let Some(rings) = core.dedicated.get_mut(queue.0 as usize)
            && rings.posted() > 0
        {
            let start = rings.withdraw(&mut core.table, |id| buffers.put(id));
            core.device.reset(number(queue), start, &core.table);
        }
    }
}
