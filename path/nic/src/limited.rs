//! A device behind a token bucket: the rate of the NIC model.
//!
//! A NIC of a given speed receives and sends no faster than that. Received frames above the rate
//! wait in the inner device. Sent frames above the rate are copied into a queue, which models the
//! NIC's buffers, and are sent later.

use crate::buffer::Buffers;
use crate::device::{Middleware, Nic, TxReport};
use crate::frame::Frame;
use crate::frame::copy::CopyError;
use crate::rate::TokenBucket;
use std::collections::VecDeque;

/// Length of a typical frame in bytes. The next poll waits until the bucket allows one.
const USUAL: u32 = 1514;

/// A device with a rate limit per direction.
pub struct Limited<N> {
    inner: N,
    rx: TokenBucket,
    tx: TokenBucket,
    /// Memory of queued frames.
    memory: Box<dyn Buffers>,
    waiting: VecDeque<Frame>,
    leaving: Vec<Frame>,
    /// Whether the last poll ended at the limit, with frames possibly left in the device.
    held_back: bool,
    /// Results of queued frames that were sent since the last report.
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
    /// Puts `inner` behind buckets of `bytes_per_s` and `burst_bytes`, one per direction; `memory`
    /// holds frames queued for sending.
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

    /// Sends queued frames that are due.
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

impl<N: Nic> Middleware for Limited<N> {
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
        self.send_late(now_ns);
        let mut taken = 0;
        self.held_back = false;
        while taken < budget {
            let allowed = self.rx.available(now_ns);
            if allowed == 0 {
                self.held_back = true;
                break;
            }
            // A frame's length is known only after it is received, so the last one may leave a
            // debt.
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
                // Not worth queueing: the device would reject it later.
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
