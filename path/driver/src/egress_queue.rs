//! The egress queue of one guest. Its frames wait for receive buffers, or for tokens of
//! `rate_to_guest_mbps`.
//!
//! It is a [`FairQueue`] (FQ-CoDel) with a token bucket that counts the bytes of frames. An
//! aggregate counts as one frame. The queue splits an aggregate that is longer than the burst. A
//! frame that is longer than the burst but cannot be split passes when the bucket is full, and
//! leaves a debt.
//!
//! A queued frame stays in its receive buffers; [`crate::queueing`] tracks their owners.

use abi::counts::Counts;
use config::domain::{FrameLimit, bytes_per_s};
use net::packet::ecn::mark_ce;
use net::packet::segment::{cut, packets};
use net::queue::codel::Params;
use net::queue::{FairQueue, QueueDropReason, QueuedPacket};
use nic::Frame;
use nic::rate::TokenBucket;
use serde_json::{Value, json};

/// Maximum wait of a frame. After this time, its sender has already retransmitted it.
const MAX_WAIT_NS: u64 = 500_000_000;
/// Time that an aggregate waits for the guest to post enough buffers. Afterwards the queue splits
/// the aggregate so that its parts fit the posted buffers.
const BUFFER_WAIT_NS: u64 = 500_000;
/// Interval of early signals to senders while a queue begins to fill: several round trips.
const EARLY_SIGNAL_INTERVAL_NS: u64 = 10_000_000;
/// Minimum time that the driver sleeps while frames wait for tokens.
const TOKEN_WAIT_NS: u64 = 250_000;

/// A queued frame.
#[derive(Debug)]
pub struct Queued {
    /// The part of the frame that is not sent yet.
    pub frame: Frame,
    /// The original frame with all of its buffers, if parts were split off.
    pub whole: Option<Frame>,
    /// The port that owns the buffers, or [`Queued::COPIED`].
    pub owner: usize,
    /// Number of buffers that the frame occupies.
    pub units: usize,
}

impl Queued {
    /// Marks a frame whose buffers belong to the switch.
    pub const COPIED: usize = usize::MAX;

    /// Splits off a part of at most `bytes` bytes. Returns `None` if the frame cannot be split.
    fn cut(&mut self, bytes: usize) -> Option<Box<Self>> {
        self.frame.offload.gso?;
        let (first, rest) = cut(&self.frame, bytes).ok()?;
        let before = std::mem::replace(&mut self.frame, rest);
        self.whole.get_or_insert(before);
        // The buffers belong to the original frame, so the part has no units.
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

/// Number of dropped packets by cause. Each packet of an aggregate counts.
pub type QueueDrops = Counts<QueueDropReason, { QueueDropReason::COUNT }>;

/// The receive buffers that a guest has posted.
pub trait PostedBuffers {
    /// Returns the number of free buffers.
    fn free(&self) -> u32;
    /// Returns the number of buffers that `frame` needs.
    fn slots(&self, frame: &Frame) -> u32;
    /// Returns the length in bytes of the longest aggregate like `frame` that fits into the free
    /// buffers; 0 if not even one packet fits.
    fn longest_fit(&self, frame: &Frame) -> usize;
}

/// Reason why the first frame of a queue waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blocked {
    /// It does not wait: the queue is empty, or the frame may be sent.
    #[default]
    Nothing,
    /// It waits for tokens until this time.
    Tokens(u64),
    /// It waits for this number of receive buffers, since this time.
    Buffers(u32, u64),
}

/// Queue of frames for one guest, with its rate limit.
#[derive(Debug, Default)]
pub struct EgressQueue {
    /// The rate limit; `None`: unlimited.
    bucket: Option<TokenBucket>,
    burst_bytes: usize,
    bytes_per_s: u64,
    params: Params,
    queue: FairQueue<Box<Queued>>,
    blocked: Blocked,
    /// Earliest time at which a frame may have waited for `MAX_WAIT_NS`.
    next_expiry_ns: u64,
    /// Earliest time of the next early signal.
    next_signal_ns: u64,
    /// Packets dropped by the queue.
    pub drops: QueueDrops,
}

impl EgressQueue {
    /// Replaces the rate limit, and starts with a full bucket.
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

    /// Returns whether frames may bypass the queue: it is empty and has no rate limit.
    #[inline]
    #[must_use]
    pub fn can_be_bypassed(&self) -> bool {
        self.bucket.is_none() && self.queue.is_empty()
    }

    /// Returns whether the queue is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the number of buffers that queued frames occupy.
    #[must_use]
    pub fn units(&self) -> usize {
        self.queue.units()
    }

    /// Returns whether frames of `bytes` bytes may pass immediately: the queue is empty and has
    /// enough tokens.
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

    /// Takes the tokens of frames of `bytes` bytes that pass.
    #[inline]
    pub fn charge(&mut self, now_ns: u64, bytes: impl FnOnce() -> usize) {
        if let Some(bucket) = &mut self.bucket {
            // Tokens accrue from the first use.
            bucket.available(now_ns);
            bucket.charge(u32::try_from(bytes()).unwrap_or(u32::MAX));
        }
    }

    /// Appends a frame from port `in_port`, whose flow has hash `hash`.
    pub fn push(&mut self, queued: Box<Queued>, (in_port, hash): (usize, u32), now_ns: u64) {
        if self.queue.is_empty() {
            self.next_expiry_ns = now_ns.saturating_add(MAX_WAIT_NS);
        }
        self.queue.push(queued, (in_port, hash), now_ns);
    }

    /// Drops the oldest frame of the longest flow; returns false if the queue is empty.
    pub fn drop_from_longest(&mut self, lost: &mut Vec<(QueueDropReason, Box<Queued>)>) -> bool {
        let drop = |cause, queued| lost.push((cause, queued));
        self.queue.drop_from_longest(drop)
    }

    /// Signals congestion to the longest flow if a signal is due, so that senders slow down before
    /// the queue must drop in bulk. `quarters` is the number of quarters of the queue's limit that
    /// are used: the fuller the queue, the more frequent the signals.
    pub fn signal_early(
        &mut self,
        now_ns: u64,
        quarters: usize,
        lost: &mut Vec<(QueueDropReason, Box<Queued>)>,
    ) {
        if quarters > 0 && now_ns >= self.next_signal_ns {
            let rate_factor = (quarters * quarters) as u64;
            self.next_signal_ns = now_ns.saturating_add(EARLY_SIGNAL_INTERVAL_NS / rate_factor);
            let drop = |cause, queued| lost.push((cause, queued));
            self.queue.signal_longest(drop);
        }
    }

    /// Drops frames that have waited for `MAX_WAIT_NS`.
    pub fn expire(&mut self, now_ns: u64, lost: &mut Vec<(QueueDropReason, Box<Queued>)>) {
        if now_ns < self.next_expiry_ns {
            return;
        }
        let before_ns = now_ns.saturating_sub(MAX_WAIT_NS);
        let drop = |cause, queued| lost.push((cause, queued));
        self.queue.expire(before_ns.saturating_add(1), drop);
        let oldest_ns = self.queue.oldest_ns().unwrap_or(now_ns);
        self.next_expiry_ns = oldest_ns.saturating_add(MAX_WAIT_NS);
    }

    /// Takes the next frame or a part of it, if the bucket has tokens for it and it fits the
    /// buffers of `room`.
    pub fn take(
        &mut self,
        now_ns: u64,
        room: &impl PostedBuffers,
        lost: &mut Vec<(QueueDropReason, Box<Queued>)>,
    ) -> Option<Box<Queued>> {
        let drop = |cause, queued| lost.push((cause, queued));
        let Some(head) = self.queue.head(self.params, now_ns, drop) else {
            self.blocked = Blocked::Nothing;
            return None;
        };
        let (len, slots, left) = (head.frame.len(), room.slots(&head.frame), room.free());
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
            let is_late = now_ns.saturating_sub(since_ns) >= BUFFER_WAIT_NS;
            let bytes = gso.map_or(0, |_| room.longest_fit(&head.frame));
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

    /// Returns the time at which the bucket will have tokens for `bytes` bytes or for the bytes
    /// that may pass in [`TOKEN_WAIT_NS`], whichever number is larger.
    fn tokens_ns(&self, bucket: &TokenBucket, now_ns: u64, bytes: usize) -> u64 {
        let paced = self.bytes_per_s / (1_000_000_000 / TOKEN_WAIT_NS);
        let wanted = u32::try_from(paced.max(bytes as u64)).unwrap_or(u32::MAX);
        bucket.ready_at(now_ns, wanted).unwrap_or(u64::MAX)
    }

    /// Removes all queued frames.
    pub fn drain(&mut self) -> impl Iterator<Item = Box<Queued>> {
        self.blocked = Blocked::Nothing;
        self.queue.drain()
    }

    /// Returns the reason why the first frame waits.
    #[must_use]
    pub fn blocked(&self) -> Blocked {
        self.blocked
    }

    /// Returns the time at which the queue must be served even without an event; `None` if it is
    /// empty.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        if self.queue.is_empty() {
            return None;
        }
        let due_ns = match self.blocked {
            Blocked::Nothing => now_ns,
            Blocked::Tokens(ready_ns) => ready_ns,
            Blocked::Buffers(_, since_ns) => match since_ns.saturating_add(BUFFER_WAIT_NS) {
                whole_ns if whole_ns > now_ns => whole_ns,
                _ => self.next_expiry_ns,
            },
        };
        Some(due_ns.min(self.next_expiry_ns))
    }

    /// Counts a frame dropped for `cause`.
    pub fn count_drop(&mut self, cause: QueueDropReason, frame: &Frame) {
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
            "full": self.drops.get(QueueDropReason::Full),
            "codel": self.drops.get(QueueDropReason::Codel),
            "late": self.drops.get(QueueDropReason::Late),
        })
    }
}

fn has_tokens(bucket: &TokenBucket, now_ns: u64, bytes: usize) -> bool {
    let cost = u32::try_from(bytes).unwrap_or(u32::MAX);
    bucket.ready_at(now_ns, cost) == Some(now_ns)
}

#[cfg(test)]
mod tests;
