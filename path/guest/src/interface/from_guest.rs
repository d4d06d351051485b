//! Frames from the endpoint to the ring.

use super::device::Device;
use super::fast_path;
use super::memory::Memory;
use super::pass::{Outcome, Pass};
use nic::{Buffers, Frame, Piece};
use runtime::ledger::Hop;
use runtime::trace::Fate;
use vif::netfront::Netfront;

/// Frames that the endpoint has yielded and that wait for room in the ring.
#[derive(Default)]
pub(super) struct FromGuest {
    frames: Vec<Frame>,
    /// The same for small frames on the fast path.
    small: Vec<Piece>,
    /// Whether frames wait for room: in the ring, or in the pool that the endpoint reads into.
    pub starved: bool,
}

impl FromGuest {
    /// Moves frames.
    pub(super) fn run(
        &mut self,
        netfront: &mut Netfront,
        (device, memory): (&mut Device, &mut Memory),
        pass: &mut Pass<'_>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        // The endpoint reads into buffers that the driver domain has given back. Most looks find
        // none: they are not worth a stamp.
        let reaped = match netfront.has_room_to_reap() {
            true => pass.ledger.at(Hop::Netfront, || netfront.reap().err()),
            false => None,
        };
        let hop = pass.ledger.enter(Hop::Endpoint);
        let yielded = match self.is_fast(device, pass) {
            true => fast_path::from_guest(netfront, device, &mut self.small, pass, &mut outcome),
            false => self.send(netfront, (device, memory), pass, &mut outcome),
        };
        pass.ledger.enter(hop);
        let empty = netfront.buffers().available() == 0 || device.endpoint.starved();
        self.starved = self.is_waiting() || yielded == 0 && empty;
        outcome.touched = outcome.moved;
        outcome.fatal = reaped.or(outcome.fatal);
        outcome
    }

    /// Whether frames wait for room in the ring.
    fn is_waiting(&self) -> bool {
        !self.small.is_empty() || !self.frames.is_empty()
    }

    /// Whether the fast path is taken: it or the slow path keeps those that wait, in order.
    fn is_fast(&self, device: &mut Device, pass: &Pass<'_>) -> bool {
        let mut is_free = || !pass.trace.is_wanted() && device.endpoint.small_frames().is_some();
        !self.small.is_empty() || self.frames.is_empty() && is_free()
    }

    /// The slow path; how many frames the endpoint yielded.
    fn send(
        &mut self,
        netfront: &mut Netfront,
        (device, memory): (&mut Device, &mut Memory),
        pass: &mut Pass<'_>,
        outcome: &mut Outcome,
    ) -> usize {
        let (frames, trace) = (&mut self.frames, &mut *pass.trace);
        let mut yielded = 0;
        if frames.is_empty() {
            let (endpoint, buffers) = (&mut device.endpoint, netfront.buffers());
            yielded = endpoint.rx(pass.now_ns, pass.budget, buffers, frames);
        }
        let before = frames.len();
        if before == 0 {
            return yielded;
        }
        pass.ledger.enter(Hop::Netfront);
        if yielded > 0 {
            trace.begin(Hop::Endpoint, "the endpoint", frames);
        }
        // A frame that is followed goes by itself, so that what is counted is what became of it.
        if trace.is_running() {
            let rest = frames.split_off(frames.len().min(1));
            let before = Fate::of_driver(netfront.counters());
            outcome.fatal = memory.transmit(netfront, pass.ledger, frames).err();
            trace.step(Hop::Netfront, || {
                Fate::of_driver(netfront.counters()).since(&before, "the ring")
            });
            trace.end();
            frames.extend(rest);
        }
        if outcome.fatal.is_none() && !frames.is_empty() {
            outcome.fatal = memory.transmit(netfront, pass.ledger, frames).err();
        }
        outcome.moved = frames.len() < before;
        yielded
    }

    /// Gives the buffers of frames that wait back to the pool.
    pub(super) fn recycle(&mut self, pool: &mut dyn Buffers) {
        for mut frame in self.frames.drain(..) {
            frame.recycle(pool);
        }
        for piece in self.small.drain(..) {
            pool.put(piece.buffer);
        }
    }
}
