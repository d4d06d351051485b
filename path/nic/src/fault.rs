//! A faulty device, which drops, duplicates, reorders and corrupts frames at random from a seed.

use crate::buffer::Buffers;
use crate::device::{Middleware, Nic, TxReport};
use crate::frame::Frame;
use crate::seed::SeededRng;
use std::collections::VecDeque;

/// Fault probabilities per frame, from 0.0 to 1.0, equal in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Probability of dropping a frame.
    pub drop: f64,
    /// Probability of duplicating a frame.
    pub duplicate: f64,
    /// Probability of swapping a frame with the next one.
    pub reorder: f64,
    /// Probability of flipping one bit of a frame's header snapshot.
    pub corrupt: f64,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Number of frames with each fault so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FaultCounts {
    dropped: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
}

/// A faulty device.
#[derive(Debug)]
pub struct Faulty<N> {
    inner: N,
    faults: Faults,
    chance: SeededRng,
    done: FaultCounts,
    arrived: Vec<Frame>,
    /// Frames to receive, in order.
    pending: VecDeque<Frame>,
}

impl<N: Nic> Faulty<N> {
    /// Wraps `inner` with faults.
    #[must_use]
    pub fn new(inner: N, faults: Faults) -> Self {
        let (arrived, pending) = (Vec::new(), VecDeque::new());
        let chance = SeededRng::new(faults.seed);
        Self {
            inner,
            faults,
            chance,
            done: FaultCounts::default(),
            arrived,
            pending,
        }
    }

    /// Returns true with this probability, and then increments the counter.
    fn happens(&mut self, probability: f64, count: fn(&mut FaultCounts) -> &mut u64) -> bool {
        let happens = self.chance.chance(probability);
        *count(&mut self.done) += u64::from(happens);
        happens
    }

    fn corrupt(&mut self, frame: &mut Frame) {
        let at = self.chance.below(frame.header().len() as u64) as usize;
        let bit = self.chance.below(8);
        if let Some(byte) = frame.header_mut().get_mut(at) {
            *byte ^= 1 << bit;
        }
    }

    /// Appends a frame to `queue`, possibly corrupted, duplicated, or swapped with the last frame.
    /// `copy` makes the duplicate, or returns `None` if no buffer is free. Returns the frame if the
    /// caller must drop it.
    fn inject_faults(
        &mut self,
        mut frame: Frame,
        queue: &mut VecDeque<Frame>,
        copy: impl FnOnce(&Frame) -> Option<Frame>,
    ) -> Option<Frame> {
        let Faults {
            drop,
            duplicate,
            reorder,
            corrupt,
            ..
        } = self.faults;
        if self.happens(drop, |done| &mut done.dropped) {
            return Some(frame);
        }
        if self.happens(corrupt, |done| &mut done.corrupted) {
            self.corrupt(&mut frame);
        }
        let second = match self.happens(duplicate, |done| &mut done.duplicated) {
            true => copy(&frame),
            false => None,
        };
        let earlier = match self.happens(reorder, |done| &mut done.reordered) {
            true => queue.pop_back(),
            false => None,
        };
        queue.push_back(frame);
        queue.extend(earlier);
        queue.extend(second);
        None
    }
}

impl<N: Nic> Middleware for Faulty<N> {
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
        let wanted = budget.saturating_sub(self.pending.len());
        let mut arrived = std::mem::take(&mut self.arrived);
        self.inner.rx(now_ns, wanted, buffers, &mut arrived);
        let mut pending = std::mem::take(&mut self.pending);
        for frame in arrived.drain(..) {
            let dropped =
                self.inject_faults(frame, &mut pending, |frame| frame.copied(buffers).ok());
            if let Some(mut frame) = dropped {
                frame.recycle(buffers);
            }
        }
        self.pending = pending;
        self.arrived = arrived;
        let ready = self.pending.len().min(budget);
        out.extend(self.pending.drain(..ready));
        ready
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let mut out = VecDeque::with_capacity(pick.len());
        let mut dropped = TxReport::default();
        for frame in pick.iter().filter_map(|&index| frames.get(index as usize)) {
            if let Some(frame) =
                self.inject_faults(frame.clone(), &mut out, |frame| Some(frame.clone()))
            {
                // The report counts it as sent, so that the sender does not detect the drop.
                dropped += TxReport {
                    sent: 1,
                    bytes: frame.len() as u64,
                    ..TxReport::default()
                };
            }
        }
        let all: Vec<u32> = (0..out.len() as u32).collect();
        let mut report = self.inner.tx(now_ns, out.make_contiguous(), &all);
        report += dropped;
        report
    }

    fn release(&mut self, buffers: &mut dyn Buffers) {
        for mut frame in self.pending.drain(..) {
            frame.recycle(buffers);
        }
        self.inner.release(buffers);
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        if self.pending.is_empty() {
            self.inner.next_due(now_ns)
        } else {
            Some(now_ns)
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.inner.counters();
        counters.push(("fault_dropped", self.done.dropped));
        counters.push(("fault_duplicated", self.done.duplicated));
        counters.push(("fault_reordered", self.done.reordered));
        counters.push(("fault_corrupted", self.done.corrupted));
        counters
    }
}
