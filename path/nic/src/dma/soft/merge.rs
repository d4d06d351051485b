//! Large receive offload in the device: arrived frames are merged before they are stored.
//!
//! The interrupt bounds the wait of held frames: they are stored when it is due, so that it covers
//! them. Otherwise they are stored when the merger lets no frame wait longer, which then raises it.

use super::device::SoftDevice;
use super::merger::{MergeStage, Merger};
use super::wire::Wire;
use std::mem;

impl<W: Wire> SoftDevice<W> {
    /// Merges received frames of the shared queue, and of dedicated queues whose control word
    /// permits it, by `merger`.
    #[must_use]
    pub fn merging(mut self, merger: Box<dyn Merger>) -> Self {
        self.merging = Some(MergeStage {
            merger,
            arrived: Vec::new(),
            out: Vec::new(),
        });
        self
    }

    /// Returns whether frames for a queue are merged.
    pub(super) fn merges(&self, queue: usize) -> bool {
        let receive = self.receive.get(queue);
        self.merging.is_some() && receive.is_some_and(|one| queue == 0 || one.control.merges)
    }

    /// Merges the frames that [`SoftDevice::work`] has taken from the wire, and moves finished ones
    /// to their queues: all of them if the interrupt is due.
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
            // The guest of this queue may have changed while the frame was held.
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

    /// Loses all held frames.
    pub(super) fn forget_held(&mut self, now_ns: u64) {
        if let Some(MergeStage { merger, out, .. }) = &mut self.merging {
            merger.flush(now_ns, out);
            self.counters.missed += out.len() as u64;
            out.clear();
        }
    }

    /// Returns the time until which frames may be held.
    pub(super) fn held_until_ns(&self) -> Option<u64> {
        self.merging.as_ref()?.merger.due_ns()
    }
}
