//! A device that records its traffic in a capture file.

use super::format::PcapError;
use super::write::FrameWriter;
use crate::buffer::Buffers;
use crate::device::{Middleware, Nic, TxReport};
use crate::frame::Frame;
use std::io::Write;

/// A device that records every received and sent frame. If writing fails, it stops recording and
/// continues to pass frames.
#[derive(Debug)]
pub struct Tee<N, W> {
    inner: N,
    writer: Option<FrameWriter<W>>,
    failure: Option<PcapError>,
    recorded: u64,
}

impl<N: Nic, W: Write> Tee<N, W> {
    /// Wraps `inner` with a recorder.
    #[must_use]
    pub fn new(inner: N, writer: FrameWriter<W>) -> Self {
        Self {
            inner,
            writer: Some(writer),
            failure: None,
            recorded: 0,
        }
    }

    /// Returns why recording has stopped, or `None` if it continues.
    #[must_use]
    pub fn failure(&self) -> Option<&PcapError> {
        self.failure.as_ref()
    }

    fn record<'a>(&mut self, now_ns: u64, frames: impl Iterator<Item = &'a Frame>) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        for frame in frames {
            // A frame in inaccessible memory is not recorded. Its user detects the fault.
            self.recorded += u64::from(writer.write_frame(now_ns, frame) == Ok(true));
        }
        if let Err(why) = writer.flush() {
            self.writer = None;
            self.failure = Some(why);
        }
    }
}

impl<N: Nic, W: Write> Middleware for Tee<N, W> {
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
        self.record(now_ns, out.iter().skip(before));
        taken
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        self.record(
            now_ns,
            pick.iter().filter_map(|&index| frames.get(index as usize)),
        );
        self.inner.tx(now_ns, frames, pick)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.inner.counters();
        counters.push(("recorded", self.recorded));
        counters.push(("recording_failed", self.failure.is_some().into()));
        counters
    }
}
