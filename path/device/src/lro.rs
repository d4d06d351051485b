//! Large receive offload in the device. It uses the same engine as the other domains, with the
//! rules for forwarding: an aggregate can be segmented into the original packets again.

use config::domain::{LroConfig, Rings};
use config::lro::{FlushConfig, Placement, RulesKey};
use nic::dma::layout::Merged;
use nic::dma::soft::{Arrival, Merger};
use nic::{Checksum, Frame, Pool};
use runtime::lro::{LroSide, LroStage};
use std::cell::RefCell;
use std::rc::Rc;

/// Maximum number of flows that the engine tracks.
const FLOWS: u32 = 256;

/// The device's stage for merging received frames.
#[derive(Debug)]
pub struct LroMerger {
    /// The engine. The device shares it to report its counters.
    stage: Rc<RefCell<LroStage>>,
    /// Memory of the frames that the engine holds, and of the frames that are passed through it.
    pool: Pool,
    // Scratch lists; empty between calls.
    frames: Vec<Frame>,
    out: Vec<Frame>,
}

impl LroMerger {
    /// Creates a merger that holds frames in `pool` for at most the interrupt delay of `rings`.
    /// Without a delay, it holds frames only until the end of the device's turn.
    #[must_use]
    pub fn new(rings: Rings, pool: Pool) -> Self {
        let flush = match rings.interrupt_us {
            0 => FlushConfig::Poll,
            us => FlushConfig::After(us),
        };
        let config = LroConfig {
            at: Placement::Physical,
            rules: RulesKey::Gro,
            flush,
            flows: FLOWS,
            ..LroConfig::default()
        };
        // The engine may hold frames in half of the pool; the other half is for frames that are
        // passed through it.
        let stage = LroStage::new(LroSide::Physical, &config, pool.capacity() / 2);
        Self {
            stage: Rc::new(RefCell::new(stage)),
            pool,
            frames: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Returns the engine.
    #[must_use]
    pub fn stage(&self) -> Rc<RefCell<LroStage>> {
        Rc::clone(&self.stage)
    }

    /// Passes the copied frames through the engine.
    fn pass_copied(&mut self, now_ns: u64, out: &mut Vec<Arrival>) {
        let mut stage = self.stage.borrow_mut();
        stage.pass(now_ns, false, &mut self.frames, &mut self.out);
        drop(stage);
        self.finish(out);
    }

    /// Copies the frames that the engine has finished from the pool to `out`.
    fn finish(&mut self, out: &mut Vec<Arrival>) {
        for frame in &mut self.out {
            // The pool is this domain's memory, so it is always accessible.
            if let Ok(bytes) = frame.to_vec() {
                out.push(Arrival {
                    bytes,
                    valid: frame.offload.checksum == Checksum::Valid,
                    merged: Merged::of(frame.offload, frame.fixed_id),
                });
            }
            frame.recycle(&mut self.pool);
        }
        self.out.clear();
    }
}

impl Merger for LroMerger {
    fn pass(&mut self, now_ns: u64, frames: &mut Vec<Arrival>, out: &mut Vec<Arrival>) {
        for arrival in frames.drain(..) {
            match Frame::from_bytes(&arrival.bytes, &mut self.pool) {
                Ok(mut frame) => {
                    if arrival.valid {
                        frame.offload.checksum = Checksum::Valid;
                    }
                    self.frames.push(frame);
                }
                // The pool is full. All earlier frames are flushed before this frame, to keep the
                // order.
                Err(_) => {
                    self.pass_copied(now_ns, out);
                    self.flush(now_ns, out);
                    out.push(arrival);
                }
            }
        }
        if !self.frames.is_empty() {
            self.pass_copied(now_ns, out);
        }
    }

    fn flush(&mut self, now_ns: u64, out: &mut Vec<Arrival>) {
        self.stage.borrow_mut().drain(now_ns, &mut self.out);
        self.finish(out);
    }

    fn due_ns(&self) -> Option<u64> {
        self.stage.borrow().next_due()
    }
}

#[cfg(test)]
mod tests;
