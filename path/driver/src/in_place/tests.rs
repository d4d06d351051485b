use super::*;
use crate::testing::{Machine, frame, mac};
use net::packet::checksum::Sum;
use nic::{BufferId, Checksum, Piece};
use std::slice;

const STATION: [u8; 6] = [2, 0, 0, 0, 9, 9];
const FRAME: usize = 1519;
/// The guest whose pages contain the frames.
const GUEST: usize = 1;

fn in_place() -> InPlace {
    InPlace::default()
}

/// Acts as the device: receives these frames into the guest's posted buffers. Returns the buffers.
fn received(in_place: &mut InPlace, machine: &mut Machine, frames: &[Vec<u8>]) -> Vec<BufferId> {
    let vif = machine.switch.ports.vif_mut(GUEST).unwrap();
    let netback = vif.netback().unwrap();
    let put = |bytes: &Vec<u8>| {
        let buffer = netback.post(FRAME).unwrap();
        buffer.span.take(bytes.len()).write(bytes).unwrap();
        let piece = Piece {
            span: buffer.span,
            buffer: buffer.id,
        };
        in_place
            .frames
            .push(Frame::new(piece, bytes.len()).unwrap());
        buffer.id
    };
    frames.iter().map(put).collect()
}

fn deliver(in_place: &mut InPlace, machine: &mut Machine) -> DeliveryReport {
    let ports = InPlacePorts {
        nic: machine.wire,
        guest: GUEST,
    };
    let buffers = BufferLending::Posted { header_last: false };
    let report = in_place.deliver(&mut machine.switch, ports, buffers, None, 0);
    let vif = machine.switch.ports.vif_mut(GUEST).unwrap();
    vif.delivered(&report);
    machine.switch.dirty.mark(GUEST);
    machine.publish();
    report
}

#[test]
fn frames_for_the_guest_stay_in_place() {
    let (mut machine, mut in_place) = (Machine::new(2), in_place());
    let sent: Vec<_> = (0..4)
        .map(|n| frame(mac(GUEST), STATION, 60 + 400 * n, n as u64))
        .collect();
    received(&mut in_place, &mut machine, &sent);
    let report = deliver(&mut in_place, &mut machine);
    assert_eq!((report.delivered, report.drops.total()), (4, 0));
    assert_eq!(machine.received(GUEST), sent);
    assert_eq!(in_place.misdirected(), 0);
    assert_eq!(in_place.stat()["direct_packets"], 4);
    assert!(in_place.frames.is_empty());
}

#[test]
fn tunnelled_blank_checksum_is_computed() {
    let (mut machine, mut in_place) = (Machine::new(2), in_place());
    let mut sent = vec![
        frame(mac(GUEST), STATION, 600, 1),
        frame(mac(GUEST), STATION, 61, 2),
    ];
    received(&mut in_place, &mut machine, &sent);
    // The checksum field of each frame is in an inner header, at `start + offset`.
    for (frame, bytes, (start, offset)) in [(0, 600, (84, 16)), (1, 61, (50, 6))] {
        in_place.frames[frame].offload.checksum = Checksum::Blank { start, offset };
        let (start, offset) = (usize::from(start), usize::from(offset));
        let mut sum = Sum::default();
        sum.add_bytes(&sent[frame][start..bytes]);
        let at = start + offset;
        sent[frame][at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
    }
    let report = deliver(&mut in_place, &mut machine);
    assert_eq!((report.delivered, report.drops.total()), (2, 0));
    assert_eq!(machine.received(GUEST), sent);
}

/// After a queue was reassigned, frames for the previous guest may lie in this guest's pages.
#[test]
fn attack_36_misdirected_frames_are_not_delivered() {
    let (mut machine, mut in_place) = (Machine::new(3), in_place());
    let own = frame(mac(GUEST), STATION, 700, 1);
    let others = [
        frame(mac(0), STATION, 500, 2),
        frame(mac(2), STATION, 1400, 3),
        // Frames to an unknown station and broadcasts belong in the shared queue.
        frame([2, 0, 0, 0, 7, 7], STATION, 500, 4),
        frame([0xff; 6], STATION, 500, 5),
    ];
    for other in others {
        let all = [other.clone(), own.clone(), other];
        received(&mut in_place, &mut machine, &all);
        assert_eq!(deliver(&mut in_place, &mut machine).delivered, 1);
        assert_eq!(machine.received(GUEST), slice::from_ref(&own));
    }
    for n in [0, 2] {
        assert!(machine.received(n).is_empty(), "{n}");
    }
    assert!(in_place.misdirected() >= 6, "{}", in_place.misdirected());
    // The buffers of these frames have returned to the guest with an error, and are reused.
    received(&mut in_place, &mut machine, slice::from_ref(&own));
    assert_eq!(deliver(&mut in_place, &mut machine).delivered, 1);
    assert_eq!(machine.received(GUEST), [own]);
}

#[test]
fn removed_guest_receives_nothing() {
    let (mut machine, mut in_place) = (Machine::new(2), in_place());
    let sent = frame(mac(GUEST), STATION, 100, 1);
    received(&mut in_place, &mut machine, &[sent]);
    machine.guests[GUEST].raw_tx().set_req_prod(u32::MAX);
    machine.forward_from(GUEST);
    assert_eq!(
        deliver(&mut in_place, &mut machine),
        DeliveryReport::default()
    );
    assert!(in_place.frames.is_empty());
}
