//! Interrupts and sleep of a device whose driver is in another process.

use super::device::{BATCH, FIFO_BYTES, ReceiveFifo, SoftDevice};
use super::interrupt::QueueInterrupt;
use super::wire::Wire;
use crate::dma::addr::IoAddr;
use crate::dma::table::IoMemory;
use shmem::Fault;
use std::mem;

/// Delay between two attempts to send while the wire is full.
const TX_RETRY_NS: u64 = 20_000;

impl<W: Wire> SoftDevice<W> {
    /// Connects to a driver whose queues are empty and have these I/O addresses. Frames that waited
    /// for an earlier driver are lost.
    pub fn connect(&mut self, receive: &[IoAddr], transmit: IoAddr, now_ns: u64) {
        self.set_queues(receive, transmit);
        self.is_late = false;
        self.drop_held(now_ns);
    }

    /// Runs a turn without a driver: removes the queues of the last driver, and drops frames that
    /// have arrived.
    pub fn discard(&mut self, now_ns: u64) {
        self.connect(&[], IoAddr::of_page(0), now_ns);
        let arrived = std::iter::from_fn(|| self.wire.receive(now_ns));
        self.counters.missed += arrived.take(BATCH).count() as u64;
    }

    /// Enables and disables dedicated queues according to their control words. Resets a disabled
    /// queue, and moves its waiting frames to the shared queue.
    pub fn apply_controls(&mut self, io: &impl IoMemory) {
        for queue in 1..self.receive.len() {
            if self.follow_control(queue, io).is_err() {
                self.stop_queue(queue);
            }
        }
    }

    fn follow_control(&mut self, queue: usize, io: &impl IoMemory) -> Result<(), Fault> {
        let Some((shared, dedicated)) = self.receive.split_first_mut() else {
            return Ok(());
        };
        let Some(receive) = dedicated.get_mut(queue - 1) else {
            return Ok(());
        };
        let memory = receive.mapped.memory(io);
        let control = match receive.mapped.is_stopped {
            true => return Ok(()),
            false => memory.control()?,
        };
        if control == receive.control {
            return Ok(());
        }
        receive.control = control;
        self.filter.retain(|_, to| *to != queue);
        if receive.stored > 0 {
            receive.drop_first();
        }
        receive.fifo_bytes = 0;
        for frame in receive.fifo.drain(..) {
            let bytes = frame.bytes.len();
            if shared.fifo_bytes + bytes > FIFO_BYTES {
                self.counters.missed += 1;
            } else {
                shared.fifo_bytes += bytes;
                shared.fifo.push_back(frame);
            }
        }
        receive.mapped.reset(0);
        receive.interrupt = QueueInterrupt::default();
        receive.mapped.queue.publish_reset(&memory)?;
        if let Some(mac) = control.mac {
            self.filter.insert(mac, queue);
        }
        memory.set_effective(control)
    }

    /// Returns the number of completions of a receive queue that the driver has not acknowledged,
    /// and the index that the driver has acknowledged last.
    fn unacknowledged(&mut self, queue: usize, io: &impl IoMemory) -> (u32, u32) {
        // The driver resets its index of a disabled queue only when it enables the queue again.
        let is_active = |one: &&ReceiveFifo| {
            !one.mapped.is_stopped && (queue == 0 || one.control.mac.is_some())
        };
        let Some(receive) = self.receive.get(queue).filter(is_active) else {
            return (0, 0);
        };
        let memory = receive.mapped.memory(io);
        let counts = receive.mapped.queue.unacknowledged(&memory);
        counts.unwrap_or_else(|Fault| {
            self.stop_queue(queue);
            (0, 0)
        })
    }

    /// Raises the interrupt if it is due, by incrementing `raised` in the memory of each queue with
    /// a pending interrupt. Returns whether the caller must wake the driver. Each queue raises the
    /// interrupt once per acknowledgement of the driver.
    pub fn raise(&mut self, now_ns: u64, io: &impl IoMemory) -> bool {
        for queue in 0..self.receive.len() {
            let counts = self.unacknowledged(queue, io);
            if let Some(receive) = self.receive.get_mut(queue) {
                receive.interrupt.update(now_ns, counts);
            }
        }
        let due_ns = self.interrupt_due();
        let is_late = mem::take(&mut self.is_late);
        if !due_ns.is_some_and(|at_ns| at_ns <= now_ns || is_late) {
            return false;
        }
        self.counters.interrupts += 1;
        for queue in 0..self.receive.len() {
            if self.raise_queue(queue, io).is_err() {
                self.stop_queue(queue);
            }
        }
        true
    }

    fn raise_queue(&mut self, queue: usize, io: &impl IoMemory) -> Result<(), Fault> {
        let Some(receive) = self.receive.get_mut(queue) else {
            return Ok(());
        };
        if receive.interrupt.is_pending() {
            receive.interrupt.is_raised = true;
            let memory = receive.mapped.memory(io);
            receive.mapped.queue.raise(&memory)?;
        }
        Ok(())
    }

    /// Returns the time at which the interrupt for stored frames is due.
    pub(super) fn interrupt_due(&self) -> Option<u64> {
        let queues = self.receive.iter();
        let due = queues.filter_map(|receive| receive.interrupt.due_ns(self.interrupts));
        due.min()
    }

    /// Returns the time at which to call [`SoftDevice::poll`] and [`SoftDevice::raise`] next.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let stalled = self.transmit.queue.has_taken() && !self.transmit.is_stopped;
        let stalled = stalled.then_some(now_ns.saturating_add(TX_RETRY_NS));
        let arrival = self.wire.due_ns(0);
        arrival
            .into_iter()
            .chain(self.interrupt_due())
            .chain(self.held_until_ns())
            .chain(stalled)
            .min()
    }

    /// Prepares for sleep: requests a doorbell with the next frame to send, and with the next
    /// buffer of each queue whose frames wait for one. Returns whether a frame or buffer of this
    /// kind is already posted.
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
        match transmit.queue.arm(&memory, true) {
            Ok(posted) => is_posted |= posted && !transmit.is_stopped,
            Err(Fault) => self.stop_transmit(),
        }
        is_posted
    }

    fn arm_receive(&self, queue: usize, io: &impl IoMemory) -> Result<bool, Fault> {
        let Some(receive) = self.receive.get(queue).filter(|one| !one.mapped.is_stopped) else {
            return Ok(false);
        };
        let memory = receive.mapped.memory(io);
        let wakes = !receive.fifo.is_empty();
        Ok(receive.mapped.queue.arm(&memory, wakes)? && wakes)
    }
}
