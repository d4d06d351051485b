//! The egress queue of one guest: frames that wait for receive buffers, or for tokens of
//! `rate_to_guest_mbps`.
//!
//! It is a [`FairQueue`] (FQ-CoDel) with a token bucket that counts bytes of frames. An aggregate
//! counts as one frame. An aggregate longer than the burst is split at the burst. A frame that
//! cannot be split passes when the bucket is full, and leaves a debt.
//!
//! A queued frame stays in its receive buffers; [`crate::queueing`] tracks their owners.

use abi::counts::Counts;
use config::domain::{FrameLimit, bytes_per_s};
use net::packet::ecn::mark_ce;
use net::packet::segment::{cut, packets};
use net::queue::codel::Params;
use net::queue::{Cause, FairQueue, QueuedPacket};
use nic::Frame;
use nic::rate::TokenBucket;
use serde_json::{Value, json};

/// Longest wait of a frame. By then its sender has retransmitted it.
const LONGEST_NS: u64 = 500_000_000;
/// Time for a guest with too few posted buffers for an aggregate to post the rest. After it, the
/// aggregate is split to fit.
const WHOLE_NS: u64 = 500_000;
/// Interval of early signals while a queue begins to fill: several round trips.
const EARLY_NS: u64 = 10_000_000;
/// Sleep time of the driver while frames wait for tokens.
const PACE_NS: u64 = 250_000;

/// A queued frame.
#[derive(Debug)]
pub struct Queued {
    /// The part that is still to be sent.
    pub frame: Frame,
    /// The original frame with all buffers, if parts were split off.
    pub whole: Option<Frame>,
    /// The port that owns the buffers; [`Queued::COPIED`]: the switch.
    pub owner: usize,
    /// Number of buffers that it holds.
    pub units: usize,
}

impl Queued {
    /// The owner of frames in the switch's buffers.
    pub const COPIED: usize = usize::MAX;

    /// Splits off a part of at most `bytes` bytes. Returns `None` if the frame cannot be split.
    fn cut(&mut self, bytes: usize) -> Option<Box<Self>> {
        self.frame.offload.gso?;
        let (first, rest) = cut(&self.frame, bytes).ok()?;
        let before = std::mem::replace(&mut self.frame, rest);
        self.whole.get_or_insert(before);
        // The pieces of parts belong to no pool.
        Some(Box::new(Self {
            frame: first,
            whole: None,
            owner: self.owner,
            units: 0,
        }))
    }
}

impl QueuedPacket for Box<Queued> {
    fn bytes(&self) -> u64 {
        self.frame.len() as u64
    }

    fn units(&self) -> usize {
        self.units
    }

    fn mark(&mut self) -> bool {
        mark_ce(self.frame.header_mut())
    }

    fn shed(&mut self) -> Option<Self> {
        self.cut(0)
    }
}

/// Dropped packets by cause. Each packet of an aggregate counts.
pub type QueueDrops = Counts<Cause, { Cause::COUNT }>;

/// The receive buffers that a guest has posted.
pub trait PostedBuffers {
    /// Returns the number of free buffers.
    fn left(&self) -> u32;
    /// Returns the number of buffers that a frame needs.
    fn slots(&self, frame: &Frame) -> u32;
    /// Returns the length in bytes of the longest aggregate like `frame` that fits into the free
    /// buffers; 0 if not even one packet fits.
    fn bytes(&self, frame: &Frame) -> usize;
}

/// Reason why the first frame of a queue waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blocked {
    /// It does not wait: the queue is empty or may send.
    #[default]
    Nothing,
    /// For tokens, until this time.
    Tokens(u64),
    /// For this many receive buffers, since this time.
    Buffers(u32, u64),
}

/// Queued frames for one guest, and its rate limit.
#[derive(Debug, Default)]
pub struct EgressQueue {
    /// The rate limit; `None`: unlimited.
    bucket: Option<TokenBucket>,
    burst_bytes: usize,
    bytes_per_s: u64,
    params: Params,
    queue: FairQueue<Box<Queued>>,
    blocked: Blocked,
    /// Earliest time at which a frame may be late.
    late_ns: u64,
    /// Earliest time of the next early signal.
    early_ns: u64,
    /// Packets dropped by the queue.
    pub drops: QueueDrops,
}

impl EgressQueue {
    /// Replaces the limit, and starts with a full bucket.
    pub fn set(&mut self, limit: Option<&FrameLimit>) {
        self.bucket = None;
        self.params = Params::default();
        if let Some(limit) = limit {
            self.bytes_per_s = bytes_per_s(limit.rate_mbps);
            self.burst_bytes = limit.burst_bytes as usize;
            self.params = Params::at_rate(self.bytes_per_s);
            self.bucket = Some(TokenBucket::new(self.bytes_per_s, limit.burst_bytes));
        }
        self.blocked = Blocked::Nothing;
    }

    /// Returns whether frames may bypass the queue: it is empty, and there is no limit.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.bucket.is_none() && self.queue.is_empty()
    }

    /// Returns whether the queue is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the number of buffers that queued frames hold.
    #[must_use]
    pub fn units(&self) -> usize {
        self.queue.units()
    }

    /// Returns whether frames of `bytes` bytes may pass at once: the queue is empty and has tokens.
    #[inline]
    #[must_use]
    pub fn can_send_now(&self, now_ns: u64, bytes: impl FnOnce() -> usize) -> bool {
        let Some(bucket) = &self.bucket else {
            return self.queue.is_empty();
        };
        if !self.queue.is_empty() {
            return false;
        }
        let bytes = bytes();
        // A single frame may exceed the burst; several frames together may not.
        bytes <= self.burst_bytes && has_tokens(bucket, now_ns, bytes)
    }

    /// Takes the tokens of passing frames.
    #[inline]
    pub fn charge(&mut self, now_ns: u64, bytes: impl FnOnce() -> usize) {
        if let Some(bucket) = &mut self.bucket {
            // Tokens accrue from the first use.
            bucket.available(now_ns);
            bucket.charge(u32::try_from(bytes()).unwrap_or(u32::MAX));
        }
    }

    /// Appends a frame of the flow with this hash from the port `in_port`.
    pub fn push(&mut self, queued: Box<Queued>, (in_port, hash): (usize, u32), now_ns: u64) {
        if self.queue.is_empty() {
            self.late_ns = now_ns.saturating_add(LONGEST_NS);
        }
        self.queue.push(queued, (in_port, hash), now_ns);
    }

    /// Drops the oldest frame of the longest flow; returns false if the queue is empty.
    pub fn drop_from_longest(&mut self, lost: &mut Vec<(Cause, Box<Queued>)>) -> bool {
        let drop = |cause, queued| lost.push((cause, queued));
        self.queue.drop_from_longest(drop)
    }

    /// Signals congestion to the longest flow, because `quarters` quarters of the queue are full
    /// and senders must slow down before it drops in bulk. The fuller the queue, the more frequent
    /// the signals.
    pub fn signal_early(
        &mut self,
        now_ns: u64,
        quarters: usize,
        lost: &mut Vec<(Cause, Box<Queued>)>,
    ) {
        if quarters > 0 && now_ns >= self.early_ns {
            let often = (quarters * quarters) as u64;
            self.early_ns = now_ns.saturating_add(EARLY_NS / often);
            let drop = |cause, queued| lost.push((cause, queued));
            self.queue.signal_longest(drop);
        }
    }

    /// Drops frames that have waited too long.
    pub fn expire(&mut self, now_ns: u64, lost: &mut Vec<(Cause, Box<Queued>)>) {
        if now_ns < self.late_ns {
            return;
        }
        let before_ns = now_ns.saturating_sub(LONGEST_NS);
        let drop = |cause, queued| lost.push((cause, queued));
        self.queue.expire(before_ns.saturating_add(1), drop);
        let oldest_ns = self.queue.oldest_ns().unwrap_or(now_ns);
        self.late_ns = oldest_ns.saturating_add(LONGEST_NS);
    }

    /// Takes the next frame, or a part of it, if it has tokens and fits `room`.
    pub fn take(
        &mut self,
        now_ns: u64,
        room: &impl PostedBuffers,
        lost: &mut Vec<(Cause, Box<Queued>)>,
    ) -> Option<Box<Queued>> {
        let drop = |cause, queued| lost.push((cause, queued));
        let Some(head) = self.queue.head(self.params, now_ns, drop) else {
            self.blocked = Blocked::Nothing;
            return None;
        };
        let (len, slots, left) = (head.frame.len(), room.slots(&head.frame), room.left());
        let gso = head.frame.offload.gso;
        let mut most = None;
        if let Some(bucket) = &self.bucket {
            if !has_tokens(bucket, now_ns, len) {
                self.blocked = Blocked::Tokens(self.tokens_ns(bucket, now_ns, len));
                return None;
            }
            most = (len > self.burst_bytes && gso.is_some()).then_some(self.burst_bytes);
        }
        if slots > left {
            let since_ns = match self.blocked {
                Blocked::Buffers(_, since_ns) => since_ns,
                _ => now_ns,
            };
            let is_late = now_ns.saturating_sub(since_ns) >= WHOLE_NS;
            let bytes = gso.map_or(0, |_| room.bytes(&head.frame));
            let wanted = if is_late { left + 1 } else { slots };
            self.blocked = Blocked::Buffers(wanted, since_ns);
            if !is_late || bytes == 0 {
                return None;
            }
            most = Some(most.map_or(bytes, |most| most.min(bytes)));
        } else {
            self.blocked = Blocked::Nothing;
        }
        let part = most.and_then(|most| self.queue.cut_head(|head| head.cut(most)));
        let taken = match part {
            Some(part) => part,
            None if slots > left => return None,
            None => self.queue.pop()?,
        };
        let len = taken.frame.len();
        self.charge(now_ns, || len);
        Some(taken)
    }

    /// Returns the time at which there are tokens for `bytes` bytes and for those that pass
    /// meanwhile.
    fn tokens_ns(&self, bucket: &TokenBucket, now_ns: u64, bytes: usize) -> u64 {
        let paced = self.bytes_per_s / (1_000_000_000 / PACE_NS);
        let wanted = u32::try_from(paced.max(bytes as u64)).unwrap_or(u32::MAX);
        bucket.ready_at(now_ns, wanted).unwrap_or(u64::MAX)
    }

    /// Removes all queued frames.
    pub fn drain(&mut self) -> impl Iterator<Item = Box<Queued>> {
        self.blocked = Blocked::Nothing;
        self.queue.drain()
    }

    /// Returns what the first frame waits for.
    #[must_use]
    pub fn blocked(&self) -> Blocked {
        self.blocked
    }

    /// Returns the time at which the queue is due even without an event; `None` if it is empty.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        if self.queue.is_empty() {
            return None;
        }
        let due_ns = match self.blocked {
            Blocked::Nothing => now_ns,
            Blocked::Tokens(ready_ns) => ready_ns,
            Blocked::Buffers(_, since_ns) => match since_ns.saturating_add(WHOLE_NS) {
                whole_ns if whole_ns > now_ns => whole_ns,
                _ => self.late_ns,
            },
        };
        Some(due_ns.min(self.late_ns))
    }

    /// Counts a dropped frame.
    pub fn count_drop(&mut self, cause: Cause, frame: &Frame) {
        self.drops.add(cause, packets(frame) as u64);
    }

    /// Returns the queue's state at `now_ns` and its drops, as JSON.
    #[must_use]
    pub fn stat(&self, now_ns: u64) -> Value {
        let age_ns = |since_ns| now_ns.saturating_sub(since_ns);
        json!({
            "frames": self.queue.packets(),
            "bytes": self.queue.bytes(),
            "oldest_ns": self.queue.oldest_ns().map_or(0, age_ns),
            "marked": self.queue.marked(),
            "full": self.drops.get(Cause::Full),
            "codel": self.drops.get(Cause::Codel),
            "late": self.drops.get(Cause::Late),
        })
    }
}

fn has_tokens(bucket: &TokenBucket, now_ns: u64, bytes: usize) -> bool {
    let cost = u32::try_from(bytes).unwrap_or(u32::MAX);
    bucket.ready_at(now_ns, cost) == Some(now_ns)
}

#[cfg(test)]
mod tests;
