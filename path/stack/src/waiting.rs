//! Frames as bytes of the endpoint's own, until there are buffers for them.

use nic::{Buffers, Frame, Offload};
use std::collections::VecDeque;

/// Frames that wait for a buffer at the most.
pub const WAITING_MAX: usize = 1024;

/// A row of them.
#[derive(Debug, Default)]
pub struct Waiting {
    row: VecDeque<(Vec<u8>, Offload)>,
    /// Whether one found no buffer when it was last asked for.
    starved: bool,
}

impl Waiting {
    /// Frames that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.row.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.row.is_empty()
    }

    /// Whether no more than these may wait.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.row.len() >= WAITING_MAX
    }

    /// Whether the last take ended because there was no buffer.
    #[must_use]
    pub fn starved(&self) -> bool {
        self.starved
    }

    /// Appends one; [`Waiting::is_full`] is the caller's to ask.
    pub fn push(&mut self, bytes: Vec<u8>, offload: Offload) {
        self.row.push_back((bytes, offload));
    }

    /// Takes all of them.
    pub fn into_frames(self) -> impl Iterator<Item = (Vec<u8>, Offload)> {
        self.row.into_iter()
    }

    /// Appends up to `budget` of them to `out`, in buffers; their own memory goes to `spare`. Says
    /// how many.
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
