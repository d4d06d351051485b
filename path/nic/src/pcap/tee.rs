//! A device with a capture file beside it.

use super::format::PcapError;
use super::write::Writer;
use crate::buffer::Buffers;
use crate::device::{Caps, Nic, TxReport};
use crate::frame::Frame;
use std::io::Write;

/// Records every frame that a device yields or is given. When the file fails, recording ends and
/// frames go on.
#[derive(Debug)]
pub struct Tee<N, W> {
    inner: N,
    writer: Option<Writer<W>>,
    failure: Option<PcapError>,
    recorded: u64,
}

impl<N: Nic, W: Write> Tee<N, W> {
    /// `inner`, recorded.
    #[must_use]
    pub fn new(inner: N, writer: Writer<W>) -> Self {
        Self {
            inner,
            writer: Some(writer),
            failure: None,
            recorded: 0,
        }
    }

    /// Why recording ended, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<&PcapError> {
        self.failure.as_ref()
    }

    fn record<'a>(&mut self, now_ns: u64, frames: impl Iterator<Item = &'a Frame>) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        for frame in frames {
            // A frame whose memory is gone is not there to be recorded; its user will notice.
            self.recorded += u64::from(writer.frame(now_ns, frame) == Ok(true));
        }
        if let Err(why) = writer.flush() {
            self.writer = None;
            self.failure = Some(why);
        }
    }
}

impl<N: Nic, W: Write> Nic for Tee<N, W> {
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
        let mut counters = self.inner.counters();
        counters.push(("recorded", self.recorded));
        counters.push(("recording_failed", self.failure.is_some().into()));
        counters
    }
}
