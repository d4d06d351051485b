use super::*;
use crate::egress_queue::QueueDrops;
use crate::testing::{Machine, frame, mac, nic_port_with};
use nic::sim::{SimCable, SimNic};
use nic::{Caps, Checksum, Gso, GsoKind, Nic};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
/// Number of buffers in the wire's pool.
const BUFFERS: usize = 256;
/// Number of buffers that a guest posts.
const POSTED: usize = 128;

/// A station behind the wire.
const FAR: [u8; 6] = [2, 0, 0, 0, 9, 9];

/// Returns a machine with two guests and a wire, and the wire's far end.
fn machine() -> (Machine, SimNic) {
    let cable = SimCable {
        caps: Caps {
            checksum: true,
            tso: true,
            max_frame: 65_550,
        },
        ..SimCable::default()
    };
    let (near, far) = cable.ends();
    let mut machine = Machine::new(2);
    let wire = machine.wire;
    machine.switch.ports.remove(wire);
    let port = nic_port_with("wire", Box::new(near), BUFFERS);
    assert_eq!(
        machine.switch.ports.insert(BridgePort::Nic(Box::new(port))),
        wire
    );
    (machine, far)
}

fn free(machine: &Machine) -> usize {
    machine
        .switch
        .ports
        .nic(machine.wire)
        .unwrap()
        .buffers_free()
}

fn bytes_of(guest: usize, number: usize) -> Vec<u8> {
    let mut bytes = frame(mac(guest), FAR, 1000, 0);
    bytes[14..22].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn number_of(bytes: &[u8]) -> usize {
    usize::from_be_bytes(bytes[14..22].try_into().unwrap())
}

/// Sends frames from the wire's far end, and lets the switch forward them.
fn send_from_wire(machine: &mut Machine, far: &mut SimNic, frames: &[Vec<u8>], now_ns: u64) {
    let mut pool = Pool::new(Area::anonymous(64 << 11).unwrap(), 2048);
    for bytes in frames {
        let frame = Frame::from_bytes(bytes, &mut pool).unwrap();
        assert_eq!(far.tx(now_ns, std::slice::from_ref(&frame), &[0]).sent, 1);
        frame.clone().recycle(&mut pool);
    }
    let wire = machine.wire;
    while machine.forward_from_at(wire, now_ns).packets > 0 {}
}

fn burst(guest: usize, numbers: std::ops::Range<usize>) -> Vec<Vec<u8>> {
    numbers.map(|number| bytes_of(guest, number)).collect()
}

/// Returns all frames that a guest receives, including queued ones.
fn all_received(machine: &mut Machine, guest: usize, now_ns: u64) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    loop {
        let more = machine.received(guest);
        if more.is_empty() && machine.switch.queueing.is_empty() {
            return got;
        }
        got.extend(more);
        machine.drain(now_ns);
    }
}

#[test]
fn eq_7_frames_wait_for_buffers_and_keep_their_order() {
    let (mut machine, mut far) = machine();
    let sent = burst(1, 0..POSTED + 30);
    send_from_wire(&mut machine, &mut far, &sent, 0);
    let port = machine.port(1);
    assert_eq!(
        (port.traffic.out_packets, port.egress.units()),
        (POSTED as u64, 30)
    );
    assert_eq!(
        free(&machine),
        BUFFERS - 30,
        "the queue copies no frame of a NIC"
    );
    let stat = port.egress.stat(3 * MS);
    assert_eq!(
        (&stat["frames"], &stat["oldest_ns"]),
        (&30.into(), &(3 * MS).into())
    );
    assert_eq!(all_received(&mut machine, 1, 0), sent);
    assert_eq!(free(&machine), BUFFERS);
    assert_eq!(machine.port(1).counters().to_guest_drops.total(), 0);
}

#[test]
fn eq_8_full_queue_leaves_buffers_for_receiving() {
    let (mut machine, mut far) = machine();
    for round in 0..20 {
        let numbers = round * 50..(round + 1) * 50;
        send_from_wire(
            &mut machine,
            &mut far,
            &burst(1, numbers.clone()),
            round as u64 * MS,
        );
        let others = burst(0, numbers);
        send_from_wire(&mut machine, &mut far, &others, round as u64 * MS);
        assert_eq!(
            machine.received(0),
            others,
            "frames for other guests do not wait"
        );
        assert!(free(&machine) >= BUFFERS / 4);
    }
    let egress = &machine.port(1).egress;
    assert_eq!(
        egress.units(),
        BUFFERS * 3 / 4 * 2 / 3,
        "two thirds of the share for queues"
    );
    let dropped = (egress.drops.get(QueueDropReason::Full)
        + egress.drops.get(QueueDropReason::Codel)) as usize;
    assert_eq!(dropped, 1000 - POSTED - egress.units());
    // A second queue gets buffers, too.
    send_from_wire(&mut machine, &mut far, &burst(0, 0..POSTED + 80), 20 * MS);
    assert_eq!(
        machine.port(0).egress.units(),
        43,
        "two thirds of the remaining buffers"
    );
    // All queued frames expire.
    machine.drain(21 * MS + 500 * MS);
    assert_eq!(free(&machine), BUFFERS);
    assert!(machine.switch.queueing.is_empty());
    assert_eq!(machine.port(0).egress.drops.get(QueueDropReason::Late), 43);
}

/// The wire sends a flood in which each frame belongs to a new flow.
#[test]
fn eq_2_flood_of_flows_does_not_delay_other_senders() {
    let (mut machine, mut far) = machine();
    let flood: Vec<Vec<u8>> = (0..POSTED + 120)
        .map(|flow| frame(mac(1), [2, 0, 0, 9, 9, flow as u8], 1000, 0))
        .collect();
    send_from_wire(&mut machine, &mut far, &flood, 0);
    let other = frame(mac(1), mac(0), 900, 0);
    machine.send(0, &other);
    machine.forward_from(0);
    assert!(machine.port(1).egress.units() > 100);
    let got = all_received(&mut machine, 1, 0);
    let place = got.iter().position(|got| *got == other).unwrap();
    assert!((POSTED..POSTED + 3).contains(&place), "{place}");
}

#[test]
fn eq_8_filling_queue_signals_early() {
    let (mut machine, mut far) = machine();
    // The limit of the queue is 128 frames; a quarter of this is 32.
    send_from_wire(&mut machine, &mut far, &burst(1, 0..POSTED + 32), 0);
    assert_eq!(machine.port(1).egress.drops, QueueDrops::default());
    for ms in 1..40 {
        send_from_wire(&mut machine, &mut far, &burst(1, 0..1), ms * MS);
    }
    let drops = machine.port(1).egress.drops;
    assert_eq!(
        (
            drops.get(QueueDropReason::Full),
            drops.get(QueueDropReason::Late)
        ),
        (0, 0)
    );
    assert!(
        (2..=8).contains(&drops.get(QueueDropReason::Codel)),
        "{drops:?}"
    );
}

#[test]
fn eq_9_removed_guest_frees_its_buffers() {
    let (mut machine, mut far) = machine();
    send_from_wire(&mut machine, &mut far, &burst(1, 0..POSTED + 20), 0);
    for number in 0..10 {
        machine.send(0, &frame(mac(1), mac(0), 900, number));
    }
    machine.forward_from(0);
    assert_eq!(machine.port(1).egress.units(), 30);
    machine.switch.forget_queue(1, 0);
    assert_eq!(
        (free(&machine), machine.port(1).not_connected),
        (BUFFERS, 30)
    );
    assert_eq!(machine.switch.queueing.share, QueueShare::default());
    assert_eq!(machine.switch.queueing.pool.available(), 256);
}

/// The guest's link closes while frames are queued for it.
#[test]
fn eq_9_closing_link_drops_its_queue() {
    let (mut machine, mut far) = machine();
    send_from_wire(&mut machine, &mut far, &burst(1, 0..POSTED + 60), 0);
    machine.guests[1].raw_rx().set_req_prod(u32::MAX);
    machine.drain(MS);
    assert!(machine.switch.queueing.is_empty());
    assert_eq!(free(&machine), BUFFERS);
}

#[test]
fn eq_7_queued_broadcasts_share_buffers() {
    let (mut machine, mut far) = machine();
    let all = frame([0xff; 6], FAR, 500, 7);
    send_from_wire(&mut machine, &mut far, &burst(0, 0..POSTED), 0);
    send_from_wire(&mut machine, &mut far, &burst(1, 0..POSTED), 0);
    send_from_wire(&mut machine, &mut far, std::slice::from_ref(&all), 0);
    assert_eq!(free(&machine), BUFFERS - 1, "both queues share one buffer");
    for guest in [0, 1] {
        assert_eq!(machine.received(guest).len(), 64);
    }
    machine.drain(0);
    assert_eq!(free(&machine), BUFFERS);
    for guest in [0, 1] {
        let got = [machine.received(guest), machine.received(guest)].concat();
        assert_eq!(got.last(), Some(&all));
    }
}

/// Returns an aggregate of `packets` packets of 1000 bytes.
fn aggregate(packets: usize, pool: &mut Pool) -> Frame {
    let mut bytes = vif::testing::ipv4_tcp(packets * 1000, 1);
    bytes[..6].copy_from_slice(&mac(1));
    bytes[6..12].copy_from_slice(&FAR);
    bytes[47] = 0x10;
    let mut frame = Frame::from_bytes(&bytes, pool).unwrap();
    frame.offload.checksum = Checksum::Blank {
        start: 34,
        offset: 16,
    };
    frame.offload.gso = Some(Gso {
        kind: GsoKind::Tcp4,
        size: 1000,
    });
    frame
}

#[test]
fn eq_7_aggregate_is_split_to_posted_buffers() {
    let (mut machine, mut far) = machine();
    send_from_wire(&mut machine, &mut far, &burst(1, 0..POSTED - 10), 0);
    let mut pool = Pool::new(Area::anonymous(64 << 11).unwrap(), 2048);
    let whole = aggregate(40, &mut pool);
    far.tx(0, &[whole], &[0]);
    let wire = machine.wire;
    machine.forward_from_at(wire, 0);
    assert_eq!(
        machine.port(1).egress.units(),
        20,
        "the aggregate is not split immediately"
    );
    let due_ns = machine.port(1).egress.due_ns(0).unwrap();
    machine.drain(due_ns - 1);
    assert_eq!(machine.port(1).egress.stat(0)["bytes"], 40_054);
    machine.drain(due_ns);
    let queued_bytes = machine.port(1).egress.stat(0)["bytes"].as_u64().unwrap();
    assert!((20_000..30_000).contains(&queued_bytes), "{queued_bytes}");
    assert_eq!(
        free(&machine),
        BUFFERS - 20,
        "all buffers remain in use until the last part is sent"
    );
    let got = all_received(&mut machine, 1, due_ns + 1);
    let payload: usize = got.iter().skip(POSTED - 10).map(|got| got.len() - 54).sum();
    assert_eq!(payload, 40_000);
    assert_eq!(free(&machine), BUFFERS);
}

proptest! {
    /// For any sequence of sending and receiving, each frame is received once and in order, is
    /// queued, or is counted as dropped, and each buffer returns.
    #[test]
    fn eq_1_frames_are_received_queued_or_counted(
        steps in prop::collection::vec((0usize..60, 0usize..3, 0u64..40), 1..40),
    ) {
        let (mut machine, mut far) = machine();
        let (mut sent, mut got, mut now) = (0, 0, 0);
        let mut last = None;
        for (count, takes, wait) in steps {
            send_from_wire(&mut machine, &mut far, &burst(1, sent..sent + count), now);
            sent += count;
            now += wait * MS;
            for _ in 0..takes {
                for bytes in machine.received(1) {
                    let number = number_of(&bytes);
                    prop_assert_eq!(&bytes, &bytes_of(1, number));
                    prop_assert!(last < Some(number), "{number} after {last:?}");
                    last = Some(number);
                    got += 1;
                }
                machine.drain(now);
            }
            let port = machine.port(1);
            let in_ring = port.traffic.out_packets as usize - got;
            let drops = port.egress.drops;
            let dropped = drops.total() as usize;
            prop_assert_eq!(got + in_ring + dropped + port.egress.units(), sent);
            prop_assert_eq!(free(&machine), BUFFERS - port.egress.units());
        }
        machine.switch.forget_queue(1, now);
        prop_assert_eq!(free(&machine), BUFFERS);
    }
}
