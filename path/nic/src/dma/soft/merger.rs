//! The interface of a merger of received frames.

use crate::dma::layout::Merged;
use std::fmt::Debug;

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Bytes of the frame.
    pub bytes: Vec<u8>,
    /// Whether the device has verified the frame's transport checksum.
    pub valid: bool,
    /// Description of a merged frame, whose checksum is blank; `None` for a single frame.
    pub merged: Option<Merged>,
}

impl Arrival {
    /// Returns the maximum number of bytes to store in the next buffer. A merged frame in a
    /// dedicated queue uses at least two buffers, so that a guest's ring has a slot for the segment
    /// size (NETIF-27).
    pub(super) fn part_max(&self, queue: usize, stored: usize) -> usize {
        match self.merged {
            // The last segment always remains for a second buffer.
            Some(Merged { gso, .. }) if queue > 0 && stored == 0 => {
                self.bytes.len().saturating_sub(gso.size.into()).max(1)
            }
            _ => usize::MAX,
        }
    }
}

/// Merges frames.
pub trait Merger: Debug {
    /// Takes all arrived frames from `frames`, in order. Appends finished frames to `out`, in order
    /// within each flow, and holds the rest.
    fn pass(&mut self, now_ns: u64, frames: &mut Vec<Arrival>, out: &mut Vec<Arrival>);

    /// Appends all held frames to `out`.
    fn flush(&mut self, now_ns: u64, out: &mut Vec<Arrival>);

    /// Returns the time until which the merger may hold frames, or `None` if it holds none.
    fn due_ns(&self) -> Option<u64>;
}

/// The merger of a device, and scratch lists.
#[derive(Debug)]
pub(super) struct MergeStage {
    pub(super) merger: Box<dyn Merger>,
    pub(super) arrived: Vec<Arrival>,
    pub(super) out: Vec<Arrival>,
}
