//! The interface to a merger of received frames.

use crate::dma::layout::Merged;
use std::fmt::Debug;

/// A frame that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether its transport checksum is valid.
    pub valid: bool,
    /// Set if it was merged; its checksum is blank then.
    pub merged: Option<Merged>,
}

impl Arrival {
    /// Returns the maximum of bytes for the next buffer. A merged frame in a dedicated queue has at
    /// least two buffers, so that a guest's ring has a slot for its segment size (NETIF-27).
    pub(super) fn part_max(&self, queue: usize, stored: usize) -> usize {
        match self.merged {
            // It has more payload than a segment.
            Some(Merged { gso, .. }) if queue > 0 && stored == 0 => {
                self.bytes.len().saturating_sub(gso.size.into()).max(1)
            }
            _ => usize::MAX,
        }
    }
}

/// Merges frames.
pub trait Merger: Debug {
    /// Takes arrived frames, in order, and empties `frames`. Appends finished frames to `out`, in
    /// the order of their flows, and holds the rest.
    fn pass(&mut self, now_ns: u64, frames: &mut Vec<Arrival>, out: &mut Vec<Arrival>);

    /// Appends all held frames to `out`.
    fn flush(&mut self, now_ns: u64, out: &mut Vec<Arrival>);

    /// Returns the time until which frames may be held, or `None` if none is held.
    fn due_ns(&self) -> Option<u64>;
}

/// The merger of a device, and its scratch lists.
#[derive(Debug)]
pub(super) struct MergeStage {
    pub(super) merger: Box<dyn Merger>,
    pub(super) arrived: Vec<Arrival>,
    pub(super) out: Vec<Arrival>,
}
