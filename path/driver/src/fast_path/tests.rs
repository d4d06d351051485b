use super::*;
use crate::testing::{Machine, frame, mac};

const SMALL: usize = 100;

/// Runs a turn for guest 0; returns the batch of the fast path.
fn turn(fast: &mut FastPath, machine: &mut Machine) -> Option<SmallFrameBatch> {
    let small = fast.forward_from(&mut machine.switch, 0, 0, 64);
    machine.publish();
    small
}

#[test]
fn small_frames_between_guests_use_the_fast_path() {
    let (mut machine, mut fast) = (Machine::new(3), FastPath::default());
    assert_eq!(turn(&mut fast, &mut machine), None, "no frame is waiting");
    for number in 0..6 {
        let to = mac(1 + number as usize % 2);
        machine.send(0, &frame(to, mac(0), SMALL, number));
    }
    let stats = BatchStats {
        packets: 6,
        bytes: 6 * SMALL as u64,
    };
    let more = false;
    assert_eq!(
        turn(&mut fast, &mut machine),
        Some(SmallFrameBatch { stats, more })
    );
    for n in [1, 2] {
        let numbers = (0..6).filter(|number| 1 + number % 2 == n as u64);
        let sent = numbers.map(|number| frame(mac(n), mac(0), SMALL, number));
        assert_eq!(machine.received(n), sent.collect::<Vec<_>>());
    }
    assert_eq!(machine.guests[0].front.reap(), Ok(6));
    let traffic = &machine.port(1).traffic;
    assert_eq!(
        (traffic.out_packets, traffic.out_bytes),
        (3, 3 * SMALL as u64)
    );
}

#[test]
fn one_unsuitable_frame_diverts_the_whole_batch() {
    let (mut machine, mut fast) = (Machine::new(3), FastPath::default());
    let to_one = frame(mac(1), mac(0), SMALL, 1);
    let to_all = frame([0xff; 6], mac(0), SMALL, 2);
    machine.send(0, &to_one);
    machine.send(0, &to_all);
    // The frames are forwarded in order by the slow path, because only the slow path supports
    // several destinations.
    assert_eq!(
        turn(&mut fast, &mut machine).map(|small| small.stats.packets),
        Some(2)
    );
    assert_eq!(machine.received(1), [to_one.clone(), to_all.clone()]);
    assert_eq!(machine.received(2), [to_all]);
    // The next batches skip the fast path. Then a batch tries it again.
    for untried in 0..SKIPPED_BATCHES {
        machine.send(0, &to_one);
        assert_eq!(turn(&mut fast, &mut machine), None, "{untried}");
        assert_eq!(machine.forward_from(0).packets, 1);
    }
    machine.send(0, &to_one);
    assert!(turn(&mut fast, &mut machine).is_some());
    assert_eq!(machine.received(1).len(), usize::from(SKIPPED_BATCHES) + 1);
}

#[test]
fn eq_7_flood_leaves_buffers_for_other_senders() {
    let (mut machine, mut fast) = (Machine::new(3), FastPath::default());
    let sent = frame(mac(1), mac(0), SMALL, 0);
    let mut flood = |machine: &mut Machine| {
        for _ in 0..20 {
            (0..64).for_each(|_| machine.send(0, &sent));
            turn(&mut fast, machine).unwrap();
            machine.guests[0].front.reap().unwrap();
        }
        machine.port(1).counters().to_guest_drops.total()
    };
    let first = flood(&mut machine);
    while !machine.received(1).is_empty() {}
    let drops = flood(&mut machine);
    assert_eq!(drops - first, 1280 - 120, "8 of 128 posted buffers remain");
    let other = frame(mac(1), mac(2), SMALL, 1);
    machine.send(2, &other);
    let carried = fast.forward_from(&mut machine.switch, 2, 0, 64);
    assert!(carried.is_some(), "the frame uses the fast path");
    machine.publish();
    let got = [machine.received(1), machine.received(1)].concat();
    assert_eq!(got.last(), Some(&other));
    assert_eq!(machine.port(1).counters().to_guest_drops.total(), drops);
}

#[test]
fn large_frame_ends_the_fast_path_batch() {
    let (mut machine, mut fast) = (Machine::new(2), FastPath::default());
    let sent = [SMALL, 5000, SMALL].map(|len| frame(mac(1), mac(0), len, len as u64));
    sent.iter().for_each(|bytes| machine.send(0, bytes));
    let small = turn(&mut fast, &mut machine).unwrap();
    assert!(small.more && small.stats.packets == 1, "{small:?}");
    assert_eq!(turn(&mut fast, &mut machine), None);
    assert_eq!(machine.forward_from(0).packets, 2);
    assert_eq!(machine.received(1), sent);
}

#[test]
fn frames_to_a_closed_guest_are_counted_by_slow_path() {
    let (mut machine, mut fast) = (Machine::new(2), FastPath::default());
    machine.guests[1].raw_tx().set_req_prod(u32::MAX);
    machine.forward_from(1);
    machine.send(0, &frame(mac(1), mac(0), SMALL, 1));
    assert!(turn(&mut fast, &mut machine).is_some());
    assert_eq!(machine.port(1).not_connected, 1);
    assert_eq!(machine.guests[0].front.reap(), Ok(1));
}

#[test]
fn traced_frame_takes_the_slow_path() {
    let (mut machine, mut fast) = (Machine::new(2), FastPath::default());
    machine.switch.trace.request();
    machine.send(0, &frame(mac(1), mac(0), SMALL, 1));
    assert_eq!(turn(&mut fast, &mut machine), None);
    assert_eq!(machine.forward_from(0).packets, 1);
    machine.send(0, &frame(mac(1), mac(0), SMALL, 2));
    assert!(
        turn(&mut fast, &mut machine).is_some(),
        "only one frame is traced"
    );
}
