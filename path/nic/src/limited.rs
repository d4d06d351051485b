//! A device behind a token bucket: the rate of the NIC model.
//!
//! A NIC of a given speed yields frames no faster than that, and sends no faster. Frames that
//! cannot be received yet stay in the device. Frames that cannot be sent yet are copied into a
//! queue of the NIC's own, as large as the buffers that it is given, and leave later.

use crate::buffer::Buffers;
use crate::device::{Caps, Nic, TxReport};
use crate::frame::Frame;
use crate::frame::copy::CopyError;
use crate::rate::TokenBucket;
use std::collections::VecDeque;

/// Bytes of a usual frame: what is waited for before there is another look.
const USUAL: u32 = 1514;

/// A device with a limit per direction.
pub struct Limited<N> {
    inner: N,
    rx: TokenBucket,
    tx: TokenBucket,
    /// Memory of frames that wait.
    memory: Box<dyn Buffers>,
    waiting: VecDeque<Frame>,
    leaving: Vec<Frame>,
    /// The limit, not the device, ended the last look.
    held_back: bool,
    /// What became of frames that had to wait, when they left.
    late: TxReport,
    queued: u64,
}

impl<N> std::fmt::Debug for Limited<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limited")
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

impl<N: Nic> Limited<N> {
    /// `inner` behind buckets of `bytes_per_s` and `burst_bytes`, one per direction; `memory` holds
    /// what waits to be sent.
    #[must_use]
    pub fn new(inner: N, bytes_per_s: u64, burst_bytes: u32, memory: Box<dyn Buffers>) -> Self {
        Self {
            inner,
            rx: TokenBucket::new(bytes_per_s, burst_bytes),
            tx: TokenBucket::new(bytes_per_s, burst_bytes),
            memory,
            waiting: VecDeque::new(),
            leaving: Vec::new(),
            held_back: false,
            late: TxReport::default(),
            queued: 0,
        }
    }

    /// Sends what has waited long enough.
    fn send_late(&mut self, now_ns: u64) {
        while let Some(frame) = self.waiting.front()
            && self.tx.take(now_ns, frame.len() as u32)
        {
            self.leaving.extend(self.waiting.pop_front());
        }
        if self.leaving.is_empty() {
            return;
        }
        let all: Vec<u32> = (0..self.leaving.len() as u32).collect();
        self.late += self.inner.tx(now_ns, &self.leaving, &all);
        for frame in &mut self.leaving {
            frame.recycle(&mut *self.memory);
        }
        self.leaving.clear();
    }
}

impl<N: Nic> Nic for Limited<N> {
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
        self.send_late(now_ns);
        let mut taken = 0;
        self.held_back = false;
        while taken < budget {
            let allowed = self.rx.available(now_ns);
            if allowed == 0 {
                self.held_back = true;
                break;
            }
            // How long they are shows when they are there; the last may leave a debt.
            let chunk = (allowed.div_ceil(USUAL) as usize).min(budget - taken);
            let before = out.len();
            let count = self.inner.rx(now_ns, chunk, buffers, out);
            for frame in out.iter().skip(before) {
                self.rx.charge(frame.len() as u32);
            }
            taken += count;
            if count < chunk {
                break;
            }
        }
        taken
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        self.send_late(now_ns);
        let caps = self.inner.caps();
        let mut report = TxReport::default();
        let mut now = Vec::with_capacity(pick.len());
        for &index in pick {
            let Some(frame) = frames.get(index as usize) else {
                continue;
            };
            if self.waiting.is_empty() && self.tx.take(now_ns, frame.len() as u32) {
                now.push(index);
            } else if !caps.takes(frame) {
                // Not worth the memory: the device would refuse it later.
                report.refused += 1;
            } else {
                match frame.copied(&mut *self.memory) {
                    Ok(copy) => {
                        self.waiting.push_back(copy);
                        self.queued += 1;
                        report.sent += 1;
                        report.bytes += frame.len() as u64;
                    }
                    Err(CopyError::NoBuffer) => report.full += 1,
                    Err(CopyError::Fault(_)) => report.fault += 1,
                }
            }
        }
        report += self.inner.tx(now_ns, frames, &now);
        report
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
        let receive = match self.held_back {
            true => self.rx.ready_at(now_ns, USUAL),
            false => self.inner.next_due(now_ns),
        };
        let send = self.waiting.front();
        let send = send.and_then(|frame| self.tx.ready_at(now_ns, frame.len() as u32));
        receive.into_iter().chain(send).min()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.inner.counters();
        counters.push(("queued", self.queued));
        counters.push(("queued_full", self.late.full.into()));
        counters.push(("queued_fault", self.late.fault.into()));
        counters.push(("queued_refused", self.late.refused.into()));
        counters
    }
}
