//! Frames from the endpoint to the ring.

use super::device::EndpointDevice;
use super::fast_path;
use super::memory::InterfaceMemory;
use super::pass::{PassInput, PassOutcome};
use nic::{Buffers, Frame, Piece};
use runtime::ledger::Hop;
use runtime::trace::DropSnapshot;
use vif::netfront::Netfront;

/// The endpoint's frames that wait for room in the ring.
#[derive(Default)]
pub(super) struct TxBacklog {
    frames: Vec<Frame>,
    /// Small frames on the fast path that wait for room.
    small: Vec<Piece>,
    /// Whether frames wait for room in the ring, or in the pool into which the endpoint reads.
    pub starved: bool,
}

impl TxBacklog {
    /// Moves frames.
    pub(super) fn run(
        &mut self,
        netfront: &mut Netfront,
        (device, memory): (&mut EndpointDevice, &mut InterfaceMemory),
        pass: &mut PassInput<'_>,
    ) -> PassOutcome {
        let mut outcome = PassOutcome::default();
        // The endpoint reads into buffers that the driver domain has returned. Most polls find no
        // returned buffers and do not justify a time stamp.
        let reaped = match netfront.has_unreaped_responses() {
            true => pass
                .ledger
                .charge_to(Hop::Netfront, || netfront.reap().err()),
            false => None,
        };
        if !device.pending_errors.is_empty() {
            self.take_errors(netfront, device);
        }
        let hop = pass.ledger.enter(Hop::Endpoint);
        let yielded = match self.is_fast(device, pass) {
            true => self.send_fast(netfront, (device, memory), pass, &mut outcome),
            false => self.send(netfront, (device, memory), pass, pass.budget, &mut outcome),
        };
        pass.ledger.enter(hop);
        let empty = netfront.buffers().available() == 0 || device.endpoint.starved();
        self.starved = self.is_waiting() || yielded == 0 && empty;
        outcome.touched = outcome.moved;
        outcome.fatal = reaped.or(outcome.fatal);
        outcome
    }

    /// Queues errors to senders of frames that the endpoint has rejected, while buffers remain.
    #[cold]
    fn take_errors(&mut self, netfront: &mut Netfront, device: &mut EndpointDevice) {
        let pool = netfront.buffers();
        let errors = device.pending_errors.drain(..);
        let frames = errors.filter_map(|bytes| Frame::from_bytes(&bytes, pool).ok());
        self.frames.extend(frames);
    }

    /// Returns whether frames wait for room in the ring.
    fn is_waiting(&self) -> bool {
        !self.small.is_empty() || !self.frames.is_empty()
    }

    /// Returns whether to take the fast path. Waiting frames stay on their path, which keeps frames
    /// in order.
    fn is_fast(&self, device: &mut EndpointDevice, pass: &PassInput<'_>) -> bool {
        let mut is_free = || !pass.trace.is_wanted() && device.endpoint.small_frames().is_some();
        !self.small.is_empty() || self.frames.is_empty() && is_free()
    }

    /// Moves frames on the fast path. If the first remaining frame needs the slow path, moves the
    /// remaining frames there. Returns the number of frames that the endpoint produced.
    fn send_fast(
        &mut self,
        netfront: &mut Netfront,
        (device, memory): (&mut EndpointDevice, &mut InterfaceMemory),
        pass: &mut PassInput<'_>,
        outcome: &mut PassOutcome,
    ) -> usize {
        let polls = self.small.is_empty();
        let fast = fast_path::from_guest(netfront, device, &mut self.small, pass, outcome);
        let left = pass.budget.saturating_sub(fast);
        let may = polls && self.small.is_empty() && outcome.fatal.is_none() && left > 0;
        let mut endpoint = device.endpoint.small_frames().filter(|_| may);
        if !endpoint
            .as_mut()
            .is_some_and(|endpoint| endpoint.has_other())
        {
            return fast;
        }
        pass.ledger.enter(Hop::Endpoint);
        fast + self.send(netfront, (device, memory), pass, left, outcome)
    }

    /// Moves up to `budget` frames on the slow path; returns the number that the endpoint produced.
    fn send(
        &mut self,
        netfront: &mut Netfront,
        (device, memory): (&mut EndpointDevice, &mut InterfaceMemory),
        pass: &mut PassInput<'_>,
        budget: usize,
        outcome: &mut PassOutcome,
    ) -> usize {
        let (frames, trace) = (&mut self.frames, &mut *pass.trace);
        let mut yielded = 0;
        if frames.is_empty() {
            let (endpoint, buffers) = (&mut device.endpoint, netfront.buffers());
            yielded = endpoint.rx(pass.now_ns, budget, buffers, frames);
        }
        let before = frames.len();
        if before == 0 {
            return yielded;
        }
        pass.ledger.enter(Hop::Netfront);
        if yielded > 0 {
            trace.begin(Hop::Endpoint, "the endpoint", frames);
        }
        // A traced frame is sent alone, so that the counters show its result.
        if trace.is_running() {
            let rest = frames.split_off(frames.len().min(1));
            let before = DropSnapshot::of_driver(netfront.counters());
            outcome.fatal = memory.transmit(netfront, pass.ledger, frames).err();
            trace.step(Hop::Netfront, || {
                DropSnapshot::of_driver(netfront.counters()).since(&before, "the ring")
            });
            trace.end();
            frames.extend(rest);
        }
        if outcome.fatal.is_none() && !frames.is_empty() {
            outcome.fatal = memory.transmit(netfront, pass.ledger, frames).err();
        }
        outcome.moved |= frames.len() < before;
        yielded
    }

    /// Returns the buffers of waiting frames to the pool.
    pub(super) fn recycle(&mut self, pool: &mut dyn Buffers) {
        for mut frame in self.frames.drain(..) {
            frame.recycle(pool);
        }
        for piece in self.small.drain(..) {
            pool.put(piece.buffer);
        }
    }
}
