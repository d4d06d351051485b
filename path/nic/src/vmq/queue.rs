//! The queues of a NIC: who has which, and in which state. One implementation of the contract for
//! every NIC that can steer and receive.

use super::contract::{Backend, Freed, QueueId, Steering, Vmq, VmqError};
use crate::buffer::{Buffer, BufferId, Buffers};
use crate::frame::Frame;
use abi::machine::EVERY_MAC;

/// The shortest time between two questions which change of steering is in effect: another process
/// may have to answer.
const ASK_NS: u64 = 500_000;
/// How long a change of steering that was not made waits for the next attempt. An attempt may block
/// for a part of it.
const AGAIN_NS: u64 = 250_000_000;
/// Buffers that a queue asks for at a time unless told otherwise.
const SIZE: usize = 64;

/// What one read of a queue has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames that were appended.
    pub frames: usize,
    /// Whether nothing is left in the queue.
    pub empty: bool,
}

/// The part that differs between NICs: how a frame gets out of a queue.
pub trait Receive {
    /// Queues.
    fn queues(&self) -> usize;

    /// Takes up to `budget` frames out of `queue`, each in one buffer of `buffers`; with `split`
    /// its header is left out of the buffer ([`Vmq::split_headers`]). A buffer that could not be
    /// written is put back; unused ones stay ready until [`Receive::release`].
    fn receive(
        &mut self,
        queue: QueueId,
        now_ns: u64,
        budget: usize,
        split: bool,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> Received;

    /// Puts back what `queue` has kept ready.
    fn release(&mut self, queue: QueueId, buffers: &mut dyn Buffers);

    /// Counters by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Idle,
    Enabled,
    /// Until this change of steering is in effect and the queue is then found empty. None: the
    /// change is still to be made.
    Draining(Option<u64>),
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    state: State,
    mac: Option<[u8; 6]>,
    size: usize,
    split: bool,
}

/// The queues of a NIC that steers by `S` and receives by `R`.
#[derive(Debug)]
pub struct MultiQueue<S, R> {
    steering: S,
    receive: R,
    queues: Vec<Queue>,
    effective: u64,
    asked_ns: Option<u64>,
    /// MACs that any draining queue may have frames of, until they are led away; one may be
    /// [`EVERY_MAC`].
    astray: Vec<[u8; 6]>,
    led_away: u64,
    again_ns: u64,
    frames: Vec<Frame>,
}

impl<S: Steering, R: Receive> MultiQueue<S, R> {
    /// All of its queues are free.
    #[must_use]
    pub fn new(steering: S, receive: R) -> Self {
        let free = Queue {
            state: State::Free,
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

    /// What receives.
    pub fn receive_mut(&mut self) -> &mut R {
        &mut self.receive
    }

    /// An allocated queue.
    fn get(&self, queue: QueueId) -> Result<&Queue, VmqError> {
        let found = self.queues.get(queue.0 as usize);
        found
            .filter(|queue| queue.state != State::Free)
            .ok_or(VmqError::NoQueue)
    }

    /// An allocated queue that is neither enabled nor drains.
    fn idle(&mut self, queue: QueueId) -> Result<&mut Queue, VmqError> {
        match self.queues.get_mut(queue.0 as usize) {
            Some(found) => match found.state {
                State::Free => Err(VmqError::NoQueue),
                State::Idle => Ok(found),
                State::Enabled => Err(VmqError::Enabled),
                State::Draining(_) => Err(VmqError::Draining),
            },
            None => Err(VmqError::NoQueue),
        }
    }

    fn set(&mut self, queue: QueueId, state: State) {
        if let Some(found) = self.queues.get_mut(queue.0 as usize) {
            found.state = state;
        }
    }

    /// The queue has lost its MAC, and whether that is led to it is not known.
    fn stray(&mut self, queue: QueueId, mac: [u8; 6]) {
        self.astray.push(mac);
        self.set(queue, State::Draining(None));
    }

    /// Leads what is astray to the shared queue. What was asked for before has been done then, or
    /// never will be.
    fn lead_away(&mut self) -> Result<(), VmqError> {
        while let Some(&mac) = self.astray.last() {
            self.led_away = self.led_away.max(self.steering.steer(mac, None)?);
            self.astray.pop();
        }
        let led_away = self.led_away;
        for queue in &mut self.queues {
            if let State::Draining(point @ None) = &mut queue.state {
                *point = Some(led_away);
            }
        }
        Ok(())
    }

    /// Whether no frame that chose its queue before `point` is on its way any more.
    fn is_effective(&mut self, point: u64, now_ns: u64) -> bool {
        let recently = |asked: u64| now_ns.saturating_sub(asked) < ASK_NS;
        if self.effective < point && !self.asked_ns.is_some_and(recently) {
            self.asked_ns = Some(now_ns);
            self.effective = self.effective.max(self.steering.effective());
        }
        self.effective >= point
    }
}

impl<S: Steering, R: Receive> Vmq for MultiQueue<S, R> {
    fn avail_queues(&self) -> usize {
        let free = |queue: &&Queue| queue.state == State::Free;
        self.queues.iter().filter(free).count()
    }

    fn alloc_queue(&mut self) -> Option<QueueId> {
        let free = |queue: &Queue| queue.state == State::Free;
        let at = self.queues.iter().position(free)?;
        let queue = self.queues.get_mut(at)?;
        *queue = Queue {
            state: State::Idle,
            mac: None,
            size: SIZE,
            split: false,
        };
        Some(QueueId(at as u32))
    }

    fn free_queue(&mut self, queue: QueueId) -> Result<(), VmqError> {
        self.idle(queue)?.state = State::Free;
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
        let taken = |(n, other): (usize, &Queue)| {
            n != queue.0 as usize
                && matches!(other.state, State::Idle | State::Enabled)
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
            Ok(_) => self.set(queue, State::Enabled),
            Err(VmqError::Unanswered) => self.stray(queue, mac),
            Err(_) => {}
        }
        steered.map(drop)
    }

    fn disable_queue(&mut self, queue: QueueId) -> Result<(), VmqError> {
        let found = self.get(queue)?;
        let (State::Enabled, Some(mac)) = (found.state, found.mac) else {
            return Err(VmqError::NotEnabled);
        };
        match self.steering.steer(mac, None) {
            Ok(point) => self.set(queue, State::Draining(Some(point))),
            Err(VmqError::Unanswered) => self.stray(queue, mac),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn recover(&mut self) -> Result<(), VmqError> {
        self.astray = vec![EVERY_MAC];
        for queue in &mut self.queues {
            queue.state = State::Draining(None);
        }
        self.lead_away()
    }

    fn is_draining(&self, queue: QueueId) -> bool {
        self.get(queue)
            .is_ok_and(|queue| matches!(queue.state, State::Draining(_)))
    }

    fn poll(
        &mut self,
        queue: QueueId,
        now_ns: u64,
        budget: usize,
        backend: &mut dyn Backend,
    ) -> Result<usize, VmqError> {
        if !self.astray.is_empty() && now_ns >= self.again_ns {
            // Refused or not answered: another time.
            let _ = self.lead_away();
            self.again_ns = now_ns.saturating_add(AGAIN_NS);
        }
        let Queue {
            state, size, split, ..
        } = *self.get(queue)?;
        // Asked before the queue is read: frames that were on their way until then are in it by
        // now.
        let effective = match state {
            State::Enabled | State::Draining(None) => false,
            State::Draining(Some(point)) => self.is_effective(point, now_ns),
            State::Free | State::Idle => return Err(VmqError::NotEnabled),
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
            self.set(queue, State::Idle);
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

/// A backend as the supply of buffers that a receiver takes from.
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
