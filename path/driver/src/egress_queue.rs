//! The queue towards one guest: frames that wait for receive buffers, or for tokens of
//! `rate_to_guest_mbps`.
//!
//! It is a [`FairQueue`] (FQ-CoDel) with a token bucket, in bytes of frames, in front of it. An
//! aggregate counts as one frame. One that is longer than the burst is cut to the burst. A frame
//! that cannot be cut passes a full bucket and leaves a debt.
//!
//! A queued frame stays in the buffers that it came in; [`crate::queueing`] knows whose these are.

use config::domain::Limit;
use net::packet::ecn::mark_ce;
use net::packet::segment::{cut, packets};
use net::queue::codel::Params;
use net::queue::{Cause, FairQueue, QueuedPacket};
use nic::Frame;
use nic::rate::TokenBucket;
use serde_json::{Value, json};

/// Bytes a second of a megabit a second.
const BYTES_PER_S_PER_MBPS: f64 = 125_000.0;
/// The longest time that a frame waits: what its sender has sent again long ago is not sent.
const LONGEST_NS: u64 = 500_000_000;
/// A guest that has posted some buffers, but too few for an aggregate, gets it whole if it posts
/// the rest within this time. Otherwise the aggregate is cut to what is posted.
const WHOLE_NS: u64 = 500_000;
/// Time between two early signals while a queue begins to fill up: some round trips through it.
const EARLY_NS: u64 = 10_000_000;
/// While frames wait for tokens, the driver sleeps until there are tokens for this time.
const PACE_NS: u64 = 250_000;

/// Converts megabits a second to bytes a second; at least one, because a rate of zero would block
/// for ever.
#[must_use]
pub fn bytes_per_s(mbps: f64) -> u64 {
    // The cast saturates.
    ((mbps * BYTES_PER_S_PER_MBPS).round() as u64).max(1)
}

/// A frame that waits.
#[derive(Debug)]
pub struct Queued {
    /// What is still to be sent.
    pub frame: Frame,
    /// The frame before its first parts were cut off. It has all the buffers.
    pub whole: Option<Frame>,
    /// The port whose buffers it lies in; [`Queued::COPIED`]: the switch's own.
    pub owner: usize,
    /// Buffers that it holds.
    pub units: usize,
}

impl Queued {
    /// The owner of frames that lie in buffers of the switch's own.
    pub const COPIED: usize = usize::MAX;

    /// Cuts off a part of at most `bytes` bytes. `None`: the frame cannot be cut.
    fn cut(&mut self, bytes: usize) -> Option<Box<Self>> {
        self.frame.offload.gso?;
        let (first, rest) = cut(&self.frame, bytes).ok()?;
        let before = std::mem::replace(&mut self.frame, rest);
        self.whole.get_or_insert(before);
        // Pieces of parts are in no pool.
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

/// Packets that were dropped, by cause. An aggregate counts as its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueDrops {
    /// [`Cause::Full`].
    pub full: u64,
    /// [`Cause::Codel`].
    pub codel: u64,
    /// [`Cause::Late`].
    pub late: u64,
}

impl QueueDrops {
    /// Counts a dropped frame.
    pub fn count(&mut self, cause: Cause, frame: &Frame) {
        let count = match cause {
            Cause::Full => &mut self.full,
            Cause::Codel => &mut self.codel,
            Cause::Late => &mut self.late,
        };
        *count += packets(frame) as u64;
    }

    /// Name, meaning and count of each cause.
    #[must_use]
    pub fn reasons(&self) -> [(&'static str, &'static str, u64); 3] {
        [
            (
                "queue_full",
                "The queue towards the guest has no room.",
                self.full,
            ),
            (
                "queue_codel",
                "CoDel: the queue towards the guest stands.",
                self.codel,
            ),
            (
                "queue_late",
                "It waited for 0.5 s in the queue towards the guest.",
                self.late,
            ),
        ]
    }
}

/// The receive buffers that a guest has posted.
pub trait PostedBuffers {
    /// How many are left.
    fn left(&self) -> u32;
    /// How many a frame takes.
    fn slots(&self, frame: &Frame) -> u32;
    /// Bytes that an aggregate like this one may have to fit those that are left; 0: not one of its
    /// packets does.
    fn bytes(&self, frame: &Frame) -> usize;
}

/// What the first frame of a queue waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blocked {
    /// Nothing: the queue is empty, or is served on.
    #[default]
    Nothing,
    /// Tokens, until this moment.
    Tokens(u64),
    /// This many receive buffers, since this moment.
    Buffers(u32, u64),
}

/// Frames on their way to one guest that wait, and its limit.
#[derive(Debug, Default)]
pub struct EgressQueue {
    /// None: no limit.
    bucket: Option<TokenBucket>,
    burst_bytes: usize,
    bytes_per_s: u64,
    params: Params,
    queue: FairQueue<Box<Queued>>,
    blocked: Blocked,
    /// No frame is late before this moment.
    late_ns: u64,
    /// There is no early signal before this moment.
    early_ns: u64,
    /// What was dropped.
    pub drops: QueueDrops,
}

impl EgressQueue {
    /// Replaces the limit. Nothing has passed the new one.
    pub fn set(&mut self, limit: Option<&Limit>) {
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

    /// Whether frames pass without a look at the queue: nothing waits, and there is no limit.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.bucket.is_none() && self.queue.is_empty()
    }

    /// Whether no frame waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Buffers that waiting frames hold.
    #[must_use]
    pub fn units(&self) -> usize {
        self.queue.units()
    }

    /// Whether frames of `bytes` bytes may pass at once, before nothing that waits.
    #[inline]
    #[must_use]
    pub fn affords(&self, now_ns: u64, bytes: impl FnOnce() -> usize) -> bool {
        let Some(bucket) = &self.bucket else {
            return self.queue.is_empty();
        };
        if !self.queue.is_empty() {
            return false;
        }
        let bytes = bytes();
        // One frame may pass above the burst, not several together.
        bytes <= self.burst_bytes && has_tokens(bucket, now_ns, bytes)
    }

    /// Takes the tokens of frames that pass.
    #[inline]
    pub fn charge(&mut self, now_ns: u64, bytes: impl FnOnce() -> usize) {
        if let Some(bucket) = &mut self.bucket {
            // Tokens accrue from the first use on.
            bucket.available(now_ns);
            bucket.charge(u32::try_from(bytes()).unwrap_or(u32::MAX));
        }
    }

    /// Appends a frame of the flow with this hash.
    pub fn push(&mut self, queued: Box<Queued>, hash: u32, now_ns: u64) {
        if self.queue.is_empty() {
            self.late_ns = now_ns.saturating_add(LONGEST_NS);
        }
        self.queue.push(queued, hash, now_ns);
    }

    /// Drops the oldest frame of the longest flow; false: none waits.
    pub fn drop_from_longest(&mut self, lost: &mut Vec<(Cause, Box<Queued>)>) -> bool {
        let drop = |cause, queued| lost.push((cause, queued));
        self.queue.drop_from_longest(drop)
    }

    /// Signals congestion to the longest flow: the queue has filled `quarters` of four, and senders
    /// must slow down before packets are lost in masses. Signals come the faster the fuller it is.
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

    /// Drops what has waited for too long.
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

    /// Takes the next frame, or a part of it, if there are tokens for it and it fits `room`.
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

    /// When there are tokens for `bytes` bytes, and for what passes meanwhile.
    fn tokens_ns(&self, bucket: &TokenBucket, now_ns: u64, bytes: usize) -> u64 {
        let paced = self.bytes_per_s / (1_000_000_000 / PACE_NS);
        let wanted = u32::try_from(paced.max(bytes as u64)).unwrap_or(u32::MAX);
        bucket.ready_at(now_ns, wanted).unwrap_or(u64::MAX)
    }

    /// Takes out all that waits.
    pub fn drain(&mut self) -> impl Iterator<Item = Box<Queued>> {
        self.blocked = Blocked::Nothing;
        self.queue.drain()
    }

    /// What the first frame waits for.
    #[must_use]
    pub fn blocked(&self) -> Blocked {
        self.blocked
    }

    /// When the queue is to be served although nothing happens; `None`: nothing waits.
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

    /// What waits and was dropped, as JSON.
    #[must_use]
    pub fn stat(&self) -> Value {
        json!({
            "frames": self.queue.packets(),
            "bytes": self.queue.bytes(),
            "marked": self.queue.marked(),
            "full": self.drops.full,
            "codel": self.drops.codel,
            "late": self.drops.late,
        })
    }
}

fn has_tokens(bucket: &TokenBucket, now_ns: u64, bytes: usize) -> bool {
    let cost = u32::try_from(bytes).unwrap_or(u32::MAX);
    bucket.ready_at(now_ns, cost) == Some(now_ns)
}

#[cfg(test)]
mod tests;
