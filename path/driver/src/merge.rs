//! Large receive offload of dedicated queues: merges frames in place, in the guest's posted pages
//! (Ram's thesis, 5.1, "LRO DD").
//!
//! Responses have the order of the requests (except with `specs/netif.md`, NETIF-27: see
//! [`QueueLro::merge_any`]). So only runs can merge: frames of one stream in consecutive buffers.
//! The guest may merge interleaved streams. No frame is held across batches, because the guest's
//! buffers return at the end of each batch.

use config::domain::LroConfig;
use config::lro::{FlushConfig, FormKey};
use net::packet::flow::TcpFlow;
use nic::{BufferId, Frame};
use runtime::lro::{LroSide, LroStage, Sums};
use serde_json::Value;
use vif::grants::GrantMechanism;
use vif::netback::Netback;

/// Maximum time that the engine holds packets, in microseconds. It exceeds the time of any batch,
/// because the end of the batch flushes the engine.
const HOLD_MAX_US: u32 = 10_000;

/// The LRO engine for all queues of one NIC; empty between batches.
#[derive(Debug)]
pub struct QueueLro {
    merger: LroStage,
    /// Scratch lists for a run, for its current frame, and for the output.
    run: Vec<Frame>,
    one: Vec<Frame>,
    merged: Vec<Frame>,
}

/// Returns the engine's settings: each packet keeps its buffer, and the engine holds aggregates
/// until the end of the batch.
fn settings(lro: &LroConfig) -> LroConfig {
    LroConfig {
        buffers: FormKey::Skb,
        flush: FlushConfig::After(HOLD_MAX_US),
        ..*lro
    }
}

impl QueueLro {
    /// Creates an engine that merges if `lro` enables merging in the driver domain.
    #[must_use]
    pub fn new(lro: &LroConfig) -> Self {
        Self {
            merger: LroStage::new(LroSide::Physical, &settings(lro), usize::MAX),
            run: Vec::new(),
            one: Vec::new(),
            merged: Vec::new(),
        }
    }

    /// Changes the settings.
    pub fn set(&mut self, lro: &LroConfig) {
        self.merger.set(&settings(lro));
    }

    /// Returns whether merging is enabled.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.merger.is_active()
    }

    /// Returns the settings and counters as JSON.
    #[must_use]
    pub fn stat(&self) -> Value {
        self.merger.stat()
    }

    /// Adds the counters to a domain's sums.
    pub fn add_to(&self, sums: &mut Sums) {
        self.merger.add_to(sums);
    }

    /// Merges the frames of a batch whose buffers the netback answers in any order.
    pub fn merge_any(&mut self, now_ns: u64, frames: &mut Vec<Frame>) {
        self.merger.pass(now_ns, false, frames, &mut self.merged);
        self.merger.drain(now_ns, &mut self.merged);
        frames.append(&mut self.merged);
    }

    /// Merges the frames of a batch whose buffers are in `netback`'s batch, and preserves their
    /// order.
    pub fn merge<G: GrantMechanism>(
        &mut self,
        netback: &Netback<G>,
        now_ns: u64,
        frames: &mut Vec<Frame>,
    ) {
        let slots = usize::from(netback.negotiated().to_guest.max_slots);
        let mut rest = frames.drain(..).peekable();
        while let Some(first) = rest.next() {
            let (flow, mut last) = (TcpFlow::of(&first), last_buffer(&first));
            if flow.is_some() && netback.may_begin(first_buffer(&first)) {
                self.run.push(first);
                while self.run.len() < slots
                    && let Some(next) = rest.next_if(|next| {
                        netback.may_follow(last, first_buffer(next)) && TcpFlow::of(next) == flow
                    })
                {
                    last = last_buffer(&next);
                    self.run.push(next);
                }
                self.merge_run(netback.skips_requests(), now_ns);
            } else {
                self.merged.push(first);
            }
        }
        drop(rest);
        frames.append(&mut self.merged);
    }

    /// Merges a run of one stream. With `once`, merges only into the first frame, because only the
    /// first frame has a slot for its segment size.
    fn merge_run(&mut self, once: bool, now_ns: u64) {
        let Self {
            merger,
            run,
            one,
            merged,
        } = self;
        if !once {
            merger.pass(now_ns, false, run, merged);
            merger.drain(now_ns, merged);
            return;
        }
        let before = merged.len();
        let mut rest = run.drain(..);
        for frame in rest.by_ref() {
            one.push(frame);
            merger.pass(now_ns, false, one, merged);
            if merged.len() > before {
                break;
            }
        }
        merger.drain(now_ns, merged);
        merged.extend(rest);
    }
}

/// Returns the first buffer of a frame.
fn first_buffer(frame: &Frame) -> BufferId {
    let first = frame.pieces.first();
    first.map_or(BufferId::NONE, |piece| piece.buffer)
}

/// Returns the last buffer of a frame.
fn last_buffer(frame: &Frame) -> BufferId {
    let last = frame.pieces.last();
    last.map_or(BufferId::NONE, |piece| piece.buffer)
}

#[cfg(test)]
mod tests;
