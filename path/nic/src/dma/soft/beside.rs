//! A device that works beside its driver, in another process: its interrupts, and its sleep.

use super::device::{Raised, SoftDevice};
use super::wire::Wire;
use crate::dma::addr::IoAddr;
use crate::dma::table::IoMemory;
use shmem::Fault;
use std::sync::atomic::{Ordering, fence};

/// Time between two attempts to send while the wire is full.
const STALLED_NS: u64 = 20_000;

impl<W: Wire> SoftDevice<W> {
    /// Connects to a driver whose queues are empty and lie at these I/O addresses. Frames that
    /// waited for an earlier driver are lost.
    pub fn connect(&mut self, receive: &[IoAddr], transmit: IoAddr) {
        self.set_queues(receive, transmit);
        self.raised = Raised::default();
    }

    /// Works without a driver: forgets the queues of the last one, and discards frames that have
    /// arrived.
    pub fn discard(&mut self, now_ns: u64) {
        self.connect(&[], IoAddr::of_page(0));
        while self.wire.receive(now_ns).is_some() {
            self.counters.missed += 1;
        }
    }

    /// Returns whether to raise the interrupt of the shared receive queue now. It is raised once
    /// for each index that the driver acknowledges.
    pub fn raise(&mut self, now_ns: u64, io: &impl IoMemory) -> bool {
        let Some(shared) = self
            .receive
            .first()
            .filter(|shared| !shared.unit.is_stopped)
        else {
            return false;
        };
        let memory = shared.unit.memory(io);
        let Ok((pending, acknowledged)) = shared.unit.queue.unacknowledged(&memory) else {
            self.stop_queue(0);
            return false;
        };
        let is_new = self.raised.acknowledged != acknowledged;
        self.raised = Raised {
            acknowledged,
            pending,
            is_raised: self.raised.is_raised && !is_new,
        };
        if is_new {
            // Moderation begins anew with what the driver has not taken.
            self.arrived = pending as usize;
            self.since_ns = (pending > 0).then_some(now_ns);
        }
        let is_due = self.interrupt_due().is_some_and(|at_ns| at_ns <= now_ns);
        if is_due {
            self.raised.is_raised = true;
            self.counters.interrupts += 1;
        }
        is_due
    }

    /// Returns the time of the next interrupt for stored frames.
    fn interrupt_due(&self) -> Option<u64> {
        let waits = self.raised.pending > 0 && !self.raised.is_raised;
        self.interrupt_ns().filter(|_| waits)
    }

    /// Returns the time at which to call [`SoftDevice::work`] and [`SoftDevice::raise`] next.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let stalled = self.transmit.queue.has_taken() && !self.transmit.is_stopped;
        let stalled = stalled.then_some(now_ns.saturating_add(STALLED_NS));
        let arrival = self.wire.due_ns(0);
        arrival
            .into_iter()
            .chain(self.interrupt_due())
            .chain(stalled)
            .min()
    }

    /// Prepares for sleep: asks the driver for a doorbell with the next frame to send, and with the
    /// next buffer if frames wait for one. Returns whether there is work already.
    pub fn arm(&mut self, io: &impl IoMemory) -> bool {
        let mut is_posted = false;
        for queue in 0..self.receive.len() {
            match self.arm_receive(queue, io) {
                Ok(posted) => is_posted |= posted,
                Err(Fault) => self.stop_queue(queue),
            }
        }
        let transmit = &self.transmit;
        let memory = transmit.memory(io);
        let armed = transmit.queue.arm(&memory, true);
        // Between `wake` and `posted`: see `DriverQueue::wakes`.
        fence(Ordering::SeqCst);
        match armed.and_then(|()| transmit.queue.has_posted(&memory)) {
            Ok(posted) => is_posted |= posted && !transmit.is_stopped,
            Err(Fault) => self.stop_transmit(),
        }
        is_posted
    }

    fn arm_receive(&self, queue: usize, io: &impl IoMemory) -> Result<bool, Fault> {
        let Some(receive) = self.receive.get(queue).filter(|one| !one.unit.is_stopped) else {
            return Ok(false);
        };
        let memory = receive.unit.memory(io);
        let wanted = !receive.fifo.is_empty();
        receive.unit.queue.arm(&memory, wanted)?;
        fence(Ordering::SeqCst);
        Ok(wanted && receive.unit.queue.has_posted(&memory)?)
    }
}
