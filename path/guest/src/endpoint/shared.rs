//! One device behind an interface with several queues.

use nic::{Buffers, Caps, Frame, Nic, TxReport};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// One queue's handle of a device that several queues share. The device consumes frames from all
/// queues, and sends its frames through one of them, in order.
pub struct SharedDevice {
    device: Rc<RefCell<Box<dyn Nic>>>,
    /// Whether the device sends its frames through this queue.
    yields: bool,
}

impl fmt::Debug for SharedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("yields", &self.yields)
            .finish_non_exhaustive()
    }
}

impl SharedDevice {
    /// Splits `device` into `queues` handles. The device sends its frames through queue `yields`,
    /// which must be below `queues`.
    #[must_use]
    pub fn split(device: Box<dyn Nic>, queues: usize, yields: usize) -> Vec<Self> {
        let device = Rc::new(RefCell::new(device));
        let queue = |queue| Self {
            device: Rc::clone(&device),
            yields: queue == yields,
        };
        (0..queues).map(queue).collect()
    }
}

impl Nic for SharedDevice {
    fn caps(&self) -> Caps {
        self.device.borrow().caps()
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        match self.yields {
            true => self.device.borrow_mut().rx(now_ns, budget, buffers, out),
            false => 0,
        }
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        self.device.borrow_mut().tx(now_ns, frames, pick)
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        let device = self.yields.then(|| self.device.borrow());
        device.and_then(|device| device.next_due(now_ns))
    }

    fn starved(&self) -> bool {
        self.yields && self.device.borrow().starved()
    }

    fn release(&mut self, buffers: &mut dyn Buffers) {
        if self.yields {
            self.device.borrow_mut().release(buffers);
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        match self.yields {
            true => self.device.borrow().counters(),
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FrameSource;
    use super::*;
    use nic::Pool;
    use shmem::Area;

    #[test]
    fn all_queues_give_and_one_yields() {
        let source = FrameSource::new([2; 6], [2; 6], 60, None, 0, Some(5), false);
        let mut queues = SharedDevice::split(Box::new(source), 3, 1);
        let mut pool = Pool::new(Area::anonymous(8 * 2048).unwrap(), 2048);
        let mut yielded = Vec::new();
        for (n, queue) in queues.iter_mut().enumerate() {
            assert_eq!(queue.next_due(7).is_some(), n == 1);
            let taken = queue.rx(0, 8, &mut pool, &mut yielded);
            assert_eq!(taken, if n == 1 { 5 } else { 0 });
            assert_eq!(queue.counters().is_empty(), n != 1);
        }
        for queue in &mut queues {
            assert_eq!(queue.tx(0, &yielded, &[0, 4]).sent, 2);
        }
    }
}
