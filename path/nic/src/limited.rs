//! A device with a rate limit, which models the speed of a NIC.
//!
//! A token bucket per direction limits the rate. Received frames above the rate wait in the inner
//! device. Sent frames above the rate are copied into a queue, which models the NIC's buffers, and
//! are sent later.

use crate::buffer::Buffers;
use crate::device::{Middleware, Nic, TxReport};
use crate::frame::Frame;
use crate::frame::copy::CopyError;
use crate::rate::TokenBucket;
use std::collections::VecDeque;

/// Length of a typical frame in bytes. The next poll waits until the bucket permits a frame of this
/// length.
const TYPICAL_FRAME_BYTES: u32 = 1514;

/// A device with a rate limit per direction.
pub struct Limited<N> {
    inner: N,
    rx: TokenBucket,
    tx: TokenBucket,
    /// Memory of queued frames.
    memory: Box<dyn Buffers>,
    waiting: VecDeque<Frame>,
    sending: Vec<Frame>,
    /// Whether the last poll stopped at the limit, so that the device may hold more frames.
    rate_limited: bool,
    /// Results of the frames that were sent from the queue.
    deferred: TxReport,
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
    /// Wraps `inner` with a bucket of `bytes_per_s` and `burst_bytes` per direction. `memory` holds
    /// the frames queued for sending.
    #[must_use]
    pub fn new(inner: N, bytes_per_s: u64, burst_bytes: u32, memory: Box<dyn Buffers>) -> Self {
        Self {
            inner,
            rx: TokenBucket::new(bytes_per_s, burst_bytes),
            tx: TokenBucket::new(bytes_per_s, burst_bytes),
            memory,
            waiting: VecDeque::new(),
            sending: Vec::new(),
            rate_limited: false,
            deferred: TxReport::default(),
            queued: 0,
        }
    }

    /// Sends queued frames that are due.
    fn send_deferred(&mut self, now_ns: u64) {
        while let Some(frame) = self.waiting.front()
            && self.tx.take(now_ns, frame.len() as u32)
        {
            self.sending.extend(self.waiting.pop_front());
        }
        if self.sending.is_empty() {
            return;
        }
        let all: Vec<u32> = (0..self.sending.len() as u32).collect();
        self.deferred += self.inner.tx(now_ns, &self.sending, &all);
        for frame in &mut self.sending {
            frame.recycle(&mut *self.memory);
        }
        self.sending.clear();
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
        self.send_deferred(now_ns);
        let mut taken = 0;
        self.rate_limited = false;
        while taken < budget {
            let allowed = self.rx.available(now_ns);
            if allowed == 0 {
                self.rate_limited = true;
                break;
            }
            // A frame's length is known only after it is received, so the last frame may overdraw
            // the bucket.
            let chunk = (allowed.div_ceil(TYPICAL_FRAME_BYTES) as usize).min(budget - taken);
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
        self.send_deferred(now_ns);
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
                // The device would reject it later.
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
        let receive = match self.rate_limited {
            true => self.rx.ready_at(now_ns, TYPICAL_FRAME_BYTES),
            false => self.inner.next_due(now_ns),
        };
        let send = self.waiting.front();
        let send = send.and_then(|frame| self.tx.ready_at(now_ns, frame.len() as u32));
        receive.into_iter().chain(send).min()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.inner.counters();
        counters.push(("queued", self.queued));
        counters.push(("queued_full", self.deferred.full.into()));
        counters.push(("queued_fault", self.deferred.fault.into()));
        counters.push(("queued_refused", self.deferred.refused.into()));
        counters
    }
}
