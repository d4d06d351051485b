//! The fast path between an endpoint and the ring: small frames as single pieces
//! ([`nic::small_frame`]), for endpoints that support them. Traced or merged frames take the slow
//! path.

use super::device::EndpointDevice;
use super::pass::{PassInput, PassOutcome};
use nic::Piece;
use runtime::ledger::Hop;
use vif::netfront::Netfront;

/// Frames from the ring for the endpoint.
#[derive(Default)]
pub(super) struct SmallFramesToGuest {
    /// Frames that wait for room in the endpoint; empty between two passes if it has room.
    waiting: Vec<Piece>,
    /// Frames that the endpoint has processed, while others wait.
    given: Vec<Piece>,
}

impl SmallFramesToGuest {
    /// Returns whether frames wait for room in the endpoint.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Moves packets from the head of the ring to the endpoint; returns their number. No frame may
    /// wait.
    pub(super) fn run(
        &mut self,
        netfront: &mut Netfront,
        device: &mut EndpointDevice,
        pass: &PassInput<'_>,
        outcome: &mut PassOutcome,
    ) -> usize {
        if device.endpoint.small_frames().is_none() {
            return 0;
        }
        // Longer frames take the slow path, which returns errors to their senders.
        let longest = device.endpoint.caps().max_frame;
        let before = pass.ledger.enter(Hop::Netfront);
        let received = netfront.receive_small_frames(pass.budget, longest, &mut self.waiting);
        self.hand_over(netfront, device, pass, outcome);
        pass.ledger.enter(before);
        match received {
            Ok(received) => {
                outcome.moved |= received > 0;
                received
            }
            Err(fatal) => {
                outcome.fatal = Some(fatal);
                0
            }
        }
    }

    /// Sends the waiting frames to the endpoint, and returns the buffers of those that it has
    /// processed.
    pub(super) fn hand_over(
        &mut self,
        netfront: &mut Netfront,
        device: &mut EndpointDevice,
        pass: &PassInput<'_>,
        outcome: &mut PassOutcome,
    ) {
        if !self.is_waiting() {
            return;
        }
        let before = pass.ledger.enter(Hop::Endpoint);
        let waiting = device.give_small_frames(pass.now_ns, &self.waiting);
        pass.ledger.enter(Hop::Netfront);
        if waiting == 0 {
            netfront.small_frames_done(&mut self.waiting);
            outcome.touched = true;
        } else if waiting < self.waiting.len() {
            let given = self.waiting.len() - waiting;
            self.given.extend(self.waiting.drain(..given));
            netfront.small_frames_done(&mut self.given);
            outcome.touched = true;
        }
        outcome.moved |= outcome.touched;
        pass.ledger.enter(before);
    }

    /// Sends the waiting frames to the endpoint for the last time, when the connection has ended.
    pub(super) fn drain(&mut self, now_ns: u64, device: &mut EndpointDevice) {
        let waiting = device.give_small_frames(now_ns, &self.waiting);
        device.lose(waiting);
        self.waiting.clear();
    }
}

/// Moves frames from the endpoint to the ring; returns the number that the endpoint produced.
/// Frames without room stay in `frames`; the endpoint is polled only when `frames` is empty.
pub(super) fn from_guest(
    netfront: &mut Netfront,
    device: &mut EndpointDevice,
    frames: &mut Vec<Piece>,
    pass: &PassInput<'_>,
    outcome: &mut PassOutcome,
) -> usize {
    let mut yielded = 0;
    if frames.is_empty()
        && let Some(endpoint) = device.endpoint.small_frames()
    {
        yielded = endpoint.rx_small_frames(pass.now_ns, pass.budget, netfront.buffers(), frames);
    }
    let before = frames.len();
    if before > 0 {
        pass.ledger.enter(Hop::Netfront);
        outcome.fatal = netfront.transmit_small_frames(frames).err();
    }
    outcome.moved = frames.len() < before;
    yielded
}
