//! An endpoint that takes every frame.

use nic::frame::HOT;
use nic::{Buffers, Caps, Frame, Nic, Piece, SmallFrames, TxReport};
use shmem::Span;
use stack::FRAME_MAX;

/// Counts what comes, and throws it away.
#[derive(Debug, Default)]
pub struct Sink {
    touch: bool,
    sum: u32,
}

impl Sink {
    /// A sink; with `touch` it reads every byte of every frame, as a program would.
    #[must_use]
    pub fn new(touch: bool) -> Self {
        Self { touch, sum: 0 }
    }
}

impl Sink {
    /// Takes a frame of so many bytes, of which these are read if any are.
    #[inline]
    fn take(&mut self, bytes: usize, parts: impl Iterator<Item = Span>, report: &mut TxReport) {
        if self.touch {
            let mut sums = parts.map(|span| shmem::ones_sum(span, 0));
            let sum = sums.try_fold(0u32, |sum, part| part.map(|part| sum.wrapping_add(part)));
            let Ok(sum) = sum else {
                report.fault += 1;
                return;
            };
            self.sum = self.sum.wrapping_add(sum);
        }
        report.sent += 1;
        report.bytes += bytes as u64;
    }
}

impl SmallFrames for Sink {
    fn rx_small_frames(
        &mut self,
        _: u64,
        _: usize,
        _: &mut dyn Buffers,
        _: &mut Vec<Piece>,
    ) -> usize {
        0
    }

    fn tx_small_frames(&mut self, _now_ns: u64, frames: &[Piece]) -> TxReport {
        let mut report = TxReport::default();
        if self.touch {
            let starts = frames.iter().map(|piece| piece.span.take(HOT));
            starts.for_each(Span::prefetch);
        }
        for piece in frames {
            let bytes = piece.span.len();
            self.take(bytes, std::iter::once(piece.span), &mut report);
        }
        report
    }
}

impl Nic for Sink {
    fn caps(&self) -> Caps {
        Caps {
            checksum: true,
            tso: true,
            max_frame: FRAME_MAX,
        }
    }

    fn rx(
        &mut self,
        _now_ns: u64,
        _budget: usize,
        _buffers: &mut dyn Buffers,
        _out: &mut Vec<Frame>,
    ) -> usize {
        0
    }

    fn tx(&mut self, _now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let mut report = TxReport::default();
        for frame in pick.iter().filter_map(|&index| frames.get(index as usize)) {
            self.take(frame.len(), frame.payload(), &mut report);
        }
        report
    }

    fn small_frames(&mut self) -> Option<&mut dyn SmallFrames> {
        Some(self)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        // Without a reader the sums would be left out.
        if self.touch {
            vec![("touched_sum", self.sum.into())]
        } else {
            Vec::new()
        }
    }
}
