//! The fast path between an endpoint and the ring: small frames as single pieces
//! ([`nic::small_frame`]), for endpoints that take or yield such. Frames that are followed or
//! merged go the slow path.

use super::device::Device;
use super::pass::{Outcome, Pass};
use nic::Piece;
use runtime::ledger::Hop;
use vif::netfront::Netfront;

/// Packets at the head of the ring to the endpoint, by way of `frames`, which is empty before and
/// after; how many.
pub(super) fn to_guest(
    netfront: &mut Netfront,
    device: &mut Device,
    frames: &mut Vec<Piece>,
    pass: &Pass<'_>,
    outcome: &mut Outcome,
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

/// Frames from the endpoint to the ring; how many the endpoint yielded. Those that find no room
/// stay in `frames`, which the endpoint is only asked to fill when it is empty.
pub(super) fn from_guest(
    netfront: &mut Netfront,
    device: &mut Device,
    frames: &mut Vec<Piece>,
    pass: &Pass<'_>,
    outcome: &mut Outcome,
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
