//! An endpoint that consumes every frame.

use nic::prefetch::{fetch_ahead, frames_ahead};
use nic::small_frame::HEAD_BYTES;
use nic::{Buffers, Caps, Frame, Nic, Piece, SmallFrames, TxReport};
use shmem::{Fault, Span};
use stack::FRAME_MAX;

/// An endpoint that counts and discards frames.
#[derive(Debug, Default)]
pub struct Sink {
    touch: bool,
    sum: u32,
}

impl Sink {
    /// Creates a sink. With `touch`, it reads every byte of every frame, as a program would.
    #[must_use]
    pub fn new(touch: bool) -> Self {
        Self { touch, sum: 0 }
    }
}

impl Sink {
    /// Consumes a frame of `bytes` bytes in `parts`.
    #[inline]
    fn take(&mut self, bytes: usize, parts: impl Iterator<Item = Span>, report: &mut TxReport) {
        if self.touch {
            let sum = parts
                .map(read_all)
                .try_fold(0u32, |sum, part| Ok(sum.wrapping_add(part?)));
            let Ok::<u32, Fault>(sum) = sum else {
                report.fault += 1;
                return;
            };
            self.sum = self.sum.wrapping_add(sum);
        }
        report.sent += 1;
        report.bytes += bytes as u64;
    }
}

/// Reads every byte; returns a sum of them.
#[inline]
fn read_all(span: Span) -> Result<u32, Fault> {
    if span.len() != HEAD_BYTES {
        return shmem::ones_sum(span, 0);
    }
    // The smallest frames are summed here, which is faster than a call.
    let mut bytes = [0; HEAD_BYTES];
    span.read(&mut bytes)?;
    let words = bytes.as_chunks::<4>().0.iter();
    Ok(words.fold(0, |sum, word| sum.wrapping_add(u32::from_le_bytes(*word))))
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
        let first = frames.first().filter(|_| self.touch);
        let ahead = first.map(|piece| frames_ahead(piece.span.len()));
        for (at, piece) in frames.iter().enumerate() {
            let bytes = piece.span.len();
            if let Some(ahead) = ahead {
                fetch_ahead(frames, at, ahead, |piece| piece.span.prefetch());
            }
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
        // If the sum had no reader, the compiler would remove the computation.
        if self.touch {
            vec![("touched_sum", self.sum.into())]
        } else {
            Vec::new()
        }
    }
}
