//! Queues frames in private memory until buffers are free.

use nic::{Buffers, Frame, Offload};
use std::collections::VecDeque;

/// Maximum number of waiting frames.
pub const WAITING_MAX: usize = 1024;

/// A queue of frames in private memory that wait for buffers.
#[derive(Debug, Default)]
pub struct FrameQueue {
    row: VecDeque<(Vec<u8>, Offload)>,
    /// Whether the last [`FrameQueue::take`] ran out of buffers.
    starved: bool,
}

impl FrameQueue {
    /// Returns the number of waiting frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.row.len()
    }

    /// Returns whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.row.is_empty()
    }

    /// Returns whether the queue is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.row.len() >= WAITING_MAX
    }

    /// Returns whether the last [`FrameQueue::take`] ran out of buffers.
    #[must_use]
    pub fn starved(&self) -> bool {
        self.starved
    }

    /// Appends a frame. The caller must check [`FrameQueue::is_full`] before.
    pub fn push(&mut self, bytes: Vec<u8>, offload: Offload) {
        self.row.push_back((bytes, offload));
    }

    /// Returns all waiting frames.
    pub fn into_frames(self) -> impl Iterator<Item = (Vec<u8>, Offload)> {
        self.row.into_iter()
    }

    /// Copies up to `budget` frames into buffers, appends them to `out`, and returns their number.
    /// Moves their private memory to `spare` for reuse.
    pub fn take(
        &mut self,
        budget: usize,
        buffers: &mut dyn Buffers,
        spare: &mut Vec<Vec<u8>>,
        out: &mut Vec<Frame>,
    ) -> usize {
        let before = out.len();
        self.starved = false;
        while out.len() - before < budget {
            let Some((bytes, offload)) = self.row.front() else {
                break;
            };
            let Ok(mut frame) = Frame::from_bytes(bytes, buffers) else {
                self.starved = true;
                break;
            };
            frame.offload = *offload;
            out.push(frame);
            let taken = self.row.pop_front();
            spare.extend(taken.map(|(bytes, _)| bytes));
        }
        out.len() - before
    }
}
