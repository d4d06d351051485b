//! A device that remembers the last frames that passed.

use crate::buffer::Buffers;
use crate::device::{Caps, Nic, TxReport};
use crate::frame::Frame;
use crate::offload::Offload;
use std::collections::VecDeque;

/// Bytes of a header that are remembered.
const HEADER: usize = 64;

/// Which way a frame went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device yielded it.
    Rx,
    /// The device was given it.
    Tx,
}

/// What is remembered of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// When, monotonic nanoseconds.
    pub at_ns: u64,
    /// Which way.
    pub direction: Direction,
    /// Bytes of the frame.
    pub len: usize,
    /// Pieces of the frame.
    pub pieces: usize,
    /// What was left undone.
    pub offload: Offload,
    header: [u8; HEADER],
    header_len: usize,
}

impl Summary {
    fn of(at_ns: u64, direction: Direction, frame: &Frame) -> Self {
        let mut header = [0; HEADER];
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

    /// The first bytes of its snapshot.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        self.header.get(..self.header_len).unwrap_or(&[])
    }
}

/// A device whose last frames are remembered.
#[derive(Debug)]
pub struct Traced<N> {
    inner: N,
    last: VecDeque<Summary>,
    keep: usize,
}

impl<N: Nic> Traced<N> {
    /// `inner`, with its last `keep` frames remembered.
    #[must_use]
    pub fn new(inner: N, keep: usize) -> Self {
        Self {
            inner,
            last: VecDeque::with_capacity(keep),
            keep,
        }
    }

    /// The frames that are remembered, oldest first.
    pub fn last(&self) -> impl Iterator<Item = &Summary> {
        self.last.iter()
    }

    fn note(&mut self, summary: Summary) {
        if self.last.len() >= self.keep {
            self.last.pop_front();
        }
        if self.keep > 0 {
            self.last.push_back(summary);
        }
    }
}

impl<N: Nic> Nic for Traced<N> {
    fn caps(&self) -> Caps {
        self.inner.caps()
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
            self.note(Summary::of(now_ns, Direction::Rx, frame));
        }
        taken
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        for frame in pick.iter().filter_map(|&index| frames.get(index as usize)) {
            self.note(Summary::of(now_ns, Direction::Tx, frame));
        }
        self.inner.tx(now_ns, frames, pick)
    }

    fn starved(&self) -> bool {
        self.inner.starved()
    }

    fn failure(&self) -> Option<&'static str> {
        self.inner.failure()
    }

    fn release(&mut self, buffers: &mut dyn Buffers) {
        self.inner.release(buffers);
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        self.inner.next_due(now_ns)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.inner.counters()
    }
}
