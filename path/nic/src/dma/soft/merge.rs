//! Large receive offload in the device, which merges arrived frames before it stores them.
//!
//! The device stores held frames when an interrupt is due, so that this interrupt also announces
//! them. Without an interrupt it stores them at the time that the merger requests, and then raises
//! the interrupt.

use super::device::SoftDevice;
use super::merger::{MergeStage, Merger};
use super::wire::Wire;
use std::mem;

impl<W: Wire> SoftDevice<W> {
    /// Enables merging with `merger`, for the shared queue and for dedicated queues whose control
    /// word permits it.
    #[must_use]
    pub fn merging(mut self, merger: Box<dyn Merger>) -> Self {
        self.merging = Some(MergeStage {
            merger,
            arrived: Vec::new(),
            out: Vec::new(),
        });
        self
    }

    /// Returns whether the device merges frames for a queue.
    pub(super) fn merges(&self, queue: usize) -> bool {
        let receive = self.receive.get(queue);
        self.merging.is_some() && receive.is_some_and(|one| queue == 0 || one.control.merges)
    }

    /// Merges the frames that [`SoftDevice::poll`] has taken from the wire, and moves finished
    /// frames to their queues. If the interrupt is due, moves all held frames.
    pub(super) fn merge(&mut self, now_ns: u64) {
        let interrupts = self.interrupt_due().is_some_and(|at_ns| at_ns <= now_ns);
        let Some(MergeStage {
            merger,
            arrived,
            out,
        }) = &mut self.merging
        else {
            return;
        };
        if !arrived.is_empty() {
            merger.pass(now_ns, arrived, out);
        }
        let is_late = merger.due_ns().is_some_and(|at_ns| at_ns <= now_ns);
        if is_late || interrupts {
            merger.flush(now_ns, out);
        }
        self.is_late |= is_late;
        let mut finished = mem::take(out);
        for frame in finished.drain(..) {
            let queue = self.queue_of(&frame.bytes);
            // The queue's guest may have changed while the device held the frame.
            let queue = match frame.merged {
                Some(_) if !self.merges(queue) => 0,
                _ => queue,
            };
            self.enqueue(queue, frame, now_ns);
        }
        if let Some(stage) = &mut self.merging {
            stage.out = finished;
        }
    }

    /// Drops all held frames.
    pub(super) fn drop_held(&mut self, now_ns: u64) {
        if let Some(MergeStage { merger, out, .. }) = &mut self.merging {
            merger.flush(now_ns, out);
            self.counters.missed += out.len() as u64;
            out.clear();
        }
    }

    /// Returns the time until which the device may hold frames, or `None` if it holds none.
    pub(super) fn held_until_ns(&self) -> Option<u64> {
        self.merging.as_ref()?.merger.due_ns()
    }
}
