//! The queues of a NIC, their owners and states: the one implementation of the contract, for every
//! NIC that can steer and receive.

use super::contract::{Backend, Freed, QueueId, Steering, Vmq, VmqError};
use crate::buffer::{Buffer, BufferId, Buffers};
use crate::frame::Frame;
use abi::machine::EVERY_MAC;

/// Minimum interval between queries for the steering change in effect, which another process may
/// have to answer.
const ASK_NS: u64 = 500_000;
/// Delay before a failed steering change is retried. An attempt may block for part of it.
const AGAIN_NS: u64 = 250_000_000;
/// Default number of buffers that a queue requests at a time.
const SIZE: usize = 64;

/// Result of receiving from a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmqReceived {
    /// Frames appended.
    pub frames: usize,
    /// Whether the queue was empty afterwards.
    pub empty: bool,
}

/// Reception from queues: the part that differs between NICs.
pub trait Receive {
    /// Returns the number of queues.
    fn queues(&self) -> usize;

    /// Receives up to `budget` frames from `queue`, each in one buffer from `buffers`. With
    /// `split`, headers stay out of the buffers ([`Vmq::split_headers`]). Puts back unwritable
    /// buffers, and keeps unused ones ready until [`Receive::release`].
    fn receive(
        &mut self,
        queue: QueueId,
        now_ns: u64,
        budget: usize,
        split: bool,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> VmqReceived;

    /// Puts back the buffers that `queue` has kept ready.
    fn release(&mut self, queue: QueueId, buffers: &mut dyn Buffers);

    /// Returns counters by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VmqQueueState {
    Free,
    Idle,
    Enabled,
    /// Drains until this steering change is in effect and the queue is then found empty. `None`:
    /// the change has not been made yet.
    Draining(Option<u64>),
}

#[derive(Clone, Copy, Debug)]
struct VmqQueue {
    state: VmqQueueState,
    mac: Option<[u8; 6]>,
    size: usize,
    split: bool,
}

/// The queues of a NIC that steers by `S` and receives by `R`.
#[derive(Debug)]
pub struct MultiQueue<S, R> {
    steering: S,
    receive: R,
    queues: Vec<VmqQueue>,
    effective: u64,
    asked_ns: Option<u64>,
    /// MACs for which any draining queue may have frames, until they are steered away; may include
    /// [`EVERY_MAC`].
    astray: Vec<[u8; 6]>,
    led_away: u64,
    again_ns: u64,
    frames: Vec<Frame>,
}

impl<S: Steering, R: Receive> MultiQueue<S, R> {
    /// Creates the queues, all free.
    #[must_use]
    pub fn new(steering: S, receive: R) -> Self {
        let free = VmqQueue {
            state: VmqQueueState::Free,
            mac: None,
            size: SIZE,
            split: false,
        };
        Self {
            queues: vec![free; receive.queues()],
            steering,
            receive,
            effective: 0,
            asked_ns: None,
            astray: Vec::new(),
            led_away: 0,
            again_ns: 0,
            frames: Vec::new(),
        }
    }

    /// Returns the receiver.
    pub fn receive_mut(&mut self) -> &mut R {
        &mut self.receive
    }

    /// Returns an allocated queue.
    fn get(&self, queue: QueueId) -> Result<&VmqQueue, VmqError> {
        let found = self.queues.get(queue.0 as usize);
        found
            .filter(|queue| queue.state != VmqQueueState::Free)
            .ok_or(VmqError::NoQueue)
    }

    /// Returns an allocated queue that is neither enabled nor draining.
    fn idle(&mut self, queue: QueueId) -> Result<&mut VmqQueue, VmqError> {
        match self.queues.get_mut(queue.0 as usize) {
            Some(found) => match found.state {
                VmqQueueState::Free => Err(VmqError::NoQueue),
                VmqQueueState::Idle => Ok(found),
                VmqQueueState::Enabled => Err(VmqError::Enabled),
                VmqQueueState::Draining(_) => Err(VmqError::Draining),
            },
            None => Err(VmqError::NoQueue),
        }
    }

    fn set(&mut self, queue: QueueId, state: VmqQueueState) {
        if let Some(found) = self.queues.get_mut(queue.0 as usize) {
            found.state = state;
        }
    }

    /// Records that the queue has lost its MAC while frames may still be steered to it.
    fn record_lost_mac(&mut self, queue: QueueId, mac: [u8; 6]) {
        self.astray.push(mac);
        self.set(queue, VmqQueueState::Draining(None));
    }

    /// Steers stray MACs to the shared queue. Afterwards, no earlier request can take effect any
    /// more.
    fn lead_away(&mut self) -> Result<(), VmqError> {
        while let Some(&mac) = self.astray.last() {
            self.led_away = self.led_away.max(self.steering.steer(mac, None)?);
            self.astray.pop();
        }
        let led_away = self.led_away;
        for queue in &mut self.queues {
            if let VmqQueueState::Draining(point @ None) = &mut queue.state {
                *point = Some(led_away);
            }
        }
        Ok(())
    }

    /// Returns whether all frames that were steered before `point` have arrived.
    fn is_effective(&mut self, point: u64, now_ns: u64) -> bool {
        let recently = |since_ns: u64| now_ns.saturating_sub(since_ns) < ASK_NS;
        if self.effective < point && !self.asked_ns.is_some_and(recently) {
            self.asked_ns = Some(now_ns);
            self.effective = self.effective.max(self.steering.effective());
        }
        self.effective >= point
    }
}

impl<S: Steering, R: Receive> Vmq for MultiQueue<S, R> {
    fn avail_queues(&self) -> usize {
        let free = |queue: &&VmqQueue| queue.state == VmqQueueState::Free;
        self.queues.iter().filter(free).count()
    }

    fn alloc_queue(&mut self) -> Option<QueueId> {
        let free = |queue: &VmqQueue| queue.state == VmqQueueState::Free;
        let at = self.queues.iter().position(free)?;
        let queue = self.queues.get_mut(at)?;
        *queue = VmqQueue {
            state: VmqQueueState::Idle,
            mac: None,
            size: SIZE,
            split: false,
        };
        Some(QueueId(at as u32))
    }

    fn free_queue(&mut self, queue: QueueId) -> Result<(), VmqError> {
        self.idle(queue)?.state = VmqQueueState::Free;
        Ok(())
    }

    fn size(&self, queue: QueueId) -> Result<usize, VmqError> {
        self.get(queue).map(|queue| queue.size)
    }

    fn set_size(&mut self, queue: QueueId, buffers: usize) -> Result<(), VmqError> {
        if buffers == 0 {
            return Err(VmqError::NoBuffers);
        }
        self.idle(queue)?.size = buffers;
        Ok(())
    }

    fn split_headers(&mut self, queue: QueueId, split: bool) -> Result<(), VmqError> {
        self.idle(queue)?.split = split;
        Ok(())
    }

    fn set_mac(&mut self, queue: QueueId, mac: [u8; 6]) -> Result<(), VmqError> {
        self.idle(queue)?;
        // A draining queue has lost its MAC, and another queue may have it.
        let taken = |(n, other): (usize, &VmqQueue)| {
            n != queue.0 as usize
                && matches!(other.state, VmqQueueState::Idle | VmqQueueState::Enabled)
                && other.mac == Some(mac)
        };
        if self.astray.contains(&mac) || self.queues.iter().enumerate().any(taken) {
            return Err(VmqError::MacTaken);
        }
        self.idle(queue)?.mac = Some(mac);
        Ok(())
    }

    fn enable_queue(&mut self, queue: QueueId) -> Result<(), VmqError> {
        let mac = self.idle(queue)?.mac.ok_or(VmqError::NoMac)?;
        let steered = self.steering.steer(mac, Some(queue));
        match steered {
            Ok(_) => self.set(queue, VmqQueueState::Enabled),
            Err(VmqError::Unanswered) => self.record_lost_mac(queue, mac),
            Err(_) => {}
        }
        steered.map(drop)
    }

    fn disable_queue(&mut self, queue: QueueId) -> Result<(), VmqError> {
        let found = self.get(queue)?;
        let (VmqQueueState::Enabled, Some(mac)) = (found.state, found.mac) else {
            return Err(VmqError::NotEnabled);
        };
        match self.steering.steer(mac, None) {
            Ok(point) => self.set(queue, VmqQueueState::Draining(Some(point))),
            Err(VmqError::Unanswered) => self.record_lost_mac(queue, mac),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn recover(&mut self) -> Result<(), VmqError> {
        self.astray = vec![EVERY_MAC];
        for queue in &mut self.queues {
            queue.state = VmqQueueState::Draining(None);
        }
        self.lead_away()
    }

    fn is_draining(&self, queue: QueueId) -> bool {
        self.get(queue)
            .is_ok_and(|queue| matches!(queue.state, VmqQueueState::Draining(_)))
    }

    fn poll(
        &mut self,
        queue: QueueId,
        now_ns: u64,
        budget: usize,
        backend: &mut dyn Backend,
    ) -> Result<usize, VmqError> {
        if !self.astray.is_empty() && now_ns >= self.again_ns {
            // Rejected or unanswered: retried later.
            let _ = self.lead_away();
            self.again_ns = now_ns.saturating_add(AGAIN_NS);
        }
        let VmqQueue {
            state, size, split, ..
        } = *self.get(queue)?;
        // Queried before the queue is read, so that frames that were in transit before have arrived
        // in it.
        let effective = match state {
            VmqQueueState::Enabled | VmqQueueState::Draining(None) => false,
            VmqQueueState::Draining(Some(point)) => self.is_effective(point, now_ns),
            VmqQueueState::Free | VmqQueueState::Idle => return Err(VmqError::NotEnabled),
        };
        let mut posting = Posting {
            backend,
            why: Freed::Fault,
        };
        let budget = budget.min(size);
        let received =
            self.receive
                .receive(queue, now_ns, budget, split, &mut posting, &mut self.frames);
        posting.why = Freed::Unused;
        self.receive.release(queue, &mut posting);
        for frame in self.frames.drain(..) {
            backend.netif_rx(frame);
        }
        if effective && received.empty {
            self.set(queue, VmqQueueState::Idle);
            if let Some(found) = self.queues.get_mut(queue.0 as usize) {
                found.mac = None;
            }
        }
        Ok(received.frames)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.receive.counters()
    }
}

/// A backend as the buffer supply of a receiver.
struct Posting<'a> {
    backend: &'a mut dyn Backend,
    why: Freed,
}

impl Buffers for Posting<'_> {
    fn take(&mut self) -> Option<Buffer> {
        self.backend.alloc()
    }

    fn take_large(&mut self) -> Option<Buffer> {
        None
    }

    fn put(&mut self, id: BufferId) {
        self.backend.free(id, self.why);
    }
}
