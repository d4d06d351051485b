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
    delivered: Vec<Piece>,
}

impl SmallFramesToGuest {
    /// Returns whether frames wait for room in the endpoint.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Moves packets from the head of the ring to the endpoint; returns their number. The caller
    /// ensures that no earlier frame waits.
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
        self.send_waiting(netfront, device, pass, outcome);
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
    pub(super) fn send_waiting(
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
            let delivered = self.waiting.len() - waiting;
            self.delivered.extend(self.waiting.drain(..delivered));
            netfront.small_frames_done(&mut self.delivered);
            outcome.touched = true;
        }
        outcome.moved |= outcome.touched;
        pass.ledger.enter(before);
    }

    /// Sends the waiting frames to the endpoint for the last time, when the connection has ended.
    pub(super) fn drain(&mut self, now_ns: u64, device: &mut EndpointDevice) {
        let waiting = device.give_small_frames(now_ns, &self.waiting);
        device.count_dropped(waiting);
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

#[cfg(test)]
mod tests {
    use super::*;
    use nic::{Buffers, Caps, Frame, Nic, SmallFrames, TxReport};
    use runtime::ledger::Ledger;
    use runtime::trace::Trace;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use vif::testing::{Rig, packet, sizes};

    const FRAME_BYTES_MAX: usize = 200;

    /// An endpoint with room for some frames, and the lengths of those that it has taken.
    #[derive(Clone, Default)]
    struct LimitedEndpoint {
        room: Rc<Cell<usize>>,
        taken: Rc<RefCell<Vec<usize>>>,
    }

    impl Nic for LimitedEndpoint {
        fn caps(&self) -> Caps {
            Caps {
                max_frame: FRAME_BYTES_MAX,
                ..Caps::default()
            }
        }

        fn rx(&mut self, _: u64, _: usize, _: &mut dyn Buffers, _: &mut Vec<Frame>) -> usize {
            0
        }

        fn tx(&mut self, _: u64, _: &[Frame], _: &[u32]) -> TxReport {
            TxReport::default()
        }

        fn small_frames(&mut self) -> Option<&mut dyn SmallFrames> {
            Some(self)
        }
    }

    impl SmallFrames for LimitedEndpoint {
        fn rx_small_frames(
            &mut self,
            _: u64,
            _: usize,
            _: &mut dyn Buffers,
            _: &mut Vec<Piece>,
        ) -> usize {
            0
        }

        fn tx_small_frames(&mut self, _now_ns: u64, frames: &[Piece]) -> TxReport {
            let sent = frames.len().min(self.room.get());
            self.room.set(self.room.get() - sent);
            let lengths = frames.iter().take(sent).map(|piece| piece.span.len());
            self.taken.borrow_mut().extend(lengths);
            TxReport {
                sent: sent as u32,
                waiting: (frames.len() - sent) as u32,
                ..TxReport::default()
            }
        }
    }

    /// Sends packets of these lengths through the driver domain to the guest.
    fn send(rig: &mut Rig, lengths: &[usize]) {
        let frame = |len: &usize| rig.guest_frame(&packet(*len, 1)).unwrap();
        let mut frames = lengths.iter().map(frame).collect();
        rig.front.transmit(&mut frames).unwrap();
        rig.front.publish();
        let mut frames = Vec::new();
        let taken = rig.back.from_guest(lengths.len(), &mut frames).unwrap();
        let pick: Vec<u32> = (0..taken as u32).collect();
        rig.back.to_guest(&frames, &pick);
        rig.back.from_guest_done();
        rig.back.publish();
    }

    /// Runs `act` in a pass; returns its outcome.
    fn pass(act: impl FnOnce(&PassInput<'_>, &mut PassOutcome)) -> PassOutcome {
        let mut outcome = PassOutcome::default();
        let input = PassInput {
            now_ns: 0,
            budget: 64,
            ledger: &Ledger::new(false),
            trace: &mut Trace::default(),
        };
        act(&input, &mut outcome);
        outcome
    }

    #[test]
    fn frames_without_room_wait_in_order() {
        let (mut rig, endpoint) = (Rig::new(sizes()), LimitedEndpoint::default());
        let mut device = EndpointDevice::new(Box::new(endpoint.clone()));
        let mut small = SmallFramesToGuest::default();
        send(&mut rig, &[60, 61, 62, 63]);
        endpoint.room.set(2);
        let outcome = pass(|input, outcome| {
            assert_eq!(small.run(&mut rig.front, &mut device, input, outcome), 4);
        });
        assert!(outcome.moved && small.is_waiting());
        for (room, taken) in [(0, 2), (1, 3), (9, 4)] {
            endpoint.room.set(room);
            let outcome = pass(|input, outcome| {
                small.send_waiting(&mut rig.front, &mut device, input, outcome);
            });
            assert_eq!(outcome.moved, room > 0);
            assert_eq!(endpoint.taken.borrow()[..], [60, 61, 62, 63][..taken]);
        }
        assert!(!small.is_waiting());
        assert_eq!((device.tx_totals.sent, device.tx_totals.full), (4, 0));
    }

    #[test]
    fn waiting_frames_of_an_ended_connection_are_lost() {
        let (mut rig, endpoint) = (Rig::new(sizes()), LimitedEndpoint::default());
        let mut device = EndpointDevice::new(Box::new(endpoint.clone()));
        let mut small = SmallFramesToGuest::default();
        send(&mut rig, &[60, 61, 62]);
        pass(|input, outcome| {
            small.run(&mut rig.front, &mut device, input, outcome);
        });
        endpoint.room.set(1);
        small.drain(0, &mut device);
        assert!(!small.is_waiting());
        assert_eq!((device.tx_totals.sent, device.tx_totals.full), (1, 2));
    }

    #[test]
    fn longer_frames_stay_in_the_ring() {
        let (mut rig, endpoint) = (Rig::new(sizes()), LimitedEndpoint::default());
        let mut device = EndpointDevice::new(Box::new(endpoint.clone()));
        let mut small = SmallFramesToGuest::default();
        endpoint.room.set(9);
        send(&mut rig, &[FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, 60]);
        let outcome = pass(|input, outcome| {
            small.run(&mut rig.front, &mut device, input, outcome);
        });
        assert!(outcome.fatal.is_none() && rig.front.has_work());
        assert_eq!(endpoint.taken.borrow()[..], [FRAME_BYTES_MAX]);
    }
}
