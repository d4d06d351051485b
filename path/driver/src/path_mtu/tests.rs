use crate::port_common::PortCommon;
use crate::software_offload::TxError;
use crate::switch::Switch;
use crate::testing::{Machine, mac};
use nic::{Gso, GsoKind, Offload};
use serde_json::json;

/// A station behind the wire, which accepts frames of 1518 bytes.
const STATION: [u8; 6] = [2, 0, 0, 0, 9, 9];

/// Returns a packet of `len` bytes from guest 0 to the station behind the wire. Routers must not
/// fragment it.
fn packet(v6: bool, protocol: u8, len: usize) -> Vec<u8> {
    let mut bytes = [STATION, mac(0)].concat();
    let payload = (len - 40) as u16;
    let head = match v6 {
        false => {
            let total = (len as u16).to_be_bytes();
            let start = [8, 0, 0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64];
            let addresses = [10, 0, 0, 2, 192, 0, 2, 1];
            [&start[..], &[protocol, 0, 0], &addresses].concat()
        }
        true => {
            let [high, low] = payload.to_be_bytes();
            let start = [0x86, 0xdd, 0x60, 0, 0, 0, high, low, protocol, 64];
            let address = |last| [&[0xfd][..], &[0; 14], &[last]].concat();
            [&start[..], &address(2), &address(1)].concat()
        }
    };
    bytes.extend(head);
    // A TCP header without options, or a UDP header with payload.
    let at = bytes.len();
    bytes.resize(14 + len, 0);
    bytes[at + 12] = 5 << 4;
    bytes
}

fn machine(gateways: &[&str]) -> Machine {
    let mut machine = Machine::new(2);
    if let Some(vif) = machine.switch.ports.vif_mut(0) {
        vif.gateways = gateways.iter().map(|it| it.parse().unwrap()).collect();
    }
    machine
}

/// Sends these bytes from guest 0, and returns the frames that it receives in the same turn.
fn answers(machine: &mut Machine, bytes: &[u8], offload: Offload, now_ns: u64) -> Vec<Vec<u8>> {
    assert!(machine.guests[0].send(bytes, offload));
    machine.forward_from_at(0, now_ns);
    assert!(
        machine.received(0).is_empty(),
        "the error follows the batch"
    );
    machine.switch.send_errors(now_ns);
    machine.publish();
    machine.guests[0].front.reap().unwrap();
    machine.received(0)
}

#[test]
fn guest_learns_the_mtu_of_the_wire() {
    for v6 in [false, true] {
        let mut machine = machine(&["fd00::fe", "10.0.0.1"]);
        let sent = packet(v6, 17, 4000);
        let got = answers(&mut machine, &sent, Offload::default(), 0);
        let [error] = got.as_slice() else {
            panic!("{got:?}");
        };
        assert_eq!((&error[..6], &error[6..12]), (&mac(0)[..], &STATION[..]));
        let router = [&[0xfd][..], &[0; 14], &[0xfe]].concat();
        let (at, source, icmp) = match v6 {
            false => (34, (&error[26..30], &[10, 0, 0, 1][..]), [3, 4]),
            true => (54, (&error[22..38], &router[..]), [2, 0]),
        };
        assert_eq!(source.0, source.1);
        assert_eq!(error[at..at + 2], icmp);
        // The wire's longest frame without Ethernet header.
        assert_eq!(error[at + 6..at + 8], 1504_u16.to_be_bytes());
        let quote = error.len() - at - 8;
        assert_eq!(error[at + 8..], sent[14..14 + quote]);
        assert_eq!(
            machine
                .switch
                .software_offload
                .tx_errors
                .get(TxError::TooLong),
            1
        );
        assert_eq!(
            machine.switch.errors.stat(&machine.switch.ports),
            json!({"sent": 1, "limited": 0})
        );
    }
}

#[test]
fn oversized_segments_are_counted_and_reported() {
    let mut machine = machine(&[]);
    let sent = packet(false, 6, 9000);
    let offload = |size| Offload {
        gso: Some(Gso {
            kind: GsoKind::Tcp4,
            size,
        }),
        checksum: nic::Checksum::Blank {
            start: 34,
            offset: 16,
        },
    };
    let got = answers(&mut machine, &sent, offload(4000), 0);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0][26..30], [192, 0, 2, 1], "no gateway is known");
    let tx_errors = machine.switch.software_offload.tx_errors;
    assert_eq!(
        (
            tx_errors.get(TxError::TooLong),
            tx_errors.get(TxError::BadOffload)
        ),
        (1, 0)
    );
    // The aggregate exceeds the MTU, but its segments do not.
    assert!(answers(&mut machine, &sent, offload(1460), 0).is_empty());
    assert_eq!(machine.switch.software_offload.segmented, 7);
}

#[test]
fn errors_to_a_flood_are_rate_limited() {
    let mut machine = machine(&[]);
    let sent = packet(false, 17, 4000);
    let mut count = |now_ns| -> usize {
        let turns = (0..50).map(|_| answers(&mut machine, &sent, Offload::default(), now_ns).len());
        turns.sum()
    };
    assert_eq!((count(0), count(100_000_000)), (20, 10));
    let stat = machine.switch.errors.stat(&machine.switch.ports);
    assert_eq!(stat, json!({"sent": 30, "limited": 70}));
    let lost = machine
        .switch
        .software_offload
        .tx_errors
        .get(TxError::TooLong);
    assert_eq!(lost, 100);
}

#[test]
fn removed_port_leaves_no_errors_or_limits() {
    let mut machine = machine(&[]);
    let sent = packet(false, 17, 4000);
    for _ in 0..50 {
        answers(&mut machine, &sent, Offload::default(), 0);
    }
    // The error for this packet is still pending when the port is removed.
    let now_ns = 1_000_000_000;
    assert!(machine.guests[0].send(&sent, Offload::default()));
    machine.forward_from_at(0, now_ns);
    assert!(!machine.switch.errors.is_empty());
    let Switch { errors, ports, .. } = &mut machine.switch;
    let before = errors.stat(ports);
    errors.remove(0, ports);
    assert!(errors.is_empty());
    if let Some(port) = ports.get_mut(0) {
        // Another guest gets the number of the port.
        *port.common_and_gateways().0 = PortCommon::default();
    }
    assert_eq!(
        errors.stat(ports),
        before,
        "the totals include removed ports"
    );
    let mut got = 0;
    for _ in 0..50 {
        got += answers(&mut machine, &sent, Offload::default(), now_ns).len();
    }
    assert_eq!(got, 20, "the next port has a full burst");
}

/// An error waits for the guest's buffers like any other frame, and its buffer is freed afterwards.
#[test]
fn errors_wait_for_buffers_and_free_their_own() {
    let mut machine = machine(&[]);
    let sent = packet(true, 17, 4000);
    let mut got = 0;
    for turn in 0..200 {
        got += answers(&mut machine, &sent, Offload::default(), turn * 10_000_000).len();
        machine.drain(turn * 10_000_000);
    }
    got += machine.received(0).len();
    assert_eq!(got, 200);
    assert!(machine.switch.queueing.is_empty());
}
