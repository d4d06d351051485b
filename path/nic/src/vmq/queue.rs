//! The queues of a NIC and their states. This is the only implementation of [`Vmq`]; every NIC that
//! implements [`Steering`] and [`ReceiveSide`] uses it.

use super::contract::{QueueId, ReturnReason, Steering, Vmq, VmqBackend, VmqError};
use crate::buffer::{Buffer, BufferId, Buffers};
use crate::frame::Frame;
use abi::machine::ALL_MACS;

/// Minimum interval between queries for the steering change in effect. Another process may have to
/// answer a query.
const QUERY_INTERVAL_NS: u64 = 500_000;
/// Delay before the next attempt of a failed steering change. An attempt may block for part of this
/// time.
const RETRY_DELAY_NS: u64 = 250_000_000;
/// Default maximum number of buffers that a queue requests per poll.
const DEFAULT_SIZE: usize = 64;

/// Result of receiving from a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmqReceived {
    /// Number of frames received.
    pub frames: usize,
    /// Whether the queue is now empty.
    pub empty: bool,
}

/// The receive side of a NIC with queues, which differs between NICs.
pub trait ReceiveSide {
    /// Returns the number of queues.
    fn queues(&self) -> usize;

    /// Receives up to `budget` frames from `queue`, each in one buffer from `buffers`. With
    /// `split`, headers stay out of the buffers ([`Vmq::split_headers`]). Returns buffers that are
    /// not writable to `buffers`, and keeps unused buffers posted until [`ReceiveSide::release`].
    fn receive(
        &mut self,
        queue: QueueId,
        now_ns: u64,
        budget: usize,
        split: bool,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> VmqReceived;

    /// Returns the unused buffers of `queue` to `buffers`.
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
    /// Draining ends when this steering change is in effect and the queue is empty. `None` if the
    /// change was not made yet.
    Draining(Option<u64>),
}

#[derive(Clone, Copy, Debug)]
struct VmqQueue {
    state: VmqQueueState,
    mac: Option<[u8; 6]>,
    size: usize,
    split: bool,
}

/// The queues of a NIC with steering `S` and receive side `R`.
#[derive(Debug)]
pub struct MultiQueue<S, R> {
    steering: S,
    receive: R,
    queues: Vec<VmqQueue>,
    effective: u64,
    queried_ns: Option<u64>,
    /// MACs that must still be steered to the shared queue. Until then, the NIC may steer their
    /// frames to any draining queue. The list may include [`ALL_MACS`].
    stray_macs: Vec<[u8; 6]>,
    last_change: u64,
    retry_ns: u64,
    frames: Vec<Frame>,
}

impl<S: Steering, R: ReceiveSide> MultiQueue<S, R> {
    /// Creates the queues, all free.
    #[must_use]
    pub fn new(steering: S, receive: R) -> Self {
        let free = VmqQueue {
            state: VmqQueueState::Free,
            mac: None,
            size: DEFAULT_SIZE,
            split: false,
        };
        Self {
            queues: vec![free; receive.queues()],
            steering,
            receive,
            effective: 0,
            queried_ns: None,
            stray_macs: Vec::new(),
            last_change: 0,
            retry_ns: 0,
            frames: Vec::new(),
        }
    }

    /// Returns the receive side.
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

    /// Records that the queue has lost its MAC, although the NIC may still steer frames to it.
    fn record_lost_mac(&mut self, queue: QueueId, mac: [u8; 6]) {
        self.stray_macs.push(mac);
        self.set(queue, VmqQueueState::Draining(None));
    }

    /// Steers all MACs in `stray_macs` to the shared queue. After that, no earlier request can take
    /// effect.
    fn steer_to_shared(&mut self) -> Result<(), VmqError> {
        while let Some(&mac) = self.stray_macs.last() {
            self.last_change = self.last_change.max(self.steering.steer(mac, None)?);
            self.stray_macs.pop();
        }
        let last_change = self.last_change;
        for queue in &mut self.queues {
            if let VmqQueueState::Draining(change @ None) = &mut queue.state {
                *change = Some(last_change);
            }
        }
        Ok(())
    }

    /// Returns whether all frames that were steered before `modify_bits` have arrived in their
    /// queues.
    fn is_effective(&mut self, change: u64, now_ns: u64) -> bool {
        let recently = |since_ns: u64| now_ns.saturating_sub(since_ns) < QUERY_INTERVAL_NS;
        if self.effective < change && !self.queried_ns.is_some_and(recently) {
            self.queried_ns = Some(now_ns);
            self.effective = self.effective.max(self.steering.effective());
        }
        self.effective >= change
    }
}

impl<S: Steering, R: ReceiveSide> Vmq for MultiQueue<S, R> {
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
            size: DEFAULT_SIZE,
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
        // A draining queue has lost its MAC, so another queue may use that MAC.
        let taken = |(n, other): (usize, &VmqQueue)| {
            n != queue.0 as usize
                && matches!(other.state, VmqQueueState::Idle | VmqQueueState::Enabled)
                && other.mac == Some(mac)
        };
        if self.stray_macs.contains(&mac) || self.queues.iter().enumerate().any(taken) {
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
            Ok(change) => self.set(queue, VmqQueueState::Draining(Some(change))),
            Err(VmqError::Unanswered) => self.record_lost_mac(queue, mac),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn recover(&mut self) -> Result<(), VmqError> {
        self.stray_macs = vec![ALL_MACS];
        for queue in &mut self.queues {
            queue.state = VmqQueueState::Draining(None);
        }
        self.steer_to_shared()
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
        backend: &mut dyn VmqBackend,
    ) -> Result<usize, VmqError> {
        if !self.stray_macs.is_empty() && now_ns >= self.retry_ns {
            // If this fails, a later poll retries it.
            let _ = self.steer_to_shared();
            self.retry_ns = now_ns.saturating_add(RETRY_DELAY_NS);
        }
        let VmqQueue {
            state, size, split, ..
        } = *self.get(queue)?;
        // This query precedes the read of the queue, so that the read finds all frames that were in
        // transit.
        let effective = match state {
            VmqQueueState::Enabled | VmqQueueState::Draining(None) => false,
            VmqQueueState::Draining(Some(change)) => self.is_effective(change, now_ns),
            VmqQueueState::Free | VmqQueueState::Idle => return Err(VmqError::NotEnabled),
        };
        let mut supply = BackendBuffers {
            backend,
            why: ReturnReason::Fault,
        };
        let budget = budget.min(size);
        let received =
            self.receive
                .receive(queue, now_ns, budget, split, &mut supply, &mut self.frames);
        supply.why = ReturnReason::Unused;
        self.receive.release(queue, &mut supply);
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

/// Adapts a backend to a buffer supply for [`ReceiveSide`].
struct BackendBuffers<'a> {
    backend: &'a mut dyn VmqBackend,
    why: ReturnReason,
}

impl Buffers for BackendBuffers<'_> {
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
