//! A device that records its last frames.

use crate::buffer::Buffers;
use crate::device::{Middleware, Nic, TxReport};
use crate::frame::Frame;
use crate::offload::Offload;
use std::collections::VecDeque;

/// Number of recorded header bytes.
const RECORDED_BYTES: usize = 64;

/// Direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceDirection {
    /// The device received the frame.
    Rx,
    /// The device sent the frame.
    Tx,
}

/// Record of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSummary {
    /// Time in monotonic nanoseconds.
    pub at_ns: u64,
    /// Direction.
    pub direction: TraceDirection,
    /// Length of the frame in bytes.
    pub len: usize,
    /// Number of pieces of the frame.
    pub pieces: usize,
    /// Pending offloads.
    pub offload: Offload,
    header: [u8; RECORDED_BYTES],
    header_len: usize,
}

impl FrameSummary {
    fn of(at_ns: u64, direction: TraceDirection, frame: &Frame) -> Self {
        let mut header = [0; RECORDED_BYTES];
        let mut header_len = 0;
        for (to, from) in header.iter_mut().zip(frame.header()) {
            *to = *from;
            header_len += 1;
        }
        let (len, pieces, offload) = (frame.len(), frame.pieces.len(), frame.offload);
        Self {
            at_ns,
            direction,
            len,
            pieces,
            offload,
            header,
            header_len,
        }
    }

    /// Returns the first bytes of the frame's snapshot.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        self.header.get(..self.header_len).unwrap_or(&[])
    }
}

/// A device that records its last frames.
#[derive(Debug)]
pub struct Traced<N> {
    inner: N,
    last: VecDeque<FrameSummary>,
    keep: usize,
}

impl<N: Nic> Traced<N> {
    /// Wraps `inner` and records its last `keep` frames.
    #[must_use]
    pub fn new(inner: N, keep: usize) -> Self {
        Self {
            inner,
            last: VecDeque::with_capacity(keep),
            keep,
        }
    }

    /// Returns the recorded frames, oldest first.
    pub fn last(&self) -> impl Iterator<Item = &FrameSummary> {
        self.last.iter()
    }

    fn record(&mut self, summary: FrameSummary) {
        if self.last.len() >= self.keep {
            self.last.pop_front();
        }
        if self.keep > 0 {
            self.last.push_back(summary);
        }
    }
}

impl<N: Nic> Middleware for Traced<N> {
    type Inner = N;

    fn inner(&self) -> &N {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut N {
        &mut self.inner
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let before = out.len();
        let taken = self.inner.rx(now_ns, budget, buffers, out);
        for frame in out.iter().skip(before) {
            self.record(FrameSummary::of(now_ns, TraceDirection::Rx, frame));
        }
        taken
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        for frame in pick.iter().filter_map(|&index| frames.get(index as usize)) {
            self.record(FrameSummary::of(now_ns, TraceDirection::Tx, frame));
        }
        self.inner.tx(now_ns, frames, pick)
    }
}
