use super::*;
use crate::testing::{Machine, frame, mac};
use abi::XenbusState;
use net::queue::QueueDropReason;
use std::slice;

const BROADCAST: [u8; 6] = [0xff; 6];

#[test]
fn frame_reaches_only_its_destination() {
    let mut machine = Machine::new(3);
    let free = machine.guests[0].front.buffers().available();
    let sent: Vec<_> = (0..5)
        .map(|n| frame(mac(1), mac(0), 100 + 1000 * n, n as u64))
        .collect();
    sent.iter().for_each(|bytes| machine.send(0, bytes));
    let bytes = sent.iter().map(Vec::len).sum::<usize>() as u64;
    assert_eq!(machine.forward_from(0), BatchStats { packets: 5, bytes });
    assert_eq!(machine.received(1), sent);
    assert!(machine.received(0).is_empty() && machine.received(2).is_empty());
    assert_eq!(
        machine.switch.verdicts(),
        [const { Verdict::Unicast(1) }; 5]
    );
    let traffic = &machine.port(1).traffic;
    assert_eq!((traffic.out_packets, traffic.out_bytes), (5, bytes));
    let traffic = &machine.port(0).traffic;
    assert_eq!((traffic.in_packets, traffic.in_bytes), (5, bytes));
    // The guest gets all of its buffers back.
    machine.guests[0].front.reap().unwrap();
    assert_eq!(machine.guests[0].front.buffers().available(), free);
}

#[test]
fn broadcast_reaches_each_guest_once() {
    let mut machine = Machine::new(4);
    let bytes = frame(BROADCAST, mac(2), 300, 7);
    machine.send(2, &bytes);
    machine.forward_from(2);
    for n in [0, 1, 3] {
        assert_eq!(machine.received(n), slice::from_ref(&bytes), "{n}");
    }
    assert!(machine.received(2).is_empty());
    let nic = machine.switch.ports.nic(machine.wire).unwrap();
    assert_eq!(nic.traffic.out_packets, 1);
}

#[test]
fn bridge_drops_are_counted_and_answered() {
    let mut machine = Machine::new(2);
    machine.send(0, &frame(mac(1), mac(1), 100, 0));
    assert_eq!(machine.forward_from(0).packets, 1);
    assert!(machine.received(1).is_empty());
    let drops = machine.switch.bridge.drops(0).unwrap();
    assert_eq!(drops.get(DropReason::ForgedSource), 1);
    assert_eq!(machine.guests[0].front.reap(), Ok(1));
}

#[test]
fn sleeping_guest_is_notified_once_per_turn() {
    let mut machine = Machine::new(2);
    assert!(!machine.guests[1].front.prepare_sleep(false));
    for number in 0..3 {
        machine.send(0, &frame(mac(1), mac(0), 100, number));
    }
    machine.forward_from(0);
    assert_eq!(machine.systems[1].rings.get(), 1);
    machine.publish();
    assert_eq!(machine.systems[1].rings.get(), 1);
}

/// XSA-392: one guest stops receiving while another guest sends to it continuously. Queued frames
/// are bounded, the sender gets its buffers back immediately, and a third guest receives all of its
/// frames.
#[test]
fn attack_09_stalled_guest_blocks_no_other() {
    let mut machine = Machine::new(3);
    let free = machine.guests[0].front.buffers().available();
    let other = frame(mac(2), mac(0), 300, 9);
    let mut sent = 0;
    for number in 0..400 {
        for to in [1, 1, 1] {
            machine.send(0, &frame(mac(to), mac(0), 900, number));
            sent += 1;
        }
        machine.send(0, &other);
        assert_eq!(machine.forward_from(0).packets, 4);
        machine.guests[0].front.reap().unwrap();
        assert_eq!(machine.guests[0].front.buffers().available(), free);
        assert_eq!(machine.received(2), slice::from_ref(&other), "{number}");
    }
    let port = machine.port(1);
    let drops = port.egress.drops;
    let (waiting, dropped) = (
        port.egress.units() as u64,
        drops.get(QueueDropReason::Full) + drops.get(QueueDropReason::Codel),
    );
    assert_eq!(port.counters().to_guest + waiting + dropped, sent);
    assert!(dropped > 500 && waiting > 100, "{dropped} {waiting}");
}

/// A guest continuously sends broadcasts, and frames to an unknown station. Each port has a
/// separate budget for these frames: other guests receive no more than the budget, and another
/// guest's broadcast passes.
#[test]
fn attack_33_broadcast_storm_is_bounded() {
    let mut machine = Machine::new(3);
    let storm = frame(BROADCAST, mac(0), 60, 1);
    let unknown = frame([2, 0, 0, 0, 8, 8], mac(0), 60, 2);
    let mut got = 0;
    const SENT: u64 = 20_000;
    for _ in 0..SENT / 40 {
        for _ in 0..20 {
            machine.send(0, &storm);
            machine.send(0, &unknown);
        }
        machine.forward_from(0);
        machine.guests[0].front.reap().unwrap();
        got += machine.received(1).len() as u64;
        machine.received(2);
    }
    let drops = machine.switch.bridge.drops(0).unwrap();
    let beyond = drops.get(DropReason::GroupBudget);
    assert_eq!(
        got + beyond,
        SENT / 2,
        "no frame to the unknown station reached a guest"
    );
    assert!(beyond > SENT / 4, "{beyond}");
    let other = frame(BROADCAST, mac(1), 60, 3);
    machine.send(1, &other);
    machine.forward_from(1);
    assert_eq!(machine.received(2), [other]);
}

/// Rate limits and turns count a packet's segments, so that packets with tiny segments do not evade
/// them.
#[test]
fn gso_packet_costs_as_much_as_its_segments() {
    let mut machine = Machine::new(2);
    let mut bytes = vif::testing::ipv4_tcp(1000, 1);
    bytes[..6].copy_from_slice(&mac(1));
    bytes[6..12].copy_from_slice(&mac(0));
    let offload = |size| nic::Offload {
        checksum: nic::Checksum::Blank {
            start: 34,
            offset: 16,
        },
        gso: Some(nic::Gso {
            kind: nic::GsoKind::Tcp4,
            size,
        }),
    };
    for (size, wire) in [(1000, 1054), (500, 2 * 554), (10, 100 * 64)] {
        assert!(machine.guests[0].send(&bytes, offload(size)));
        assert_eq!(machine.forward_from(0).bytes, wire, "{size}");
    }
}

/// XSA-374, XSA-527: an interface closes between taking a batch and returning it.
#[test]
fn attack_23_interface_closed_mid_batch() {
    let mut machine = Machine::new(3);
    let bytes = frame(BROADCAST, mac(0), 200, 1);
    for _ in 0..3 {
        machine.send(0, &bytes);
    }
    // Guest 1 corrupts its ring. The driver detects this when it sends the batch.
    machine.guests[1].raw_rx().set_req_prod(u32::MAX);
    assert_eq!(machine.forward_from(0).packets, 3);
    assert_eq!(machine.port(1).state(), XenbusState::Closed);
    assert!(!machine.port(1).last_error.is_empty());
    assert_eq!(
        machine.received(2),
        [bytes.clone(), bytes.clone(), bytes.clone()]
    );
    assert_eq!(machine.guests[0].front.reap(), Ok(3));
    // From now on, frames for guest 1 are only counted.
    machine.send(0, &frame(mac(1), mac(0), 100, 2));
    machine.forward_from(0);
    assert_eq!(machine.port(1).not_connected, 1);
    // The sender's link closes during its batch. The frames that it has sent still reach other
    // guests.
    machine.send(2, &bytes_of(2));
    let mut frames = Vec::new();
    let Switch { ports, ledger, .. } = &mut machine.switch;
    assert_eq!(
        ports.get_mut(2).unwrap().take(0, 64, &mut frames, ledger),
        1
    );
    machine.guests[2].raw_rx().set_req_prod(u32::MAX);
    machine.switch.forward(2, 0, &mut frames);
    let port = machine.switch.ports.get_mut(2).unwrap();
    port.release_taken(&mut frames, &machine.switch.ledger);
    machine.publish();
    assert_eq!(machine.received(0), [bytes_of(2)]);
}

fn bytes_of(n: usize) -> Vec<u8> {
    frame(BROADCAST, mac(n), 150, 5)
}
