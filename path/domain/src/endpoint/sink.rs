//! An endpoint that takes every frame.

use super::FRAME_MAX;
use nic::{Buffers, Caps, Frame, Nic, TxReport};

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
            if self.touch {
                let mut parts = frame.payload().map(|span| shmem::ones_sum(span, 0));
                let sum = parts.try_fold(0u32, |sum, part| part.map(|part| sum.wrapping_add(part)));
                let Ok(sum) = sum else {
                    report.fault += 1;
                    continue;
                };
                self.sum = self.sum.wrapping_add(sum);
            }
            report.sent += 1;
            report.bytes += frame.len() as u64;
        }
        report
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
