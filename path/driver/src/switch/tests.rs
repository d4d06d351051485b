use super::*;
use crate::testing::{Machine, frame, mac};
use abi::XenbusState;
use std::slice;

const EVERYBODY: [u8; 6] = [0xff; 6];

#[test]
fn a_frame_goes_to_the_guest_that_it_is_for_and_to_no_other() {
    let mut machine = Machine::new(3);
    let free = machine.guests[0].front.buffers().available();
    let sent: Vec<_> = (0..5)
        .map(|n| frame(mac(1), mac(0), 100 + 1000 * n, n as u64))
        .collect();
    sent.iter().for_each(|bytes| machine.send(0, bytes));
    let bytes = sent.iter().map(Vec::len).sum::<usize>() as u64;
    assert_eq!(machine.carry(0), Carried { packets: 5, bytes });
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
fn what_is_for_everybody_comes_once_to_each_other() {
    let mut machine = Machine::new(4);
    let bytes = frame(EVERYBODY, mac(2), 300, 7);
    machine.send(2, &bytes);
    machine.carry(2);
    for n in [0, 1, 3] {
        assert_eq!(machine.received(n), slice::from_ref(&bytes), "{n}");
    }
    assert!(machine.received(2).is_empty());
    let nic = machine.switch.ports.nic(machine.wire).unwrap();
    assert_eq!(nic.traffic.out_packets, 1);
}

#[test]
fn what_the_bridge_drops_is_counted_there_and_answered() {
    let mut machine = Machine::new(2);
    machine.send(0, &frame(mac(1), mac(1), 100, 0));
    assert_eq!(machine.carry(0).packets, 1);
    assert!(machine.received(1).is_empty());
    let drops = machine.switch.bridge.drops(0).unwrap();
    assert_eq!(drops.get(DropReason::ForgedSource), 1);
    assert_eq!(machine.guests[0].front.reap(), Ok(1));
}

#[test]
fn who_sleeps_is_rung_once_a_turn_for_all_that_came() {
    let mut machine = Machine::new(2);
    assert!(!machine.guests[1].front.prepare_sleep(false));
    for number in 0..3 {
        machine.send(0, &frame(mac(1), mac(0), 100, number));
    }
    machine.carry(0);
    assert_eq!(machine.systems[1].rings.get(), 1);
    machine.publish();
    assert_eq!(machine.systems[1].rings.get(), 1);
}

/// XSA-392: a guest that takes nothing any more, and one that sends to it without end. What waits
/// is bounded, the sender has its buffers back at once, and a third guest has all of its frames.
#[test]
fn attack_09_a_guest_that_stops_consuming_holds_up_nothing() {
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
        assert_eq!(machine.carry(0).packets, 4);
        machine.guests[0].front.reap().unwrap();
        assert_eq!(machine.guests[0].front.buffers().available(), free);
        assert_eq!(machine.received(2), slice::from_ref(&other), "{number}");
    }
    let port = machine.port(1);
    let drops = port.egress.drops;
    let (waiting, dropped) = (port.egress.units() as u64, drops.full + drops.codel);
    assert_eq!(port.counters().to_guest + waiting + dropped, sent);
    assert!(dropped > 500 && waiting > 100, "{dropped} {waiting}");
}

/// A guest sends broadcasts without end, and frames to a station that does not exist. Each port
/// has a budget of its own for such frames: of the storm the others get no more than that, and
/// another guest's broadcast comes all the same.
#[test]
fn attack_33_a_storm_of_broadcasts_reaches_nobody_beyond_its_budget() {
    let mut machine = Machine::new(3);
    let storm = frame(EVERYBODY, mac(0), 60, 1);
    let unknown = frame([2, 0, 0, 0, 8, 8], mac(0), 60, 2);
    let mut got = 0;
    const SENT: u64 = 20_000;
    for _ in 0..SENT / 40 {
        for _ in 0..20 {
            machine.send(0, &storm);
            machine.send(0, &unknown);
        }
        machine.carry(0);
        machine.guests[0].front.reap().unwrap();
        got += machine.received(1).len() as u64;
        machine.received(2);
    }
    let drops = machine.switch.bridge.drops(0).unwrap();
    let beyond = drops.get(DropReason::GroupBudget);
    assert_eq!(got + beyond, SENT / 2, "nothing unknown came to a guest");
    assert!(beyond > SENT / 4, "{beyond}");
    let other = frame(EVERYBODY, mac(1), 60, 3);
    machine.send(1, &other);
    machine.carry(1);
    assert_eq!(machine.received(2), [other]);
}

/// XSA-374, XSA-527: an interface is taken down between taking a batch and giving it back.
#[test]
fn attack_23_an_interface_that_ends_under_a_batch_takes_nobody_along() {
    let mut machine = Machine::new(3);
    let bytes = frame(EVERYBODY, mac(0), 200, 1);
    for _ in 0..3 {
        machine.send(0, &bytes);
    }
    // Guest 1 has broken its ring: that is found when the batch is sent to it.
    machine.guests[1].raw_rx().set_req_prod(u32::MAX);
    assert_eq!(machine.carry(0).packets, 3);
    assert_eq!(machine.port(1).state(), XenbusState::Closed);
    assert!(!machine.port(1).trouble.is_empty());
    assert_eq!(
        machine.received(2),
        [bytes.clone(), bytes.clone(), bytes.clone()]
    );
    assert_eq!(machine.guests[0].front.reap(), Ok(3));
    // From now on what comes for it is counted.
    machine.send(0, &frame(mac(1), mac(0), 100, 2));
    machine.carry(0);
    assert_eq!(machine.port(1).not_connected, 1);
    // The sender's own end in the middle of its batch: what it has sent is not lost to others.
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
    port.done(&mut frames, &machine.switch.ledger);
    machine.publish();
    assert_eq!(machine.received(0), [bytes_of(2)]);
}

fn bytes_of(n: usize) -> Vec<u8> {
    frame(EVERYBODY, mac(n), 150, 5)
}
