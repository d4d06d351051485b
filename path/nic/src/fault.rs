//! A device that misbehaves: frames are dropped, doubled, held back and spoilt, by a seed.

use crate::buffer::Buffers;
use crate::device::{Caps, Nic, TxReport};
use crate::frame::Frame;
use crate::seed::Seeded;
use std::collections::VecDeque;

/// How often a device misbehaves: probabilities per frame, 0.0 … 1.0, the same in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// A frame disappears.
    pub drop: f64,
    /// A frame comes twice.
    pub duplicate: f64,
    /// A frame changes places with the next.
    pub reorder: f64,
    /// One bit of a frame's header snapshot is wrong.
    pub corrupt: f64,
    /// What all this is drawn from.
    pub seed: u64,
}

/// What was done so far, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Done {
    dropped: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
}

/// A device that misbehaves.
#[derive(Debug)]
pub struct Faulty<N> {
    inner: N,
    faults: Faults,
    chance: Seeded,
    done: Done,
    arrived: Vec<Frame>,
    /// Frames that will be yielded, in order.
    pending: VecDeque<Frame>,
}

impl<N: Nic> Faulty<N> {
    /// `inner`, misbehaving.
    #[must_use]
    pub fn new(inner: N, faults: Faults) -> Self {
        let (arrived, pending) = (Vec::new(), VecDeque::new());
        let chance = Seeded::new(faults.seed);
        Self {
            inner,
            faults,
            chance,
            done: Done::default(),
            arrived,
            pending,
        }
    }

    /// Whether a thing of this probability happens now, counted where it does.
    fn happens(&mut self, probability: f64, count: fn(&mut Done) -> &mut u64) -> bool {
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

    /// Puts a frame at the end of `line`, perhaps spoilt, twice, or before the frame that was last.
    /// `copy` makes the second one; without room for it there is none. A frame that is to be
    /// dropped is handed back.
    fn misbehave(
        &mut self,
        mut frame: Frame,
        line: &mut VecDeque<Frame>,
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
            true => line.pop_back(),
            false => None,
        };
        line.push_back(frame);
        line.extend(earlier);
        line.extend(second);
        None
    }
}

impl<N: Nic> Nic for Faulty<N> {
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
        let wanted = budget.saturating_sub(self.pending.len());
        let mut arrived = std::mem::take(&mut self.arrived);
        self.inner.rx(now_ns, wanted, buffers, &mut arrived);
        let mut pending = std::mem::take(&mut self.pending);
        for frame in arrived.drain(..) {
            let dropped = self.misbehave(frame, &mut pending, |frame| frame.copied(buffers).ok());
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
                self.misbehave(frame.clone(), &mut out, |frame| Some(frame.clone()))
            {
                // Its sender does not learn of it.
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

    fn starved(&self) -> bool {
        self.inner.starved()
    }

    fn failure(&self) -> Option<&'static str> {
        self.inner.failure()
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
