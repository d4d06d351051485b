//! Large receive offload of dedicated queues: merges frames in place, in the guest's posted pages
//! (Ram's thesis, 5.1, "LRO DD").
//!
//! If the guest accepts responses in any order (NETIF-27), the engine of the shared queue merges by
//! its own rules and flush policy, and holds aggregates across polls ([`QueueLro::pass`]):
//!
//! - A held frame's request is outstanding, and its page in use ([`vif::netback::Netback::keep`]).
//! - Held frames occupy at most half of the buffers that the guest has posted, and each aggregate
//!   reserves a request for its segment size. Otherwise the oldest aggregates are flushed.
//! - Held frames are flushed when they are due, when the guest has announced a revocation since the
//!   last poll, when the settings change, and before frames for the same guest take another path:
//!   when the queue is reassigned, or the guest lacks buffers. The header of a frame whose page was
//!   revoked by force cannot be written, so the frame is dropped.
//! - Held frames of a closed connection are discarded; the guest has its pages back by then.
//!
//! Otherwise responses have the order of the requests, so nothing can be held, and only runs merge:
//! frames of one stream in consecutive buffers of one batch ([`QueueLro::merge_runs`]). The guest
//! may merge the rest.

use config::domain::LroConfig;
use config::lro::{FlushConfig, FormKey};
use net::packet::flow::TcpFlow;
use nic::{BufferId, Frame};
use runtime::lro::{LroSide, LroStage, Sums};
use serde_json::Value;
use vif::grants::GrantMechanism;
use vif::netback::Netback;
use vif::netif::MAX_SLOTS;

/// Maximum time for which the engine holds the packets of a run, in microseconds. It exceeds the
/// time of any batch, because the end of the run flushes the engine.
const HOLD_MAX_US: u32 = 10_000;

/// The LRO engine for the frames of one guest's queue.
#[derive(Debug)]
pub struct QueueLro {
    config: LroConfig,
    /// Maximum number of slots of a packet to the guest, if frames can be held for it.
    slots: Option<u16>,
    merger: LroStage,
    /// The guest's connection whose buffers the held frames occupy.
    connection: u64,
    /// The guest's count of revocations at the last poll.
    revocations: u64,
    /// Whether the bridge has decided on the held frames.
    decided: bool,
    /// Scratch lists for a run, for its current frame, and for the output.
    run: Vec<Frame>,
    one: Vec<Frame>,
    merged: Vec<Frame>,
}

/// A poll of a guest's queue.
#[derive(Clone, Copy, Debug)]
pub struct QueuePoll {
    /// The time.
    pub now_ns: u64,
    /// Whether the poll counts for the flush policy even without frames.
    pub counts: bool,
    /// The number of the guest's connection.
    pub connection: u64,
    /// Whether the bridge has decided on the frames.
    pub decided: bool,
}

/// Returns the engine's settings for a guest. Each packet keeps its buffer, so it takes one of a
/// merged packet's `slots`. An engine without `slots` holds packets until the end of their run.
fn settings(lro: &LroConfig, slots: Option<u16>) -> LroConfig {
    LroConfig {
        buffers: FormKey::Skb,
        flush: match slots {
            Some(_) => lro.flush,
            None => FlushConfig::After(HOLD_MAX_US),
        },
        segments: slots.map_or(lro.segments, |slots| lro.segments.min(slots.into())),
        ..*lro
    }
}

/// Returns an engine that gets no frames, for the settings of engines that hold frames.
#[must_use]
pub fn unused_stage(lro: &LroConfig) -> LroStage {
    LroStage::new(LroSide::Physical, &settings(lro, Some(MAX_SLOTS)), 0)
}

impl QueueLro {
    /// Creates an engine that merges if `lro` enables merging in the driver domain.
    #[must_use]
    pub fn new(lro: &LroConfig) -> Self {
        Self {
            config: *lro,
            slots: None,
            merger: LroStage::new(LroSide::Physical, &settings(lro, None), usize::MAX),
            connection: 0,
            revocations: 0,
            decided: false,
            run: Vec::new(),
            one: Vec::new(),
            merged: Vec::new(),
        }
    }

    /// Changes the settings. The held frames become due.
    pub fn set(&mut self, lro: &LroConfig) {
        self.config = *lro;
        self.merger.set(&settings(lro, self.slots));
    }

    /// Returns whether merging is enabled, or frames are held.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.merger.is_active()
    }

    /// Returns the engine, for its counters.
    #[must_use]
    pub fn stage(&self) -> &LroStage {
        &self.merger
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

    /// Returns whether frames are held.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.merger.held() > 0
    }

    /// Returns whether the bridge has decided on the held frames.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        self.decided
    }

    /// Returns the number of held aggregates.
    #[must_use]
    pub fn aggregates(&self) -> usize {
        self.merger.aggregates()
    }

    /// Returns the time at which held frames are due.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.merger.next_due()
    }

    /// Sets the maximum number of slots of a packet, or `None` if no frames are held.
    fn set_slots(&mut self, slots: Option<u16>) {
        if slots != self.slots {
            self.slots = slots;
            self.merger.set(&settings(&self.config, slots));
        }
    }

    /// Merges the kept frames of a poll with held ones. Leaves the flushed frames in `frames`, and
    /// holds the others. The caller delivers the flushed frames and then calls
    /// [`QueueLro::reserve`].
    pub fn pass<G: GrantMechanism>(
        &mut self,
        netback: &mut Netback<G>,
        poll: QueuePoll,
        frames: &mut Vec<Frame>,
    ) {
        self.set_slots(Some(netback.negotiated().to_guest.max_slots));
        let now_ns = poll.now_ns;
        (self.connection, self.decided) = (poll.connection, poll.decided);
        let revocations = netback.revocations();
        let revoked = std::mem::replace(&mut self.revocations, revocations) != revocations;
        let buffers: usize = frames.iter().map(|frame| frame.pieces.len()).sum();
        let received = self.merger.held() + buffers;
        let at_device = netback.outstanding().saturating_sub(received);
        // Without requests for the segment sizes of all merged frames, nothing is merged.
        let merged_most = (frames.len() / 2) as u32;
        if netback.posted(merged_most) < merged_most {
            self.merger.limit_held((0, 0), now_ns, &mut self.merged);
            self.merged.append(frames);
        } else {
            let out = &mut self.merged;
            self.merger.pass(now_ns, poll.counts, frames, out);
            self.limit(netback, at_device, now_ns);
            if revoked {
                self.merger.flush_revoked(now_ns, &mut self.merged);
            }
        }
        frames.append(&mut self.merged);
    }

    /// Flushes the oldest aggregates while too few buffers or requests remain posted.
    fn limit<G: GrantMechanism>(
        &mut self,
        netback: &mut Netback<G>,
        at_device: usize,
        now_ns: u64,
    ) {
        let Self { merger, merged, .. } = self;
        let held = merger.held();
        let posted = at_device + netback.reservable(held as u32) as usize;
        merger.limit_held((posted, usize::MAX), now_ns, merged);
        while let aggregates @ 1.. = merger.aggregates() {
            let flushed = merged.iter().filter(|frame| frame.pieces.len() > 1).count();
            let needed = flushed + aggregates;
            if netback.reservable(needed as u32) as usize >= needed {
                return;
            }
            merger.limit_held((usize::MAX, aggregates - 1), now_ns, merged);
        }
    }

    /// Reserves requests of the guest for the segment sizes of held frames.
    pub fn reserve<G: GrantMechanism>(&self, netback: &mut Netback<G>) {
        netback.reserve(self.aggregates() as u32);
    }

    /// Appends the held frames that must be delivered now to `out`. `guest` is the guest's
    /// connection and netback, if it is connected; `is_open` states whether the queue still
    /// receives the guest's frames.
    pub fn flush_due<G: GrantMechanism>(
        &mut self,
        guest: Option<(u64, &mut Netback<G>)>,
        is_open: bool,
        now_ns: u64,
        out: &mut Vec<Frame>,
    ) {
        let Some((_, netback)) = guest.filter(|(now, _)| *now == self.connection) else {
            return self.discard(now_ns);
        };
        let revocations = netback.revocations();
        if self.revocations != revocations {
            self.revocations = revocations;
            self.merger.flush_revoked(now_ns, out);
        } else if netback.posted(1) == 0 {
            self.merger.limit_held((0, 0), now_ns, out);
        } else if !is_open {
            self.merger.drain(now_ns, out);
        } else if self.due_ns().is_some_and(|due| due <= now_ns) {
            self.merger.pass(now_ns, false, &mut Vec::new(), out);
        }
    }

    /// Drops the held frames of a closed connection, without access to their buffers.
    pub fn discard(&mut self, now_ns: u64) {
        self.merger.drain(now_ns, &mut self.merged);
        self.merged.clear();
    }

    /// Merges runs of a batch's frames whose buffers are in `netback`'s batch, and preserves the
    /// order of the buffers.
    pub fn merge_runs<G: GrantMechanism>(
        &mut self,
        netback: &Netback<G>,
        now_ns: u64,
        frames: &mut Vec<Frame>,
    ) {
        self.set_slots(None);
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
            ..
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
