//! The fast path between an endpoint and the ring: small frames as single pieces
//! ([`nic::small_frame`]), for endpoints that support them. Traced or merged frames take the slow
//! path.

use super::device::EndpointDevice;
use super::pass::{PassInput, PassOutcome};
use nic::Piece;
use runtime::ledger::Hop;
use vif::netfront::Netfront;

/// Moves packets from the head of the ring to the endpoint through `frames`, which is empty before
/// and after; returns their number.
pub(super) fn to_guest(
    netfront: &mut Netfront,
    device: &mut EndpointDevice,
    frames: &mut Vec<Piece>,
    pass: &PassInput<'_>,
    outcome: &mut PassOutcome,
) -> usize {
    let Some(endpoint) = device.endpoint.small_frames() else {
        return 0;
    };
    let before = pass.ledger.enter(Hop::Netfront);
    let received = netfront.receive_small_frames(pass.budget, frames);
    if !frames.is_empty() {
        pass.ledger.enter(Hop::Endpoint);
        device
            .given
            .add(&endpoint.tx_small_frames(pass.now_ns, frames));
        pass.ledger.enter(Hop::Netfront);
        netfront.small_frames_done(frames);
        outcome.touched = true;
    }
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
