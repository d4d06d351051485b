//! Large receive offload of queues for single guests: frames are merged where they lie, in the
//! pages that their guest has posted (Ram's thesis, 5.1, "LRO DD").
//!
//! Responses keep the order of the requests (but for `specs/netif.md`, NETIF-26: see
//! [`QueueMerger::merge_any`]), so only frames in consecutive buffers can become one:
//! a run of one stream. Streams whose packets alternate are left to the guest. Nothing is held from
//! one batch to the next, because nothing of the guest's stays out that long.

use config::domain::Lro;
use config::lro::{Flush, Form};
use net::packet::flow::TcpFlow;
use nic::{BufferId, Frame};
use runtime::lro::{Merger, Side, Sums};
use serde_json::Value;
use vif::grants::Grants;
use vif::netback::Netback;

/// As long as anything may be held at all: holding is ended by hand.
const HOLD_US: u32 = 10_000;

/// The engine for all queues of one NIC; empty between batches.
#[derive(Debug)]
pub struct QueueMerger {
    merger: Merger,
    /// Room for a run, for a frame of it, and for what becomes of them.
    run: Vec<Frame>,
    one: Vec<Frame>,
    merged: Vec<Frame>,
}

/// What the engine is told: the form in which every packet keeps its buffer, and to hold until it
/// is asked.
fn settings(lro: &Lro) -> Lro {
    Lro {
        buffers: Form::Skb,
        flush: Flush::After(HOLD_US),
        ..*lro
    }
}

impl QueueMerger {
    /// An engine that merges if `lro` says that the driver domain does.
    #[must_use]
    pub fn new(lro: &Lro) -> Self {
        Self {
            merger: Merger::new(Side::Physical, &settings(lro), usize::MAX),
            run: Vec::new(),
            one: Vec::new(),
            merged: Vec::new(),
        }
    }

    /// Changes what can be changed.
    pub fn set(&mut self, lro: &Lro) {
        self.merger.set(&settings(lro));
    }

    /// Whether it merges at all.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.merger.is_active()
    }

    /// Settings and counters, as JSON.
    #[must_use]
    pub fn stat(&self) -> Value {
        self.merger.stat()
    }

    /// Adds what it has counted to a domain's sums.
    pub fn add_to(&self, sums: &mut Sums) {
        self.merger.add_to(sums);
    }

    /// Merges the frames of a batch that lie in buffers which are answered in any order.
    pub fn merge_any(&mut self, now_ns: u64, frames: &mut Vec<Frame>) {
        self.merger.pass(now_ns, false, frames, &mut self.merged);
        self.merger.drain(now_ns, &mut self.merged);
        frames.append(&mut self.merged);
    }

    /// Merges the frames of a batch, which lie in buffers of `netback`'s batch, in their order.
    pub fn merge<G: Grants>(&mut self, netback: &Netback<G>, now_ns: u64, frames: &mut Vec<Frame>) {
        let slots = usize::from(netback.terms().to_guest.max_slots);
        let mut rest = frames.drain(..).peekable();
        while let Some(first) = rest.next() {
            let (flow, mut last) = (TcpFlow::of(&first), last_buffer(&first));
            if flow.is_some() && netback.may_begin(buffer(&first)) {
                self.run.push(first);
                while self.run.len() < slots
                    && let Some(next) = rest.next_if(|next| {
                        netback.may_follow(last, buffer(next)) && TcpFlow::of(next) == flow
                    })
                {
                    last = last_buffer(&next);
                    self.run.push(next);
                }
                self.merge_run(netback.leaves_out(), now_ns);
            } else {
                self.merged.push(first);
            }
        }
        drop(rest);
        frames.append(&mut self.merged);
    }

    /// Merges a run of one stream. With `once` only what its first frame begins: nothing else has a
    /// place for its segment size.
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

/// The buffer that a frame begins in.
fn buffer(frame: &Frame) -> BufferId {
    let first = frame.pieces.first();
    first.map_or(BufferId::NONE, |piece| piece.buffer)
}

/// The buffer that a frame ends in.
fn last_buffer(frame: &Frame) -> BufferId {
    let last = frame.pieces.last();
    last.map_or(BufferId::NONE, |piece| piece.buffer)
}

#[cfg(test)]
mod tests;
